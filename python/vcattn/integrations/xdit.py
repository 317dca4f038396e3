"""Attention of xDiT: `use` puts vcattn in the place of one of its backends.

xDiT's backends are a closed enumeration, and its start-up checks and command line know the members by name; taking the place of one needs
no patch of either.

    from xfuser.core.distributed.attention_backend import AttentionBackendType
    import vcattn.integrations.xdit as xdit
    xdit.use(AttentionBackendType.SDPA)     # and run with --attention_backend SDPA
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vcattn import _stats
from vcattn._abi import UnsupportedError
from vcattn._attention import attention
from vcattn._core import check_recipe
from vcattn.integrations._host import needed

with needed("xdit", "pip install torch xfuser"):
    import torch
    from xfuser.core.distributed.attention_backend import ATTENTION_FUNCTION_REGISTRY

# What else xDiT passes: the same key padding as attn_mask in another form, and settings of block-sparse attention, which Wan's models pass to
# every backend and which those that are not sparse ignore.
_PACKED_KEYS = {"indices_k", "cu_seqlens_k", "max_seqlen_k"}
_OF_SPARSE_BACKENDS = {"thw", "encoder_sequence_length", "spargeattn_simthreshold", "spargeattn_cdfthreshold", "spargeattn_reorder_sequence",
                       "use_spargeattn_static_block_mask"}  # fmt: skip


def make(recipe: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """xDiT's attention function: q, k, v [B, H, S, D]; (out, lse [B, H, S])."""

    def vcattn_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool,
                         attention_kwargs: dict[str, Any] | None = None) -> Any:  # fmt: skip
        options = dict(attention_kwargs or {})
        mask = options.pop("attn_mask", None)
        reason = ("cross-attention" if query.shape[2] != key.shape[2] else "dropout" if dropout_p > 0 else
                  "packed keys" if mask is None and options.get("indices_k") is not None else None)  # fmt: skip
        if reason:
            _stats.count("bypass", f"xdit: {reason}")
            return original(query, key, value, dropout_p, is_causal, attention_kwargs)
        unknown = sorted(name for name in options.keys() - _PACKED_KEYS - _OF_SPARSE_BACKENDS if options[name] is not None)
        if unknown:
            raise UnsupportedError(f"attention_kwargs must be among attn_mask, {', '.join(sorted(_PACKED_KEYS))}; got {', '.join(unknown)} as well, "
                                   "which vcattn does not know; choose another backend for this model")  # fmt: skip
        if mask is not None:  # aligned at the last dimensions, as torch does it
            mask = mask[(None,) * (4 - mask.ndim)]
        return attention(query, key, value, "HND", is_causal, return_lse=True, recipe=recipe, attn_mask=mask)

    vcattn_attention.original = original  # type: ignore[attr-defined]
    return vcattn_attention


def use(backend: Any, recipe: str = "auto") -> None:
    """Serves xDiT's `backend` (a member of AttentionBackendType); what is bypassed goes to what was there. `restore` undoes it.

    Raises
    ------
    ValueError, TypeError
        If xDiT has not registered the backend, or there is no such recipe.
    """
    check_recipe(recipe)
    if backend not in ATTENTION_FUNCTION_REGISTRY:
        raise ValueError(f"backend must be one that xDiT has registered here; got {backend!r}")
    restore(backend)
    ATTENTION_FUNCTION_REGISTRY[backend] = make(recipe, ATTENTION_FUNCTION_REGISTRY[backend])


def restore(backend: Any) -> None:
    current = ATTENTION_FUNCTION_REGISTRY[backend]
    ATTENTION_FUNCTION_REGISTRY[backend] = getattr(current, "original", current)
