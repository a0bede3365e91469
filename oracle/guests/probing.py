"""Proposes the contract of a kernel by probing it, and says of every field why, or that it is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...optimized.implementation import Implementation
from ..calling.call import Raised
from ..case import DTYPES, Case
from ..fleet.confinement import Confinement
from ..fleet.pool import run
from ..verdict import Verdict
from . import known
from .concerns import concerns
from .contract_file import Limits, spelled
from .external import External
from .probes import PROBES, UNKNOWN, ask_dtype, case_of, contract_for_probing

#: Between the name of an implementation and that of a probe.
MARK = "?"
#: The geometry that is probed unless another is asked for; small, with every field that the large ones have.
GEOMETRY = "tiny"
#: Seconds for one probe.
PATIENCE = 120.0
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
#: No probe answers these: they are found in the source.
_UNASKED = "unknown, and no probe asks: the default holds"
#: Of every field, where no call was answered.
_NOWHERE = f"{UNKNOWN}: it ran on no dtype"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A contract and, for every field, the evidence or why it is unknown."""

    name: str
    contract: Contract
    notes: dict[str, str]
    dtypes: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())
    """What stopped probes: raised, crashed, timed out."""

    @property
    def settled(self) -> tuple[str, ...]:
        """Fields that a probe answered."""
        return tuple(name for name, note in self.notes.items() if not note.startswith(UNKNOWN))

    def _found(self) -> tuple[str, ...]:
        return tuple(self.notes[one] for one in self.settled)

    @property
    def limits(self) -> Limits:
        return Limits(dtypes=self.dtypes)

    def toml(self) -> str:
        """The proposal as a contract file, the evidence beside each field."""
        operator = self.name.partition("/")[0]
        lines = [f"# proposed for {self.name} by probing", *(f"# {line}" for line in self.problems)]
        supports = f"\n[supports]\ndtypes = [{', '.join(f'{name!r}' for name in self.dtypes)}]\n".replace("'", '"')
        told = ("", _UNASKED, _NOWHERE, *self._found())
        lines += [f"# {one}: {note}" for one, note in self.notes.items() if note not in told]
        for note in (_UNASKED, _NOWHERE):
            if alike := [one for one, its in self.notes.items() if its == note]:
                lines.append(f"# {note}: {', '.join(alike)}")
        body = spelled(self.contract, notes=self.notes, only=self.settled)
        return "\n".join(lines) + f'\noperator = "{operator}"\n\n{body}' + (supports if self.dtypes else "")


def propose(guest: External, *, device: str) -> Proposal:
    """Probe a kernel that is known by name."""
    return proposed(guest.name, guest.contract, device=device)


def proposed(name: str, base: Contract, *, device: str, geometry: str = GEOMETRY, trusted: bool = False) -> Proposal:
    """Probe an implementation that is known by name; ``base`` holds where nothing is found.

    ``trusted``: in this process, for kernels that do not end theirs.
    """
    operator = name.partition("/")[0]
    dtypes: tuple[str, ...] = DTYPES if operator == "indexer_scores" else DTYPES[:-1]
    dtypes = ("bf16",) if operator == "topk_select" else dtypes
    taken = _asked([(_case(operator, geometry, dtype), f"{name}{MARK}dtype") for dtype in dtypes], device, trusted)
    accepted = tuple(v.case.dtype for v in taken if v.status == "PASS" and not v.reason.startswith(UNKNOWN))
    problems = [f"dtype {v.case.dtype}: {v.reason}" for v in taken if v.case.dtype not in accepted]
    if not accepted:
        notes = {one: _NOWHERE for one in base.as_dict() if concerns(one, operator)}
        return Proposal(name, base, notes, (), tuple(problems))
    pairs = [
        (_case(operator, geometry, accepted[0]), f"{name}{MARK}{probe.name}")
        for probe in PROBES
        if operator in probe.operators
    ]
    answers: dict[str, str] = {}
    for verdict in _asked(pairs, device, trusted):
        probe = verdict.implementation.rpartition(MARK)[2]
        answers[probe] = verdict.reason if verdict.status == "PASS" else f"{UNKNOWN}; {verdict.reason}"
        if verdict.status != "PASS":
            problems.append(f"{probe}: {verdict.reason}")
    fields, notes = _fields(answers)
    outputs = {v.case.dtype: _FORMATS.get(v.reason, v.reason) for v in taken if v.case.dtype in accepted}
    _output(operator, outputs, fields, notes)
    notes = {one: notes.get(one, _UNASKED) for one in base.as_dict() if concerns(one, operator)}
    return Proposal(name, replace(base, **fields), notes, accepted, tuple(problems))


def contradictions(declared: Contract, found: Proposal) -> tuple[str, ...]:
    """Settled fields that a declared contract denies.

    A promise of nothing is denied by nothing: ``undefined`` by no answer, "may differ" not by agreement, a coarser
    format of P not by a finer one.
    """
    return tuple(name for name in found.settled if not _allows(name, declared, found))


def _allows(name: str, declared: Contract, found: Proposal) -> bool:
    promised, seen = getattr(declared, name), getattr(found.contract, name)
    if promised in ("undefined", seen) or (promised is False and name in ("deterministic", "batch_invariant")):
        return True
    if name == "invalid_index":
        return (promised, seen) == ("negative-ignored", "ignored")
    if name == "probabilities":
        return UNIT_ROUNDOFF[seen or found.dtypes[0]] <= UNIT_ROUNDOFF[promised or found.dtypes[0]]
    return False


def judge(case: Case, name: str, device: str) -> Verdict:
    """One probe as a job of the pool: the answer is the reason of a PASS."""
    implementation, _, probe = name.rpartition(MARK)
    one = known.find(implementation)
    ask = ask_dtype if probe == "dtype" else next(p.ask for p in PROBES if p.name == probe)
    try:
        if probe not in ("dtype", "lse"):
            one = _held(one, case, device)
        return Verdict(
            case=case, implementation=name, status="PASS", reason=ask(one, case.geometry, case.dtype, device)
        )
    except Raised as raised:
        return Verdict(case=case, implementation=name, status="ERROR", reason=str(raised))


def _held(one: Implementation, case: Case, device: str) -> Implementation:
    """The implementation without its own contract's secrets: conventions as probed, nothing that excuses."""
    if one.operator not in ("dense_mha", "masked_mha", "sparse_mqa"):
        return one
    lse = next(p.ask for p in PROBES if p.name == "lse")(one, case.geometry, case.dtype, device).partition(";")[0]
    plain = Contract(probabilities=None, empty_out="undefined", empty_lse="undefined", output=one.contract.output)
    return replace(one, contract=contract_for_probing(plain, lse))


def _case(operator: str, geometry: str, dtype: str) -> Case:
    return case_of(operator, geometry, dtype, ((3, 2), (20, 9)))


def _asked(pairs: Sequence[tuple[Case, str]], device: str, trusted: bool) -> list[Verdict]:
    if trusted:
        return [judge(case, name, device) for case, name in pairs]
    return run(
        pairs,
        jobs=1,
        device=device,
        timeout=PATIENCE,
        judge=judge,
        confinement=Confinement.of(None, 1),
        on_result=lambda i, verdict: None,
    )


def _fields(answers: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Contract fields and notes from the answers."""
    fields: dict[str, Any] = {}
    notes: dict[str, str] = {}

    def put(name: str, value: Any, evidence: str) -> None:
        fields[name] = value
        notes[name] = evidence or "probed"

    for probe, told in answers.items():
        answer, _, evidence = (part.strip() for part in told.partition(";"))
        names = {
            "lse": ("lse_base",),
            "empty": ("empty_out", "empty_lse"),
            "invalid": ("invalid_index",),
            "duplicates": ("duplicates",),
            "causal": ("causal_alignment",),
            "short": ("topk_short",),
            "repeats": ("deterministic",),
            "batch": ("batch_invariant",),
            "probabilities": ("probabilities",),
        }[probe]
        if answer == UNKNOWN:
            notes |= dict.fromkeys(names, f"{UNKNOWN}: {evidence or 'it gave no answer that the probe knows'}")
        elif probe == "empty":
            out, lse = answer.split()
            put("empty_out", out, evidence)
            if lse != "none":
                put("empty_lse", lse, evidence)
        elif probe in ("repeats", "batch"):
            put(names[0], answer == "yes", evidence)
        else:
            put(names[0], None if answer == "none" else answer, evidence)
    return fields, notes


def _output(operator: str, outputs: dict[str, str], fields: dict[str, Any], notes: dict[str, str]) -> None:
    """The format of the output: that of the queries, or always the same."""
    if operator == "merge_lse" or not concerns("output", operator):
        return
    told = ", ".join(f"{given} gives {got}" for given, got in outputs.items())
    if operator != "indexer_scores" and all(given == got for given, got in outputs.items()):
        fields["output"], notes["output"] = None, told
    elif len(set(outputs.values())) == 1 and set(outputs.values()) <= set(_FORMATS.values()):
        fields["output"], notes["output"] = next(iter(outputs.values())), told
    else:
        notes["output"] = f"{UNKNOWN}: {told}"
