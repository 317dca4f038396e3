"""torch operators `torch.ops.vcattn.*`, so that torch.compile sees one opaque call with known outputs. Imported with the first torch tensor.

Schemas are written out, since their inference differs between releases of torch. The operators have no gradient: torch refuses a backward
pass through them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F

from vcattn import _abi, _core, _masks, _stats, _tensors
from vcattn._core import Request
from vcattn.grouping import live_state

_REQUEST = ("str tensor_layout, bool is_causal, float? sm_scale, str recipe, Tensor? attn_mask, Tensor? seqused_k, int state, str fallback, "
            "bool return_lse")  # fmt: skip


def _fake_lse(q: torch.Tensor, layout: str, wanted: bool) -> torch.Tensor:
    return _tensors.empty(q, _tensors.lse_shape(q.shape, layout) if wanted else (0,))


def _check_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str, recipe: str) -> None:
    """What can be known to be wrong before there are numbers."""
    if layout != "packed":
        _core.check_choice(layout, "tensor_layout", _tensors.LAYOUTS)
    _abi.options(recipe)
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        _tensors.check_dtype(x, name)
        _tensors.check_ndim(x, name, layout)


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
        try:
            result = _sdpa(q, k, v, layout, is_causal, sm_scale, attn_mask, seqused_k)
        except RuntimeError as refusal:  # what torch does not take either
            raise _abi.UnsupportedError(f"{error} (fallback='sdpa' cannot help: {str(refusal).splitlines()[0]})") from error
        _stats.count_fallback(f"sdpa: {error}")
        return (torch.empty_like(q) if given is None else given).copy_(result), None


def _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse) -> Any:
    request = _core.varlen_request(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe)
    return request.run(None, return_lse)


def _sdpa(q, k, v, layout, is_causal, sm_scale, attn_mask, seqused_k) -> torch.Tensor:
    if layout == "NHD":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if is_causal and q.shape[2] != k.shape[2]:
        raise _abi.UnsupportedError("fallback='sdpa' aligns a causal mask at the top left; Sq == Sk is required, got "
                                    f"{q.shape[2]} and {k.shape[2]}")  # fmt: skip
    k, v = k.to(q.dtype), v.to(q.dtype)
    batch, num_heads, seqlen_q, _ = q.shape
    seqlen_kv, seen = k.shape[2], None
    if seqused_k is not None:
        lengths = _core.lengths_array(seqused_k, batch, seqlen_kv)
        attn_mask = torch.from_numpy(np.arange(seqlen_kv) < lengths[:, None])[:, None, None]
    if attn_mask is not None:
        attn_mask = _masks.expand_mask(attn_mask, batch, num_heads, seqlen_q, seqlen_kv).to(q.device)
        seen = attn_mask if attn_mask.dtype == torch.bool else ~(attn_mask <= torch.finfo(attn_mask.dtype).min)
        padding = ~seen.any(1).any(1)[:, None, :, None]  # keys that no row sees, whose content never matters: 0 times NaN would
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
        if is_causal:  # torch takes one of them
            earlier = torch.ones(seqlen_q, seqlen_kv, dtype=torch.bool, device=q.device).tril()
            attn_mask = attn_mask & earlier if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~earlier, float("-inf"))
            seen, is_causal = seen & earlier, False
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=sm_scale, enable_gqa=num_heads != k.shape[1])
    if seen is not None:
        out = out.masked_fill(~seen.any(-1, keepdim=True), 0)
    return out.transpose(1, 2) if layout == "NHD" else out


@torch.library.custom_op("vcattn::attention", mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, {_REQUEST}) -> (Tensor, Tensor)")
def _attention(q, k, v, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    out, lse = _compute(q, k, v, None, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, live_state(state), fallback, return_lse)
    return out, _or_empty(lse, q)


@_attention.register_fake
def _(q, k, v, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    _check_fake(q, k, v, tensor_layout, recipe)
    return torch.empty_like(q), _fake_lse(q, tensor_layout, return_lse)


@torch.library.custom_op("vcattn::attention_out", mutates_args=("out",),
                         schema=f"(Tensor q, Tensor k, Tensor v, Tensor(a!) out, {_REQUEST}) -> Tensor")  # fmt: skip
def _attention_out(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    _, lse = _compute(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, live_state(state), fallback, return_lse)
    return _or_empty(lse, q)


@_attention_out.register_fake
def _(q, k, v, out, tensor_layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse):
    _check_fake(q, k, v, tensor_layout, recipe)
    return _fake_lse(q, tensor_layout, return_lse)


@torch.library.custom_op("vcattn::attention_varlen", mutates_args=(),
                         schema="(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int? max_seqlen_q, "
                                "int? max_seqlen_k, bool is_causal, float? sm_scale, str recipe, bool return_lse) -> (Tensor, Tensor)")  # fmt: skip
def _attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse):
    out, lse = _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse)
    return out, _or_empty(lse, q)


@_attention_varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse):
    _check_fake(q, k, v, "packed", recipe)
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


def _check_operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **others: Any) -> None:
    """Refuses tensors on "meta" beside others, for which the dispatcher of torch would run the fake kernel."""
    if q.is_meta and k.is_meta and v.is_meta:
        return
    for name, x in {"q": q, "k": k, "v": v, **others}.items():
        if torch.is_tensor(x) and x.is_meta:
            raise _abi.UnsupportedError(f"{name} must be on the CPU or a CUDA device; got meta; move it")


def check_transforms(*tensors: torch.Tensor) -> None:
    """Refuses what torch.func and forward-mode differentiation would make of q, k and v: an operator without rules for it drops it."""
    if torch.compiler.is_compiling() or not (fwAD._current_level >= 0 or torch._C._are_functorch_transforms_active()):
        return
    for x in filter(torch.is_tensor, tensors):
        if torch._C._functorch.is_batchedtensor(x):
            raise _abi.UnsupportedError("torch.vmap is not supported; make the mapped dimension part of the batch")
        if torch._C._functorch.is_gradtrackingtensor(x) or (fwAD._current_level >= 0 and fwAD.unpack_dual(x).tangent is not None):
            raise _abi.UnsupportedError("attention has no gradient, neither of torch.func nor in forward mode; detach() q, k and v")


def attention(q, k, v, layout, is_causal, sm_scale, return_lse, recipe, attn_mask, seqused_k, state, out, fallback) -> Any:
    check_transforms(q, k, v)
    if not _torch_must_see(q, k, v):
        out, lse = _compute(q, k, v, out, layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, state, fallback, return_lse)
        return (out, lse) if return_lse else out
    _core.check_types(recipe, is_causal, sm_scale)
    _core.check_kinds(q, k=k, v=v, attn_mask=attn_mask, out=out)
    if state is not None:
        _core.check_state(state, is_causal)
    _check_operands(q, k, v, attn_mask=attn_mask, seqused_k=seqused_k, out=out)
    seqused_k = None if seqused_k is None else _as_tensor(seqused_k)
    arguments = (layout, is_causal, sm_scale, recipe, attn_mask, seqused_k, 0 if state is None else state.token, fallback, return_lse)
    if out is None:
        out, lse = torch.ops.vcattn.attention(q, k, v, *arguments)
    else:
        lse = torch.ops.vcattn.attention_out(q, k, v, out, *arguments)
    return (out, lse) if return_lse else out


def attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal, sm_scale, return_lse, recipe) -> Any:
    check_transforms(q, k, v)
    arguments = (max_seqlen_q, max_seqlen_k, is_causal, sm_scale, recipe, return_lse)
    if _torch_must_see(q, k, v):
        _core.check_types(recipe, is_causal, sm_scale)
        _core.check_kinds(q, k=k, v=v)
        _check_operands(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        out, lse = torch.ops.vcattn.attention_varlen(q, k, v, _as_tensor(cu_seqlens_q), _as_tensor(cu_seqlens_k), *arguments)
    else:
        out, lse = _compute_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *arguments)
    return (out, lse) if return_lse else out
