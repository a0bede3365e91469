"""What is checked, and what a breach looks like: which step froze what, and which step was hurt by it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OracleError

#: Every check by name. The first five are the invariants that a layer with eager breaks must keep, see docs/graphs.md.
CHECKS: dict[str, str] = {
    "superset": "what was captured suffices for whatever route a replay takes: MQA query, kv_c and k_pe are there",
    "prepare-dispatch": "the route is evaluated twice, to prepare the query and to dispatch, and both agree",
    "rope-once": "every query is rotated exactly once, whoever rotates it",
    "static-inputs": "what the eager part of a replay reads lies in static buffers and is this step's",
    "full-scores": "a full graph always scores, and is used for uniform decodes only",
    "route-trace": "the route, the skip and the operators of a replay are those of an eager step on the same batch",
    "outputs": "the outputs of a replay equal those of an eager step within what the arithmetic explains",
    "frozen-host": "what the host put into the graph is what it would put there now",
    "captured-metadata": "the graph reads no tensor that belongs to the captured batch alone",
    "metadata-current": "the static buffers hold this step's metadata and inputs, and neutral padding",
    "addresses": "every buffer that a graph knows stays where it was",
    "padding-in": "what padded rows hold does not reach the real rows",
    "padding-out": "padded rows write nothing: only this step's cache rows change",
    "live-blocks": "capturing changes no cache block, the null block included",
    "null-block": "what the null block holds does not reach the outputs",
    "replay-twice": "a second replay of the same step gives the same bits",
    "after-eager": "a replay after an eager step gives the same bits",
    "outputs-stable": "outputs that were handed out stay what they were when the next step runs",
    "layer-contract": "the layer contract holds at the replay, as in an eager step",
    "illegal-call": "nothing in the captured function reads the device or copies from the host",
    "raised": "the replay does not raise",
}
INVARIANTS = tuple(CHECKS)[:5]


@dataclass(frozen=True, slots=True)
class IllegalCall:
    """A call that a capturing stream does not allow."""

    call: str
    """Like Tensor.tolist or aten.nonzero."""
    where: str
    """File and line of the caller."""
    why: str

    def __str__(self) -> str:
        return f"{self.call} at {self.where}: {self.why}"


class CaptureFailed(OracleError, RuntimeError):
    """A function cannot be captured; ``call`` names what stood against it, if that is known."""

    def __init__(self, what: str, call: IllegalCall | None, told: str = "") -> None:
        parts = [f"{what} cannot be captured", *([str(call)] if call else []), *([told] if told else [])]
        super().__init__(": ".join(parts))
        self.what, self.call, self.told = what, call, told


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken check at one step of a sequence."""

    check: str
    step: int
    """Number of the step in its sequence, from 1; 0: the capture."""
    frozen: str
    """Who laid down what, and when."""
    now: str
    """What this step says instead."""

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise ValueError(f"check: expected one of {', '.join(CHECKS)}, got {self.check!r}")

    def __str__(self) -> str:
        at = f"step {self.step}" if self.step else "capture"
        return f"{self.check}: {at}: {self.frozen}; {self.now}"
