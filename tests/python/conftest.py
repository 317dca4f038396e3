"""Common to all Python tests. Nothing here, nor in core/, needs torch."""

import numpy as np
import pytest

import vcattn


@pytest.fixture(autouse=True)
def fresh_counters():
    vcattn.reset_stats()


@pytest.fixture
def rng():
    return np.random.default_rng(1)
