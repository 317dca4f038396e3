"""Tests of tensors on a CUDA device, by `python -m pytest tests/python/gpu`. Skipped without one; an error with VCATTN_REQUIRE_CUDA=1."""

import os

import pytest
import torch

from vcattn import _abi


def why_not():
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    available, reason = _abi.answer("cuda_available")
    return "" if available else reason


@pytest.fixture(autouse=True, scope="session")
def device():
    if reason := why_not():
        assert os.environ.get("VCATTN_REQUIRE_CUDA") != "1", reason
        pytest.skip(reason)
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def seed(device):
    torch.manual_seed(1)
