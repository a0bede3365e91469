"""From a Hugging Face model config to a ``Geometry``.

``reader`` gives typed access to one file and notes where every value came from, ``fields`` has the rules for what a
config leaves out, ``indexer_layers`` those for which layers select, and ``named`` the models that are known by name.
"""

from .fields import parse, yarn_mscale
from .named import forget, load, names, origin, register, registered

__all__ = ("forget", "load", "names", "origin", "parse", "register", "registered", "yarn_mscale")
