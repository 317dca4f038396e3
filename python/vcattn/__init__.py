"""vcattn: attention of video diffusion transformers with 8-bit and 4-bit tensors, for numpy arrays and torch tensors.

>>> import numpy as np, vcattn
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 256, 64), dtype=np.float32)
>>> vcattn.attention(q, k, v).shape
(1, 2, 256, 64)

Imports without torch and without CUDA; torch operators are registered at the first call with torch tensors, or by `vcattn.register_torch()`.
"""

from __future__ import annotations

from typing import Any

from vcattn import _abi, compat
from vcattn._abi import RECIPES, NonFiniteError, UnsupportedError
from vcattn._attention import attention, attention_prepared, attention_varlen, prepare, supports
from vcattn._audit import Audit, audit
from vcattn._config import config, show_config
from vcattn._core import Prepared
from vcattn._stats import reset_stats, stats
from vcattn.grouping import GroupingState

__version__ = _abi.version()
__all__ = ["RECIPES", "Audit", "GroupingState", "NonFiniteError", "Prepared", "UnsupportedError", "attention", "attention_prepared",
           "attention_varlen", "audit", "compat", "config", "prepare", "register_torch", "reset_stats", "session", "show_config", "stats",
           "supports"]  # fmt: skip


def register_torch() -> None:
    """Registers `torch.ops.vcattn.*`; needed only before a graph that was exported with them is loaded."""
    from vcattn import _torch  # noqa: F401


def session(pipe: Any, num_inference_steps: int, **options: Any) -> Any:
    """Drives the grouping schedule of a diffusers pipeline; see `vcattn.integrations.diffusers.session`."""
    from vcattn.integrations import diffusers

    return diffusers.session(pipe, num_inference_steps, **options)
