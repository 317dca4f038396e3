"""Attention "vcattn" of LightX2V, registered when this module is imported; in a configuration: ``"self_attn_1_type": "vcattn"``.

`register` adds a type with another recipe. Attention outside the library's table raises; choose another type for it in the configuration.
"""

from __future__ import annotations

from typing import Any

from vcattn._abi import UnsupportedError
from vcattn._attention import attention, attention_varlen
from vcattn._core import check_recipe
from vcattn._tensors import int32_array
from vcattn.integrations._host import needed

with needed("lightx2v", "pip install torch, and LightX2V as github.com/ModelTC/LightX2V describes it"):
    import torch
    from lightx2v.utils.registry_factory import ATTN_WEIGHT_REGISTER

# Of what LightX2V passes to every attention, what only its sparse kinds use, and which model calls.
_IGNORED = {"block_idx", "grid_sizes", "model_cls", "scheduler", "sol_morton_preordered"}


class VcattnWeight:
    """LightX2V's attention interface: q, k, v [L, H, D] or [B, L, H, D], result [B * L, H * D]."""

    recipe = "auto"

    def __init__(self, weight_name: str = ""):
        self.weight_name, self.config = weight_name, {}

    def apply(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, *, attn_mask: torch.Tensor | None = None,
              causal: bool = False, softmax_scale: float | None = None, **others: Any) -> torch.Tensor:  # fmt: skip
        """cu_seqlens: the sequences, one after another in the rows of all batch entries; later rows are padding, which gives 0. Those on
        a CUDA device are waited for, as by `vcattn.attention_varlen`.

        Raises UnsupportedError for keywords that vcattn does not know, unless they are None, False or 0.
        """
        for name in others.keys() - _IGNORED:
            value = others[name]
            if value is not None and not (isinstance(value, (bool, int, float)) and value == 0):
                raise UnsupportedError(f"{name}=0 or None required, since vcattn has no such option; got {name}={value!r:.80}; choose another "
                                       "attention type")  # fmt: skip
        options = {"is_causal": causal, "sm_scale": softmax_scale, "recipe": self.recipe}
        q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))
        if cu_seqlens_q is not None or cu_seqlens_kv is not None:
            if cu_seqlens_q is None or cu_seqlens_kv is None:
                raise ValueError("cu_seqlens_q and cu_seqlens_kv are needed together; got one of them")
            cu_q, cu_k = int32_array(cu_seqlens_q, "cu_seqlens_q"), int32_array(cu_seqlens_kv, "cu_seqlens_kv")
            whole = len(q) == 1 and cu_q.tolist() == [0, q.shape[1]] and cu_k.tolist() == [0, k.shape[1]]
            if not whole:
                if attn_mask is not None:
                    raise ValueError("cu_seqlens_q and attn_mask both say which keys are valid; pass one of them")
                return self._packed(q, k, v, cu_q, cu_k, max_seqlen_q, max_seqlen_kv, options)
        if attn_mask is not None:  # aligned at the last dimensions, as torch does it
            attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
        return attention(q, k, v, "NHD", attn_mask=attn_mask, **options).flatten(2).flatten(0, 1)

    @staticmethod
    def _packed(q, k, v, cu_q, cu_k, max_seqlen_q, max_seqlen_kv, options) -> torch.Tensor:
        batch = len(q)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        rows, keys = (int(cu[-1]) if len(cu) else 0 for cu in (cu_q, cu_k))
        if rows > len(q) or keys > len(k) or (batch > 1 and (rows, keys) != (len(q), len(k))):
            raise ValueError(f"cu_seqlens_q and cu_seqlens_kv must end at the number of rows, {len(q)} and {len(k)}, or before it with one batch "
                             f"entry; got {cu_q[:8].tolist()} and {cu_k[:8].tolist()} with {batch}")  # fmt: skip
        out = attention_varlen(q[:rows], k[:keys], v[:keys], cu_q, cu_k, max_seqlen_q, max_seqlen_kv, **options).flatten(1)
        return out if rows == len(q) else torch.nn.functional.pad(out, (0, 0, 0, len(q) - rows))

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
    ValueError, TypeError
        If there is no such recipe, or LightX2V has a type of that name itself.
    """
    check_recipe(recipe)
    if name in ATTN_WEIGHT_REGISTER and ATTN_WEIGHT_REGISTER[name].__module__ != __name__:
        raise ValueError(f"name must not be one of the types that LightX2V has itself; got {name!r}; choose another")
    ATTN_WEIGHT_REGISTER[name] = type("VcattnWeight", (VcattnWeight,), {"recipe": recipe})


register()
