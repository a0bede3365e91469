"""From a case to the tensors a kernel is given: values, index patterns, layouts, poison and red zones.

Values are keyed by logical coordinates (request, token, head, dim), so they survive when a case shrinks. A request is
known by its index; ``ids-2.5`` among the options keeps the values of requests 2 and 5 when others are dropped. Cutting
keys moves what is defined by the end of a request: the last key of the edge-biased kinds, and the selections.
"""

from .build import make
from .kinds import KINDS, kinds_of
from .options import OPTIONS
from .tensors import DTYPES, Inputs

__all__ = ["DTYPES", "KINDS", "OPTIONS", "Inputs", "kinds_of", "make"]
