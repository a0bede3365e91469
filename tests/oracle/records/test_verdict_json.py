"""A verdict comes back from its JSON record as it was."""

import json
from dataclasses import fields, replace

from attnoracle.oracle.records.verdict_json import parse_verdict, verdict_record
from attnoracle.oracle.reports.json_report import dumps
from attnoracle.oracle.verdict import Finding


def test_a_verdict_survives_its_record(failure):
    told = failure.findings[0]
    known = replace(told, convention="lse-base", where=told.where or "heads 1", p_value=1e-9)
    verdict = replace(failure, findings=(known, *failure.findings[1:]), error_map=((1.0, 2.0),), origin="--geometry x")
    assert all(getattr(known, one.name) not in ("", None) for one in fields(Finding)), "a field that is left out shows"
    text = dumps(verdict_record(verdict))
    back = parse_verdict(json.loads(text))
    assert back.findings == verdict.findings
    assert dumps(verdict_record(back)) == text
