"""What an audit found: faults and their killers, right kernels and their rejections, and the figures that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import special

from ..case import Case
from ..faults import FAULTS, VERDICTS, Fault
from ..properties.table import PROPERTIES
from ..suites import suite
from ..verdict import Status, Verdict
from .state_faults import Played, counted
from .trial import FAULT

#: Every check that can kill, in the order in which ``check`` comes to them; ``error``: the kernel raised or crashed.
KILLERS = (
    "structure", "memory", "rerun", "element", "row", "query", "head", "column", "global", "bias", "lse", "topk",
    "exact", "sequence", "error",
)  # fmt: skip
#: The same, and the properties behind them.
ORDER = (*KILLERS, *(one.name for one in PROPERTIES))
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of one job."""

    name: str
    case: str
    status: Status
    reason: str
    checks: tuple[str, ...]
    cases: int
    """Cases tried; 1 for a right kernel."""
    seconds: float

    @classmethod
    def of(cls, verdict: Verdict) -> Outcome:
        checks = tuple(dict.fromkeys(finding.check for finding in verdict.findings))
        if verdict.status == "ERROR":
            checks = (*checks, "error")
        return cls(
            name=verdict.implementation,
            case=verdict.case.id,
            status=verdict.status,
            reason=verdict.reason,
            checks=tuple(sorted(checks, key=ORDER.index)),
            cases=int(verdict.measures.get("cases", 1)),
            seconds=round(verdict.seconds, 4),
        )

    @property
    def key(self) -> str:
        return self.name if self.name.startswith(FAULT) else f"{self.name} {self.case}"

    @property
    def bad(self) -> bool:
        return self.status in ("FAIL", "ERROR")

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Outcome:
        """Raises KeyError or TypeError for what is no record of one."""
        Case.parse(record["case"])
        return cls(**{**record, "checks": tuple(record["checks"])})


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault and what became of it."""

    fault: Fault
    outcome: Outcome

    @property
    def killed(self) -> bool:
        return self.outcome.bad

    @property
    def survived(self) -> bool:
        return not self.outcome.bad and self.outcome.status != "UNSUPPORTED"

    @property
    def sole_killer(self) -> str | None:
        """The one check that fired, if it was one."""
        return self.outcome.checks[0] if self.killed and len(self.outcome.checks) == 1 else None


def upper_bound(rejected: int, runs: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson bound on a chance of which ``rejected`` of ``runs`` independent trials came true."""
    if rejected >= runs:
        return 1.0
    return float(special.betaincinv(rejected + 1, runs - rejected, confidence))


@dataclass(frozen=True, slots=True)
class Audit:
    """All outcomes, counted."""

    trials: tuple[Trial, ...]
    runs: tuple[Outcome, ...]
    """Of right kernels."""
    seconds: float
    seed: int = 0
    played: tuple[Played, ...] = ()
    """Faults of layers and graphs; none unless the whole catalogue is audited."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], seconds: float, seed: int = 0, played: tuple[Played, ...] = ()) -> Audit:
        by_name = {FAULT + fault.name: fault for fault in FAULTS}
        trials = tuple(Trial(by_name[one.name], one) for one in outcomes if one.name in by_name)
        runs = tuple(one for one in outcomes if not one.name.startswith(FAULT) and one.status != "UNSUPPORTED")
        return cls(trials, runs, seconds, seed, played)

    @property
    def survivors(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.survived)

    @property
    def not_run(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.outcome.status == "UNSUPPORTED")

    @property
    def rejections(self) -> tuple[Outcome, ...]:
        return tuple(run for run in self.runs if run.bad)

    @property
    def exit_code(self) -> int:
        """1 with a survivor or a rejected right kernel; 2 if nothing ran; else 0."""
        if self.survivors or self.rejections or not all(one.killed for one in self.played):
            return 1
        return 0 if len(self.trials) > len(self.not_run) or self.runs else 2

    def kills(self) -> Counter[str]:
        """How many faults each check fired on."""
        return Counter(check for trial in self.trials if trial.killed for check in trial.outcome.checks)

    def sole(self) -> Counter[str]:
        """How many faults each check alone fired on."""
        return Counter(trial.sole_killer for trial in self.trials if trial.sole_killer)

    def never_sole(self) -> tuple[str, ...]:
        """Checks without which every fault of this audit would still have died."""
        sole = self.sole()
        return tuple(check for check in KILLERS if check != "error" and not sole[check])

    def missed(self) -> dict[str, int]:
        """How many of these faults each verdict in use elsewhere accepts."""
        return {verdict: sum(verdict in trial.fault.escapes for trial in self.trials) for verdict in VERDICTS}

    def outside_suite(self) -> int:
        """Killed faults whose first killing case had to be made for them: no case of the quick suite has its like."""
        known = {case.with_seed(0) for case in suite("quick", self.seed)}
        return sum(trial.killed and Case.parse(trial.outcome.case).with_seed(0) not in known for trial in self.trials)

    def counts(self) -> dict[str, Any]:
        """How many faults there were, and what became of them."""
        ran = len(self.trials) - len(self.not_run)
        killed = ran - len(self.survivors)
        return {
            "faults": len(self.trials),
            "killed": killed,
            "survived": len(self.survivors),
            "not_run": len(self.not_run),
            "kill_rate": killed / ran if ran else None,
        }

    def summary(self) -> dict[str, Any]:
        kills, sole = self.kills(), self.sole()
        runs, alarms = len(self.runs), len(self.rejections)
        return {
            **self.counts(),
            "killed_outside_suite": self.outside_suite(),
            "kills": {check: kills[check] for check in KILLERS if kills[check]},
            "sole_kills": {check: sole[check] for check in KILLERS if sole[check]},
            "checks_never_needed": list(self.never_sole()),
            "good_runs": runs,
            "false_alarms": alarms,
            "false_alarm_upper_bound": upper_bound(alarms, runs) if runs else None,
            "confidence": CONFIDENCE,
            "missed_by_other_verdicts": self.missed(),
            **({"state_faults": counted(self.played)} if self.played else {}),
            "seconds": round(self.seconds, 1),
            "exit_code": self.exit_code,
        }
