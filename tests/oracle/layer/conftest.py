from __future__ import annotations

from collections.abc import Callable

import pytest

from attnoracle.oracle.layer.small import DEPLOYMENT, small_rules
from attnoracle.reference.routing import Deployment, Rules


@pytest.fixture
def rules() -> Rules:
    return small_rules()


@pytest.fixture
def versions() -> Callable[[str], Rules]:
    """Rules of any version at the tiny sizes."""
    return small_rules


@pytest.fixture
def deployment() -> Deployment:
    return DEPLOYMENT
