"""LongCat-Video: `enable` replaces the dense branch of ``Attention._process_attn``, whatever kernel was configured for it.

    import vcattn.integrations.longcat as longcat
    longcat.enable(dit, recipe="vc8s")      # a loaded model, or its class Attention; longcat.disable(dit) undoes it
"""

from __future__ import annotations

from typing import Any

from vcattn import _stats
from vcattn._abi import UnsupportedError
from vcattn._attention import attention
from vcattn._core import check_recipe
from vcattn.integrations._host import check_parameters, needed

with needed("longcat", "pip install torch"):
    import torch

# Of _process_attn behind its wrapper for context parallelism.
PARAMETERS = ("self", "query", "key", "value", "shape")


def _classes(model: Any) -> set[type]:
    candidates = {model} if isinstance(model, type) else {type(module) for module in model.modules()}
    return {cls for cls in candidates if "_process_attn" in vars(cls)}


def enable(model: Any, recipe: str = "auto") -> None:
    """Serves self-attention of every class in `model` that has ``_process_attn(q, k, v, shape)`` with q, k, v [B, H, S, D].

    Block-sparse attention, queries fewer than keys (condition frames), and context parallelism go to the original.

    Raises
    ------
    UnsupportedError
        If there is no such method, or with other parameters.
    ValueError, TypeError
        If there is no such recipe.
    """
    check_recipe(recipe)
    classes = _classes(model)
    if not classes:
        raise UnsupportedError(f"longcat.enable needs a model with attention modules that have _process_attn; got {model!r:.80}")
    disable(model)
    for cls in classes:
        check_parameters(cls._process_attn, "_process_attn", PARAMETERS, "LongCat-Video")
    for cls in classes:
        cls._process_attn = _make(recipe, cls._process_attn)


def disable(model: Any) -> None:
    """Puts the originals back."""
    for cls in _classes(model):
        cls._process_attn = getattr(cls._process_attn, "original", cls._process_attn)


def _world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_available() and torch.distributed.is_initialized() else 1


def _make(recipe: str, original: Any) -> Any:
    def _process_attn(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: Any) -> torch.Tensor:
        reason = ("block-sparse" if getattr(self, "enable_bsa", False) and shape[0] > 1 else
                  "condition frames" if q.shape[2] != k.shape[2] else "context parallel" if _world_size() > 1 else None)  # fmt: skip
        if reason:
            _stats.count("bypass", f"longcat: {reason}")
            return original(self, q, k, v, shape)
        return attention(q, k, v, "HND", sm_scale=self.scale, recipe=recipe)

    _process_attn.original = original  # type: ignore[attr-defined]
    return _process_attn
