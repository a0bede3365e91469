"""Hypothesis draws the same examples every time unless HYPOTHESIS_PROFILE=nightly asks for others."""

from attnoracle.oracle.strategies import use_profile

use_profile()
