"""An implementation put to the properties of its operator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...optimized.implementation import Implementation
from ..calling.globals import GlobalState
from ..case import Case
from ..errors import Unsupported
from .call import Call
from .claim import Broken, DoesNotApply
from .property import Outcome, Property, Status
from .table import PROPERTIES


def hold(
    case: Case, implementation: Implementation, device: str = "cpu", properties: Sequence[Property] = PROPERTIES
) -> Iterator[Outcome]:
    """The outcome of every property, one after the other; those of other operators do not apply.

    A property that makes no comparison on this case does not apply either: nothing was shown.
    """
    call = Call(case, implementation, device)
    for one in properties:
        if case.operator in one.operators:
            yield tried(one, call)
        else:
            yield _outcome(one, call, "not applicable", f"says nothing about {case.operator}", 0.0, 0)


def tried(one: Property, call: Call) -> Outcome:
    """The outcome of one property of the call's operator. Raises what the tool itself raises, and nothing else."""
    made = 0
    largest = 0.0
    state = GlobalState.take()
    try:
        for claim in one.relation(call):
            made += claim.size > 0
            ratio = claim.worst()
            largest = max(largest, ratio)
            if ratio > 1.0:
                return _outcome(one, call, "failed", claim.told(), ratio, made)
    except DoesNotApply as reason:
        # What held before the reason turned up has held.
        return _outcome(one, call, "held" if made else "not applicable", "" if made else str(reason), largest, made)
    except Unsupported as reason:
        return _outcome(one, call, "not applicable", str(reason), largest, made)
    except Broken as broken:
        return _outcome(one, call, "failed", str(broken), math.inf, made)
    finally:
        state.restore()
    if not made:
        return _outcome(one, call, "not applicable", "nothing to compare on this case", 0.0, 0)
    return _outcome(one, call, "held", "", largest, made)


def _outcome(one: Property, call: Call, status: Status, reason: str, ratio: float, claims: int) -> Outcome:
    return Outcome(one.number, one.name, call.implementation.name, call.case.id, status, reason, ratio, claims)
