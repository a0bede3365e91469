"""Calls of shipped, simulated and faulty kernels on the small cases of the properties."""

import pytest

from attnoracle.oracle.faults import fault
from attnoracle.oracle.guests import known
from attnoracle.oracle.properties.call import Call
from attnoracle.oracle.properties.cases import property_cases
from attnoracle.oracle.properties.run import tried
from attnoracle.oracle.properties.table import property_named


@pytest.fixture
def outcome():
    """(property, implementation or ``fault:NAME``, which small case) to what became of it."""

    def run(name, subject, which=0):
        planted = subject.removeprefix("fault:")
        one = fault(planted).implementation() if planted != subject else known.find(subject)
        return tried(property_named(name), Call(property_cases(one.operator)[which], one, "cpu"))

    return run
