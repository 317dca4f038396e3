"""Key-padding masks as numbers of valid keys, without a copy of the mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from vcattn import _abi
from vcattn._device import check_readable
from vcattn._tensors import check_tensor, device_of, dtype_name, is_torch

_DTYPES = ("bool", "float16", "bfloat16", "float32", "float64")
_WAY_OUT = ("only key padding is supported, where every query sees the first n keys of its batch entry, or none; pass seqused_k for such "
            "lengths, or use another attention for other masks")  # fmt: skip


def _unexpand(mask: Any) -> Any:
    """The same mask with size 1 where it repeats itself (stride 0), so that nothing is read twice."""
    strides = mask.stride() if is_torch(mask) else mask.strides
    return mask[tuple(slice(0, 1) if size > 1 and stride == 0 and dim < mask.ndim - 1 else slice(None)
                      for dim, (size, stride) in enumerate(zip(mask.shape, strides)))]  # fmt: skip


def _seen(mask: Any) -> tuple[Any, Any, float]:
    """Boolean mask, whether that says all, and the number that hides: additive masks hold 0 (seen), and -inf or the lowest of their dtype."""
    if dtype_name(mask) == "bool":
        return mask, True, 0.0
    if is_torch(mask):
        import torch

        lowest = torch.finfo(mask.dtype).min
    else:
        lowest = float(np.finfo(mask.dtype).min)
    seen = mask == 0
    return seen, (seen | (mask <= lowest)).all(), lowest


def _to_host(*arrays: Any) -> list[np.ndarray]:
    """Small arrays or truth values, all at once: a CUDA device is waited for once."""
    tensors = [x for x in arrays if is_torch(x)]
    if not tensors:
        return [np.asarray(x) for x in arrays]
    import torch

    flat = torch.cat([x.reshape(-1).to(torch.int64) for x in tensors]).cpu().numpy()
    parts = iter(np.split(flat, np.cumsum([x.numel() for x in tensors])[:-1]))
    return [next(parts) if is_torch(x) else np.asarray(x) for x in arrays]


def expand_mask(mask: Any, batch: int, num_heads: int, seqlen_q: int, seqlen_kv: int) -> Any:
    """The mask as a view [B|1, H|1, Sq|1, Sk]. Two dimensions are [B, Sk] or [Sq, Sk]; refused where they could be either."""
    check_tensor(mask, "attn_mask")
    full, shape = (batch, num_heads, seqlen_q, seqlen_kv), tuple(mask.shape)
    of_batch = shape == (batch, seqlen_kv)
    if of_batch and batch == seqlen_q > 1:
        raise ValueError(f"attn_mask {list(shape)} may be [B, Sk] or [Sq, Sk], since B = Sq here; pass attn_mask[:, None, None] for [B, Sk], or "
                         "attn_mask[None, None] for [Sq, Sk]")  # fmt: skip
    if dtype_name(mask) not in _DTYPES:
        raise ValueError(f"attn_mask must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}; got {dtype_name(mask)}; convert it")
    if is_torch(mask) and str(mask.layout) != "torch.strided":
        raise ValueError(f"attn_mask must be dense; got layout {mask.layout}; to_dense() it")
    mask = mask[:, None, None] if of_batch else mask[(None,) * (4 - mask.ndim)]
    if mask.ndim != 4 or any(have not in (1, want) for have, want in zip(mask.shape, full)):
        raise ValueError(f"attn_mask must be [B, Sk] or broadcastable to [B, H, Sq, Sk] = {list(full)}; got {list(shape)}")
    full = (*mask.shape[:3], seqlen_kv)
    return mask.expand(full) if is_torch(mask) else np.broadcast_to(mask, full)


def reduce_mask(mask: Any, batch: int, num_heads: int, seqlen_q: int, seqlen_kv: int) -> tuple[np.ndarray, Any]:
    """Numbers of valid keys, and which rows see any key at all. A mask on a CUDA device is waited for, once.

    Parameters
    ----------
    mask
        Boolean (True: seen) or additive; [B, Sk], or broadcastable to [B, H, Sq, Sk].

    Returns
    -------
    seqused_k
        int32 [B].
    rows
        Boolean [1 or B, 1 or H, 1 or Sq], False where a row sees no key; None where there is no such row.

    Raises
    ------
    UnsupportedError
        If the mask is more than key padding.
    """
    mask = expand_mask(mask, batch, num_heads, seqlen_q, seqlen_kv)
    device_of(mask, "attn_mask")  # one that can be read
    if is_torch(mask):
        check_readable(mask, "attn_mask")
    mask, unbiased, lowest = _seen(_unexpand(mask))
    keys = mask.any(1).any(1)  # [B, Sk], seen by any row
    lengths = keys.sum(1)
    counts = mask.sum(3)  # [B, H, Sq]; as many as any row sees are all of them
    rows = counts > 0
    leading = (keys[:, 1:] <= keys[:, :-1]).all()
    all_or_none = ((counts == lengths[:, None, None]) | ~rows).all()
    lengths, unbiased, leading, all_or_none, no_empty_row = _to_host(lengths, unbiased, leading, all_or_none, rows.all())
    if not unbiased:
        raise _abi.UnsupportedError(f"attn_mask holds a bias, values other than 0 and {lowest:g} or -inf; {_WAY_OUT}")
    if not (leading and all_or_none):
        raise _abi.UnsupportedError(f"attn_mask of shape {list(mask.shape)} is no key padding; {_WAY_OUT}")
    lengths = np.broadcast_to(lengths, (batch,)).astype(np.int32)
    return lengths, None if no_empty_row else rows
