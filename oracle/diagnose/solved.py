"""Hypotheses with a number in them that is solved for: softmax scale, soft cap, the LSE's base and offset, a factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..faults.simulated import simulated
from .expectation import ATTENTION, INDEXERS
from .hypothesis import Hypothesis, Stage
from .model import Piece, pieces
from .observation import Observation

#: Widths whose root a scale is likely to be made from.
WIDTHS = (32, 48, 64, 80, 96, 128, 192, 256, 320, 512, 576, 1024)
#: A solved number this close to a known one is that one.
NEAR = 2e-4


def minimum(cost: Callable[[float], float], grid: list[float]) -> tuple[float, float]:
    """Argument and value of the smallest cost: the best of a grid, refined between its neighbours."""
    costs = [cost(x) for x in grid]
    best = min(range(len(grid)), key=costs.__getitem__)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if low == high:
        return grid[best], costs[best]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-7 * max(1e-3, high)})
    return (float(found.x), float(found.fun)) if found.fun <= costs[best] else (grid[best], costs[best])


def scale(seen: Observation) -> Iterator[Hypothesis]:
    """The softmax scale that explains the answer best."""
    parts = pieces(seen)
    if not parts:
        return
    right = float(seen.arguments["scale"])

    def cost(factor: float) -> float:
        return sum(_scaled_misfit(seen, part, lambda s: s * (right * factor)) for part in parts)

    steps = sorted({2.0 ** (i / 4) for i in range(-24, 25)} | {0.97, 0.99, 0.995, 1.005, 1.01, 1.03})
    factor, _ = minimum(cost, steps)
    known = _known_scale(right, right * factor)
    value, told = known if known else (right * factor, "")
    if abs(value / right - 1.0) > 1e-6:
        words = f"The softmax scale is {value:.6g}{told}, not {right:.6g}{_root(right)}."
        kernel = simulated(seen.operator, scale=lambda s, q_len: value)
        yield Hypothesis("softmax scale", "scores", words, kernel, 1 if not known else 0)


def softcap(seen: Observation) -> Iterator[Hypothesis]:
    """A soft cap c tanh(s / c) on the scores."""
    parts, right = pieces(seen), float(seen.arguments["scale"])
    if not parts:
        return

    def cost(cap: float) -> float:
        return sum(_scaled_misfit(seen, part, lambda s: cap * torch.tanh(s * right / cap)) for part in parts)

    cap, _ = minimum(cost, [2.0 ** (i / 2) for i in range(2, 18)])
    cap = round(cap) if abs(cap - round(cap)) < 0.02 * cap else cap
    yield Hypothesis(
        "soft cap",
        "scores",
        f"Scores pass through a soft cap, {cap:g} tanh(s / {cap:g}).",
        simulated(seen.operator, score=lambda qk, scale: cap * torch.tanh(qk * scale / cap)),
        1,
    )


def lse(seen: Observation) -> Iterator[Hypothesis]:
    """The LSE as a multiple of the right one, plus a constant."""
    exact, got = seen.expected.exact.get("lse"), seen.answer.get("lse")
    if exact is None or got is None or got.shape != exact.shape:
        return
    both = torch.isfinite(exact) & torch.isfinite(got)
    if int(both.sum()) < 2:
        return
    x, y = exact[both], got[both]
    offset = float((y - x).median())
    tries = [(1.0 / math.log(2), 0.0, "base 2"), (math.log(2), 0.0, "multiplied by ln 2"), (1.0, offset, "")]
    spread = float((x - x.mean()).square().sum())
    if spread > 1e-12:
        slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
        tries.append((slope, float((y - slope * x).median()), ""))
    for slope, shift, told in tries:
        words = told or f"{slope:.5g} times the right one plus {shift:.4g}" if slope != 1.0 else f"off by {shift:+.4g}"
        yield Hypothesis("LSE base or offset", "lse", f"The LSE is {words}.", _with_lse(seen, slope, shift), 1)


def lse_parts(seen: Observation) -> Iterator[Hypothesis]:
    """The largest score and the logarithm of the sum enter the LSE with factors of their own."""
    exact, got = seen.expected.exact.get("lse"), seen.answer.get("lse")
    if exact is None or got is None or got.shape != exact.shape:
        return
    top = _largest(seen)
    if top is None:
        return
    rest = exact - top
    both = torch.isfinite(exact) & torch.isfinite(got) & torch.isfinite(top)
    if int(both.sum()) < 4 or float(rest[both].std()) < 1e-9:
        return
    weight = 1.0 / seen.expected.allowed["lse"][both]
    design = torch.stack((top[both], rest[both]), 1) * weight[:, None]
    a, b = torch.linalg.lstsq(design, (got[both] * weight)[:, None], driver="gelsd").solution[:, 0].tolist()
    a, b = (next((x for x in (0.0, 1.0, 0.5, 1 / math.log(2), math.log(2)) if abs(x - y) < 1e-3), y) for y in (a, b))
    words = f"The maximum enters the LSE times {a:.5g}, the logarithm of the sum times {b:.5g}."
    changed = torch.where(both, a * top + b * rest, seen.right["lse"])
    yield Hypothesis("parts of the LSE", "lse", words, lambda **x: (seen.right["out"], changed), 2)


def _largest(seen: Observation) -> Tensor | None:
    """The largest score of every row [s,h]; of a merge, the larger LSE."""
    if seen.operator == "merge_lse":
        return torch.maximum(seen.arguments["lse_a"].cpu().double(), seen.arguments["lse_b"].cpu().double())
    parts = pieces(seen)
    if not parts:
        return None
    from ..judge.attention_call import attention_chunks

    top = torch.zeros_like(seen.expected.exact["lse"])
    for part, chunk in zip(parts, attention_chunks(seen.operator, seen.arguments), strict=True):
        scores = (part.scores * float(seen.arguments["scale"])).masked_fill(~part.allowed, -math.inf)
        largest = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)
        top[chunk.rows] = chunk.place(largest).cpu()
    return top


def gain(seen: Observation) -> Iterator[Hypothesis]:
    """The output, or the scores, multiplied by a constant."""
    name = "scores" if seen.operator in INDEXERS else "out"
    exact, got = seen.expected.exact.get(name), seen.answer.get(name)
    if exact is None or got is None or got.shape != exact.shape:
        return
    both = torch.isfinite(exact) & torch.isfinite(got) & (exact.abs() > 0)
    if not bool(both.any()):
        return
    factor = float((got[both] / exact[both]).median())
    kernel = simulated(seen.operator)
    place = 0

    def predict(**a: object) -> tuple[Tensor, ...]:
        outputs = list(kernel(**a))
        outputs[place] = (outputs[place].float() * factor).to(outputs[place].dtype)
        return tuple(outputs)

    what = "Scores are" if name == "scores" else "The output is"
    stage: Stage = "logits" if name == "scores" else "P.V" if seen.operator in ATTENTION else "merge"
    yield Hypothesis("factor", stage, f"{what} multiplied by {factor:.5g}.", predict, 1)


def sink(seen: Observation) -> Iterator[Hypothesis]:
    """The sink logit multiplied by a factor, or shifted."""
    given = seen.arguments.get("sink")
    parts = pieces(seen)
    if given is None or not parts:
        return
    right = float(seen.arguments["scale"])
    logits = given.detach().cpu().double()
    answers = [part.answer((part.scores * right).masked_fill(~part.allowed, -math.inf)) for part in parts]

    def cost(change: Callable[[Tensor], Tensor]) -> float:
        changed = change(logits).nan_to_num(nan=0.0)
        return sum(
            part.misfit(out, found, torch.sigmoid(found - changed)[..., None])
            for part, (out, found) in zip(parts, answers, strict=True)
        )

    factor, _ = minimum(lambda x: cost(lambda s: s * x), [0.01, 0.05, 0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.44, 2.0, 4.0])
    shift, _ = minimum(lambda x: cost(lambda s: s + x), [-4.0, -2.0, -1.0, -0.7, -0.3, 0.3, 0.7, 1.0, 2.0, 4.0])
    factor, shift = (round(x, 2) if abs(x - round(x, 2)) < 1e-3 else x for x in (factor, shift))
    for told, change in (
        (f"multiplied by {factor:.4g}", lambda s: s * factor),
        (f"shifted by {shift:+.4g}", lambda s: s + shift),
    ):
        kernel = simulated(seen.operator)
        yield Hypothesis(
            "sink logit",
            "softmax",
            f"The sink is {told}.",
            lambda c=change, k=kernel, **a: k(**{**a, "sink": c(a["sink"])}),
            1,
        )


def _scaled_misfit(seen: Observation, part: Piece, change: Callable[[Tensor], Tensor]) -> float:
    out, found = part.answer(change(part.scores).masked_fill(~part.allowed, -math.inf))
    given = seen.arguments.get("sink")
    gain_ = 1.0 if given is None else torch.sigmoid(found - given.detach().cpu().double())[..., None]
    return part.misfit(out, found, gain_)


def _with_lse(seen: Observation, slope: float, shift: float) -> Callable[..., tuple[Tensor, ...]]:
    kernel = simulated(seen.operator)

    def predict(**a: object) -> tuple[Tensor, ...]:
        out, found = kernel(**a)
        return out, found * slope + shift

    return predict


def _known_scale(right: float, value: float) -> tuple[float, str] | None:
    """The scale that a solved one is close to, and how it is made."""
    known = [(1.0 / math.sqrt(width), f" (1/sqrt({width}))") for width in WIDTHS]
    known += [(1.0, " (none)"), (right * right, " (applied twice)"), (right**0.5, " (its root)")]
    known += [(right / math.log(2), " (times log2 e)"), (right * math.log(2), " (times ln 2)")]
    known += [(float(torch.tensor(right).bfloat16()), " (rounded to bf16)")]
    near = [(abs(value / x - 1.0), x, words) for x, words in known if abs(x / right - 1.0) > 1e-6]
    distance, x, words = min(near)
    return (x, words) if distance < NEAR else None


def _root(value: float) -> str:
    width = 1.0 / value**2
    return f" (1/sqrt({round(width)}))" if abs(width - round(width)) < 1e-3 else ""
