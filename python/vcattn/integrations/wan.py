"""The official Wan repositories: `enable` replaces ``flash_attention`` in the modules that imported it by name.

    import vcattn.integrations.wan as wan
    wan.enable(recipe="vc8s")       # after importing wan's pipelines, or before; wan.disable() undoes it
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vcattn import _stats
from vcattn._attention import attention
from vcattn._core import check_recipe
from vcattn.integrations._host import check_parameters, needed

with needed("wan", "pip install torch"):
    import torch

# Parameters of wan.modules.attention.flash_attention that the replacement was written for.
PARAMETERS = ("q", "k", "v", "q_lens", "k_lens", "dropout_p", "softmax_scale", "q_scale", "causal", "window_size", "deterministic", "dtype", "version")


def make(recipe: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_lens: Any = None, k_lens: Any = None, dropout_p: float = 0.0,
                        softmax_scale: float | None = None, q_scale: float | None = None, causal: bool = False,
                        window_size: tuple[int, int] = (-1, -1), deterministic: bool = False, dtype: torch.dtype = torch.bfloat16,
                        version: int | None = None) -> torch.Tensor:  # fmt: skip
        """q [B, Lq, H, D], k and v [B, Lk, Hkv, D]. Self-attention is served; q and k may be FP32 and v BF16."""
        reason = ("cross-attention" if q.shape[1] != k.shape[1] else "dropout" if dropout_p > 0 else
                  "window" if tuple(window_size) != (-1, -1) else "query lengths" if q_lens is not None else
                  "causal with key lengths" if causal and k_lens is not None else None)  # fmt: skip
        if reason:
            _stats.count("bypass", f"wan: {reason}")
            return original(q, k, v, q_lens, k_lens, dropout_p, softmax_scale, q_scale, causal, window_size, deterministic, dtype, version)
        scale = softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
        return attention(q, k, v, "NHD", causal, scale * (1 if q_scale is None else q_scale), recipe=recipe, seqused_k=k_lens)

    flash_attention.original = original  # type: ignore[attr-defined]
    return flash_attention


def _holders() -> list[Any]:
    return [module for name, module in list(sys.modules.items())
            if name.split(".")[0] == "wan" and callable(getattr(module, "flash_attention", None))]  # fmt: skip


def enable(recipe: str = "auto") -> None:
    """Replaces ``flash_attention`` in every loaded module of the package ``wan``.

    Raises
    ------
    UnsupportedError
        If its parameters are not those that this was written for.
    ValueError, TypeError
        If there is no such recipe.
    ImportError
        If there is no package ``wan``.
    """
    check_recipe(recipe)
    with needed("wan", "put a checkout of github.com/Wan-Video/Wan2.2 (or Wan2.1) and what it requires on the path of Python"):
        import wan.modules.attention as home
    disable()
    check_parameters(home.flash_attention, "wan.modules.attention.flash_attention", PARAMETERS, "Wan")
    original, replacement = home.flash_attention, make(recipe, home.flash_attention)
    for module in _holders():
        if module.flash_attention is original:  # else it is another function of that name
            module.flash_attention = replacement


def disable() -> None:
    """Puts the original back."""
    for module in _holders():
        module.flash_attention = getattr(module.flash_attention, "original", module.flash_attention)
