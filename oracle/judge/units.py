"""Units that conventions differ in."""

from __future__ import annotations

import math

#: Natural-log units of one base-2 unit: an LSE in base 2 is 1/LN2 = 1.4427 times the natural one.
LN2 = math.log(2.0)
