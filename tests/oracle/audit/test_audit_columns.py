"""Every check has a column of its own in the kill matrix."""

from attnoracle.oracle.audit.result import KILLERS
from attnoracle.oracle.faults import CHECKS
from attnoracle.oracle.reports.audit_report import _SHORT


def test_every_check_that_can_kill_has_a_column():
    assert set(KILLERS) == set(_SHORT)
    assert set(CHECKS) <= set(KILLERS) and len(set(_SHORT.values())) == len(_SHORT)
