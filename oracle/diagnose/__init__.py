"""Why a kernel is wrong: where its errors lie, which fault explains what it returned, at which stage it begins.

``diagnose`` looks at one case through three glasses:

* the **map** (``errormap``): errors by head, query, column, request and tile, with the rule that names exactly those
  places;
* the **dictionary** (``dictionary``, the modules of families): hypotheses about the fault, each computed on the same
  inputs and ranked by how much of the deviation it explains within the budget; free parameters are solved for;
* the **stage** (``probes``, ``layer_stages``): inputs on which one stage has a known answer, and one stage of a layer
  exchanged for the reference at a time, both ways.
"""

from .diagnosis import Diagnosis, diagnose
from .ranking import Ranked

__all__ = ("Diagnosis", "Ranked", "diagnose")
