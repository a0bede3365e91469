"""From a failing case to the smallest one that fails in the same way.

``shrink`` walks the axes in the order of what they mean to a reader: requests, heads, queries, keys, selected slots
and pages, head dims, values, layout, options. Every step is a case of its own, made from its id, in which the tokens
that are left keep their values.
"""

from .shrink import Shrunk, shrink
from .trials import Trials

__all__ = ("Shrunk", "Trials", "shrink")
