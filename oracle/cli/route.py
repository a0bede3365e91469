"""``attnoracle route``: what a batch runs as and why, over lengths and between versions; and what a table is worth."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import BadInput
from . import options
from . import route_options as own
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ...reference.routing import Batch, Deployment, Rules

_NEWEST, _MODEL = "vllm-0.33", "glm-5.2"


def route(
    context: typer.Context,
    batch: own.BatchText = None,
    q: own.Query = None,
    cached: own.Context = None,
    geometry: own.GeometryName = None,
    rules: own.RulesName = None,
    provider: own.Provider = "flash-attention",
    backend: own.Backend = None,
    tp: own.TensorParallel = 4,
    sm: own.Family = 100,
    cache: own.CacheName = own.Cache.model,
    wrapper: own.WrapperName = own.Wrapper.fused,
    layer: own.LayerName = own.Kind.full,
    mode: own.ModeName = own.Graph.NONE,
    force_mqa: own.ForceMqa = False,
    speculative: own.Speculative = 0,
    dcp: own.Dcp = 1,
    pcp: own.Pcp = 1,
    max_num_seqs: own.MaxSeqs = 256,
    max_model_len: own.MaxLength = 131072,
    sweep: own.Sweep = False,
    png: own.Png = None,
    diff: own.Diff = None,
    hold: own.Hold = None,
    audit: own.Audit = False,
    whole: own.All = False,
    prefills: own.Prefills = None,
    workspace_mib: own.WorkspaceMib = None,
    json: options.Json = None,
) -> None:
    """Explain the route of a batch, map it, compare rule versions, audit a policy table, or hold a router to it."""
    given = bool(batch or q or cached)
    _one_question(given, sweep, diff, audit, hold, png, rules, whole=whole)
    check_target("--json", json)
    check_target("--png", png)
    request = _Request(["attnoracle", *context.obj], json)
    if audit:
        request.audit(rules, geometry, tuple(prefills or (1, 2, 4, 8)), workspace_mib, whole=whole)
        return
    from ..reports.route_report import heading
    from ..routes.setup import make_deployment

    model = geometry or _MODEL
    versions = [_rules(name, workspace_mib) for name in diff or (rules or _NEWEST,)]
    places: dict[str, Any] = {"backend": backend, "tensor_parallel": tp, "family": sm, "cache": cache.value}
    switches = {"provider": provider, "wrapper": wrapper.value, "force_mqa": force_mqa, "dcp": dcp, "pcp": pcp}
    sizes = {"speculative_tokens": speculative, "max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
    deployment = make_deployment(versions, model, **(places | switches | sizes))
    request.title = heading(deployment, model, *versions)
    if diff:
        request.compare(versions[0], versions[1], deployment)
    elif hold:
        request.hold(hold, versions[0], deployment)
    elif sweep:
        request.sweep(versions[0], deployment, (prefills or [1])[0], png)
    else:
        request.explain(versions[0], deployment, _batch(batch, q, cached), layer.value, mode.value)


def _one_question(
    given: bool,
    sweep: bool,
    diff: object,
    audit: bool,
    hold: str | None,
    png: str | None,
    rules: str | None,
    *,
    whole: bool,
) -> None:
    asked = [name for name, on in (("--sweep", sweep), ("--diff", diff), ("--audit", audit), ("--hold", hold)) if on]
    asked += ["a batch"] * (given and bool(asked))
    if len(asked) > 1:
        raise BadInput(f"route: expected a batch or one of --sweep, --diff, --audit, --hold, got {' and '.join(asked)}")
    if not asked and not given:
        raise BadInput("route: expected a batch such as 8q1s2k_2q512s4k, or --q, or --sweep, --diff, --audit or --hold")
    if diff and rules:
        raise BadInput(f"--rules {rules}: expected none beside --diff, which names both versions")
    if whole and not audit:
        raise BadInput("--all: expected --audit beside it, got none; it shows the rows that a file inherits")
    if png and not sweep:
        raise BadInput("--png: expected --sweep beside it, got none; it draws the map")


def _batch(text: str | None, q: list[str] | None, cached: list[str] | None) -> Batch:
    from ..routes.grammar import batch_of_lengths, parse_batch

    if text and (q or cached):
        raise BadInput(f"route: expected a batch or --q and --context, got {text!r} and those")
    return parse_batch(text) if text else batch_of_lengths(q or (), cached or ())


def _rules(name: str, workspace_mib: int | None) -> Rules:
    from ..routes.setup import rules_named

    return _resized(rules_named(name), workspace_mib)


def _audited(name: str | None, workspace_mib: int | None) -> list[tuple[Rules, list[tuple[str, str]]]]:
    """Rules and the rows that their file has twice; without a name every shipped version."""
    from ..policies import read_rules, rule_versions
    from ..routes.setup import is_file_name

    if name is None:
        return [(_rules(version, workspace_mib), []) for version in rule_versions()]
    if not is_file_name(name):
        return [(_rules(name, workspace_mib), [])]
    faults: list[tuple[str, str]] = []
    return [(_resized(read_rules(Path(name), faults=faults), workspace_mib), faults)]


def _own_groups(name: str | None) -> frozenset[str]:
    """The table rows that a file has itself, as findings name them; empty for shipped versions."""
    from ..policies import own_tables
    from ..routes.intervals import group_name
    from ..routes.setup import is_file_name

    if name is None or not is_file_name(name):
        return frozenset()
    return frozenset(map(group_name, own_tables(Path(name))))


def _resized(rules: Rules, workspace_mib: int | None) -> Rules:
    if workspace_mib is None or rules.mask_workspace is None:
        return rules
    return replace(rules, mask_workspace=replace(rules.mask_workspace, max_bytes=workspace_mib << 20))


class _Request:
    """One question: answers it, prints for people and writes the document."""

    def __init__(self, command: list[str], json: str | None) -> None:
        self.command, self.json = command, json
        self.title: Any = None

    def answer(self, summary: dict[str, Any], **lists: Any) -> Any:
        """Write the document and return the console for people."""
        from ..environment import environment
        from ..reports.json_report import document, dumps

        write(self.json, lambda: dumps(document("route", self.command, environment(), summary, **lists)))
        people = console(stderr=self.json == "-")
        if self.title is not None:
            people.print(self.title)
        return people

    def explain(self, rules: Rules, deployment: Deployment, batch: Batch, kind: Any, mode: Any) -> None:
        from ..reports.route_report import print_explanation
        from ..routes.explain import explain

        found = explain(rules, deployment, batch, kind=kind, mode=mode)
        summary = {"route": found.route, "runs": found.runs, "skip": found.skip, "hazards": len(found.hazards)}
        print_explanation(self.answer(summary, routes=[found.as_dict()]), found)
        raise typer.Exit(1 if found.hazards else 0)

    def sweep(self, rules: Rules, deployment: Deployment, prefills: int, png: str | None) -> None:
        from ..reports.route_picture import draw, require_matplotlib
        from ..reports.route_report import print_map
        from ..routes.sweep import sweep

        if png:
            require_matplotlib()
        width = max(1, (console().width - 9) // 3)
        found = sweep(rules, deployment, prefills=prefills, columns=width)
        people = self.answer({"hazard": "!" in found.used}, routes=[found.as_dict()])
        print_map(people, found)
        if png:
            draw(found, str(self.title), Path(png))
        raise typer.Exit(1 if "!" in found.used else 0)

    def hold(self, target: str, rules: Rules, deployment: Deployment) -> None:
        from ..guests.target import resolve
        from ..reports.route_hold_report import finding, print_held
        from ..routes.hold import hold

        found = hold(resolve(target), rules, deployment)
        summary = {"router": target, "batches": found.batches, "differ": found.wrong}
        print_held(self.answer(summary, findings=[finding(each) for each in found.differences]), found)
        raise typer.Exit(1 if found.wrong else 0)

    def compare(self, before: Rules, after: Rules, deployment: Deployment) -> None:
        from ..reports.route_report import print_comparison
        from ..routes.diff import compare

        found = compare(before, after, deployment)
        settings = [{"name": name, "before": old, "after": new} for name, old, new in found.settings]
        summary = {"rules": [before.name, after.name], "changes": len(found.changes), "settings": settings}
        summary["closed"] = [[asdict(each) for each in version] for version in found.closed]
        print_comparison(self.answer(summary, routes=found.as_list()), found, (before.name, after.name))

    def audit(
        self,
        rules: str | None,
        geometry: str | None,
        prefills: tuple[int, ...],
        workspace_mib: int | None,
        *,
        whole: bool,
    ) -> None:
        """``whole``: the rows that a file inherits are shown as its own are."""
        from ..config import load
        from ..reports.route_audit_report import boundaries_json, findings_json, print_audit
        from ..routes.audit import audit_rules, merge

        model = load(geometry) if geometry else None
        dims = (model.qk_head_dim, model.v_head_dim) if model else None
        audits = [
            audit_rules(version, prefills, faults=faults, head_dims=dims)
            for version, faults in _audited(rules, workspace_mib)
        ]
        found = merge(audits)
        levels = [finding.level for finding in found]
        summary = {level: levels.count(level) for level in ("error", "warning", "note")}
        people = self.answer(summary, findings=findings_json(found), boundaries=boundaries_json(audits))
        print_audit(people, audits, found, own=None if whole else _own_groups(rules))
        raise typer.Exit(1 if summary["error"] else 0)
