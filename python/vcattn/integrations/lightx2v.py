"""Attention "vcattn" of LightX2V, registered when this module is imported; in a configuration: ``"self_attn_1_type": "vcattn"``.

`register` adds a type with another recipe. Attention outside the library's table raises; choose another type for it in the configuration.
"""

from __future__ import annotations

from typing import Any

import torch
from lightx2v.utils.registry_factory import ATTN_WEIGHT_REGISTER

from vcattn import _abi
from vcattn._attention import attention, attention_varlen


class VcattnWeight:
    """LightX2V's attention interface: q, k, v [L, H, D] or [B, L, H, D], result [B * L, H * D]."""

    recipe = "auto"

    def __init__(self, weight_name: str = ""):
        self.weight_name, self.config = weight_name, {}

    def apply(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, **kwargs: Any) -> torch.Tensor:  # fmt: skip
        if kwargs.get("drop_rate", 0) > 0:
            raise _abi.UnsupportedError(f"drop_rate=0 required, since vcattn has no dropout; got {kwargs['drop_rate']}; choose another attention type")
        mask = kwargs.get("attn_mask")
        options = {"is_causal": kwargs.get("causal", False), "sm_scale": kwargs.get("softmax_scale"), "recipe": self.recipe}
        if cu_seqlens_q is not None and len(cu_seqlens_q) > 2:
            if mask is not None:
                raise ValueError("cu_seqlens_q and attn_mask both say which keys are valid; pass one of them")
            q, k, v = (x.flatten(0, -3) for x in (q, k, v))
            return attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, **options).flatten(1)
        q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))
        return attention(q, k, v, "NHD", attn_mask=mask, **options).flatten(2).flatten(0, 1)

    def apply_with_lse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None) -> Any:
        """As `apply`, and lse [B * L, H]."""
        q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))
        out, lse = attention(q, k, v, "NHD", sm_scale=softmax_scale, return_lse=True, recipe=self.recipe)
        return out.flatten(2).flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)

    def set_config(self, config: dict[str, Any] | None = None) -> None:
        if config is not None:
            self.config = config

    # There are no weights.
    def load(self, weight_dict: Any) -> None: ...
    def to_cpu(self, non_blocking: bool = False) -> None: ...
    def to_cuda(self, non_blocking: bool = False) -> None: ...
    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        return {} if destination is None else destination

    def load_state_dict(self, destination: Any, block_index: int, adapter_block_index: int | None = None) -> dict[str, Any]:
        return {}

    def load_state_dict_from_disk(self, block_index: int, adapter_block_index: int | None = None) -> None: ...


def register(name: str = "vcattn", recipe: str = "auto") -> None:
    """Adds an attention type, of which each layer has an instance of its own; again with the same name replaces it.

    Parameters
    ----------
    name
        What a configuration calls it, as in ``"self_attn_1_type": name``.
    recipe
        As for `vcattn.attention`.

    Raises
    ------
    ValueError
        If there is no such recipe.
    """
    _abi.options(recipe)
    ATTN_WEIGHT_REGISTER[name] = type("VcattnWeight", (VcattnWeight,), {"recipe": recipe})


register()
