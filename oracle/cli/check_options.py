"""What ``attnoracle check`` takes, and which options do not go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..case import Case
from ..errors import BadInput
from ..fleet.confinement import TIMEOUT
from ..guests.known import TOO_SLOW
from ..records.history import check_target as check_history
from ..records.ledger import Known
from ..records.ledger import read as read_ledger
from . import causes, options
from .groups import Where, Which
from .judging import Documents
from .properties import refuse
from .selection import among_all, named_cases, suite_cases


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is left behind beside what people read."""

    documents: Documents
    bundles: Path | None
    ledger: tuple[Known, ...]
    history: str | None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options, each a field."""

    which: Which
    suite: options.SuiteName = options.Suite.quick
    case: options.CaseIds = None
    where: Where
    per_device: options.PerDevice = False
    timeout: options.Timeout = None
    isolate: options.Isolate = False
    memory: options.Memory = None
    resume: options.Resume = None
    seed: options.Seed = 0
    json: options.Json = None
    junit: options.JUnit = None
    bundle: options.BundleFolder = None
    diagnose: options.Diagnose = False
    markdown: options.Markdown = None
    html: options.Html = None
    known: options.KnownFile = None
    history: options.History = None
    properties: options.Properties = False
    sanitize: options.Sanitize = False
    list_: options.List = False
    quiet: options.Quiet = False

    @property
    def otherwise(self) -> bool:
        """Whether something else than the differential check is wanted."""
        return self.properties or self.sanitize

    @property
    def too_slow(self) -> tuple[str, ...]:
        """Implementations that are left out unless named."""
        return TOO_SLOW if self.suite == options.Suite.quick and not self.case else ()

    def check_together(self) -> None:
        """Raises BadInput for options that do not go together."""
        if self.otherwise:
            self._check_otherwise()
        elif self.list_:
            names = ("json", "junit", "markdown", "html", "history", "resume", "bundle", "diagnose", "known")
            refuse("--list", {name: getattr(self, name) for name in names}, "it only prints ids")
        if self.memory is not None and not self.isolate:
            raise BadInput(f"--memory {self.memory:g}: goes with --isolate")

    def _check_otherwise(self) -> None:
        names = ("isolate", "memory", "resume", "junit", "bundle", "diagnose", "markdown", "html", "known", "history")
        given = {"jobs": self.where.jobs} | {name: getattr(self, name) for name in names}
        given |= {"suite": self.suite != options.Suite.quick}
        if self.properties:
            given |= {"timeout": self.timeout}
        else:
            given |= {"impl": self.which.impl, "list": self.list_, "geometry": self.which.geometry}
        given |= {"sanitize": self.properties and self.sanitize}
        given |= {"engine": self.where.engine != options.EngineName.local}
        refuse("--properties" if self.properties else "--sanitize", given)

    def limit(self) -> float | None:
        """Seconds for one check. Raises BadInput for NaN."""
        return options.seconds(self.timeout) or (TIMEOUT if self.isolate else None)

    def outputs(self) -> Outputs:
        """Raises BadInput where one could not be written or read, before the work is done."""
        bundles = causes.check_folder(self.bundle)
        documents = Documents(self.json, self.junit, self.markdown, self.html)
        ledger = read_ledger(self.known) if self.known else ()
        history = str(Path(self.history).absolute()) if self.history else None
        if history:
            check_history(history)
        return Outputs(documents, bundles, ledger, history)

    def cases(self, geometries: Sequence[str]) -> tuple[Case, ...]:
        """The cases named, or the suite's."""
        if not self.case:
            return suite_cases(self.suite, self.seed, geometries)
        return among_all(named_cases(self.case, suggestions=lambda: suite_cases(self.suite, self.seed, ())), geometries)
