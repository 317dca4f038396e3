"""torch operators `torch.ops.vcattn.*`, so that torch.compile sees one opaque call with known outputs. Imported with the first torch tensor.

Schemas are written out, since their inference differs between releases of torch. The operators have no gradient: torch refuses a backward
pass through them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from vcattn import _abi, _core, _stats, _tensors
from vcattn._core import Request
from vcattn.grouping import live_state

_REQUEST = ("str tensor_layout, bool is_causal, float? sm_scale, str recipe, Tensor? attn_mask, Tensor? seqused_k, int state, str fallback, "
            "bool return_lse")  # fmt: skip


def _fake_lse(q: torch.Tensor, layout: str, wanted: bool) -> torch.Tensor:
    return _tensors.empty(q, _tensors.lse_shape(q.shape, layout) if wanted else (0,))


def _or_empty(lse: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    """What an operator gives, which cannot be None."""
    return _tensors.empty(q, (0,)) if lse is None else lse


def _compute(q, k, v, given, layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse) -> Any:
    """(out, lse), without lse (None). given: what to write to instead of a new tensor."""
    try:
        request = Request(q, k, v, layout, is_causal=is_causal, sm_scale=sm_scale, recipe=recipe, attn_mask=attn_mask, seqused_k=seqused_k,
                          state=state)  # fmt: skip
        return request.run(given, return_lse)
    except _abi.UnsupportedError as error:
        if fallback != "sdpa":
            raise
        if return_lse:
            raise _abi.UnsupportedError(f"{error} (fallback='sdpa' cannot help: it gives no lse)") from error
        if given is not None:
            _core.check_out(given, q, _tensors.device_of(q, "q"))
        out = torch.empty_like(q) if given is None else given
        try:
            out.copy_(_sdpa(q, k, v, layout, is_causal, sm_scale, attn_mask, seqused_k))
        except RuntimeError as refusal:  # what torch does not take either
            raise _abi.UnsupportedError(f"{error} (fallback='sdpa' cannot help: {str(refusal).splitlines()[0]})") from error
        _stats.count_fallback(f"sdpa: {error}")
        return out, None


def _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse) -> Any:
    request = _core.varlen_request(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe)
    return request.run(None, return_lse)


def _sdpa(q, k, v, layout, is_causal, sm_scale, attn_mask, seqused_k) -> torch.Tensor:
    if layout == "NHD":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if is_causal and q.shape[2] != k.shape[2]:
        raise _abi.UnsupportedError("fallback='sdpa' aligns a causal mask at the top left; Sq == Sk is required, got "
                                    f"{q.shape[2]} and {k.shape[2]}")  # fmt: skip
    if seqused_k is not None:
        attn_mask = torch.arange(k.shape[2], device=q.device) < _as_tensor(seqused_k).to(q.device)[:, None]
    if attn_mask is not None and attn_mask.ndim == 2:
        attn_mask = attn_mask[:, None, None, :]
    if attn_mask is not None and is_causal:  # torch takes one of them
        earlier = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        attn_mask = attn_mask & earlier if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~earlier, float("-inf"))
        is_causal = False
    out = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), attn_mask=attn_mask, is_causal=is_causal, scale=sm_scale,
                                         enable_gqa=q.shape[1] != k.shape[1])  # fmt: skip
    return out.transpose(1, 2) if layout == "NHD" else out


@torch.library.custom_op("vcattn::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_REQUEST}) -> (Tensor, Tensor)")
def _attention(q, k, v, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    out, lse = _compute(q, k, v, None, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, live_state(state), fallback, return_lse)
    return out, _or_empty(lse, q)


@_attention.register_fake
def _(q, k, v, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    return torch.empty_like(q), _fake_lse(q, tensor_layout, return_lse)


@torch.library.custom_op("vcattn::attention_out", mutates_args=("out",),
                         schema=f"(Tensor q, Tensor k, Tensor v, Tensor(a!) out, {_REQUEST}) -> Tensor")  # fmt: skip
def _attention_out(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    _, lse = _compute(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, live_state(state), fallback, return_lse)
    return _or_empty(lse, q)


@_attention_out.register_fake
def _(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    return _fake_lse(q, tensor_layout, return_lse)


@torch.library.custom_op("vcattn::attention_varlen", mutates_args=(),
                         schema="(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int? max_seqlen_q, "
                                "int? max_seqlen_k, bool is_causal, float? sm_scale, str recipe, bool return_lse) -> (Tensor, Tensor)")  # fmt: skip
def _attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse):
    out, lse = _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse)
    return out, _or_empty(lse, q)


@_attention_varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse):
    return torch.empty_like(q), _fake_lse(q, "packed", return_lse)


def _as_tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x)


def _torch_must_see(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the call has to be an operator: compilation, tracing, dispatch modes, tensor subclasses, fake tensors, gradients.

    Else the same function runs without the way through torch's dispatcher, which costs more than all of the rest.
    """
    return (
        torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
        or not (type(q) is type(k) is type(v) is torch.Tensor) or (q.is_meta and k.is_meta and v.is_meta)
        or (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
    )  # fmt: skip


def attention(q, k, v, layout, is_causal, sm_scale, return_lse, recipe, attn_mask, seqused_k, state, out, fallback) -> Any:
    if not _torch_must_see(q, k, v):
        out, lse = _compute(q, k, v, out, layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse)
        return (out, lse) if return_lse else out
    _core.check_kinds(q, k=k, v=v, attn_mask=attn_mask, out=out)
    if state is not None:
        _core.check_state(state, is_causal)
    seqused_k = None if seqused_k is None else _as_tensor(seqused_k)
    arguments = (layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, 0 if state is None else state.token, fallback, return_lse)
    if out is None:
        out, lse = torch.ops.vcattn.attention(q, k, v, *arguments)
    else:
        lse = torch.ops.vcattn.attention_out(q, k, v, out, *arguments)
    return (out, lse) if return_lse else out


def attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, return_lse, recipe) -> Any:
    arguments = (max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse)
    if _torch_must_see(q, k, v):
        _core.check_kinds(q, k=k, v=v)
        out, lse = torch.ops.vcattn.attention_varlen(q, k, v, _as_tensor(cu_seqlens_q), _as_tensor(cu_seqlens_k), *arguments)
    else:
        out, lse = _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *arguments)
    return (out, lse) if return_lse else out
