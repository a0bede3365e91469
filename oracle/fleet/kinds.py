"""Kinds of devices in a cluster, and verdicts that differ between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ..errors import BadInput
from ..verdict import Verdict

#: How Ray names the kind of a node's accelerators among its resources.
ACCELERATOR = "accelerator_type:"


def kinds(ray: Any) -> dict[str, int]:
    """Kind -> devices of it, in alphabetical order. Raises BadInput where there are not two to compare."""
    found: Counter[str] = Counter()
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        for name in resources:
            if name.startswith(ACCELERATOR):
                found[name.removeprefix(ACCELERATOR)] += int(resources.get("GPU", 0) or resources.get("CPU", 0))
    if len(found) < 2:
        raise BadInput(
            f"--per-device: expected a cluster with several kinds of devices, got {', '.join(found) or 'none named'}"
        )
    return dict(sorted(found.items()))


def differing(verdicts: Sequence[Verdict]) -> list[str]:
    """One line for each case and implementation whose outcome depends on the device; a finding in itself.

    Where it could not be judged it has no outcome.
    """
    outcomes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict.status in ("PASS", "FAIL", "ERROR"):
            outcomes[verdict.implementation, verdict.case.id][verdict.device] = verdict.status
    return [
        f"{implementation} on {case}: " + ", ".join(f"{status} on {device}" for device, status in by_device.items())
        for (implementation, case), by_device in outcomes.items()
        if len(set(by_device.values())) > 1
    ]
