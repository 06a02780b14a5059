"""Settings and values that the tests of the protocol share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from signal_pair import Pair

settings.register_profile(
    "protocol",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("protocol")


@pytest.fixture
def pair() -> Pair:
    return Pair()
