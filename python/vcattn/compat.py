"""The calls of other attention libraries, positional order included, so that replacing one is a rename.

What they offer and this library does not is refused with ValueError; keywords that they do not have are a TypeError.
"""

from __future__ import annotations

from typing import Any

from vcattn._abi import UnsupportedError
from vcattn._attention import attention
from vcattn._tensors import check_tensor


def _refuse(caller: str, **given: tuple[Any, Any]) -> None:
    """given: name = (value, the only value that is served)."""
    for name, (value, served) in given.items():
        if value != served:
            raise UnsupportedError(f"{caller}: {name}={served!r} required, since vcattn has no other; got {value!r}")


# Accumulators that SageAttention's kernels can be asked for.
_PV_ACCUMULATORS = (None, "fp16", "fp16+fp32", "fp32", "fp32+fp16", "fp32+fp32")


def sageattn(q: Any, k: Any, v: Any, tensor_layout: str = "HND", is_causal: bool = False, sm_scale: float | None = None,
             return_lse: bool = False, *, smooth_k: bool = True, pv_accum_dtype: str | None = None, recipe: str = "auto") -> Any:  # fmt: skip
    """`sageattention.sageattn`: [B, H, S, D] ("HND") or [B, S, H, D] ("NHD"); lse is natural, [B, H, Sq].

    smooth_k has to be True: the recipe says whether the mean of K is taken off ("vc8s,k_mean=off"). pv_accum_dtype, which chooses between
    the accumulators of its kernels, changes nothing here.

    Examples
    --------
    >>> import numpy as np
    >>> from vcattn.compat import sageattn
    >>> q = np.random.default_rng(0).standard_normal((1, 100, 2, 64), dtype=np.float32)
    >>> sageattn(q, q, q, "NHD").shape
    (1, 100, 2, 64)
    """
    _refuse("sageattn", smooth_k=(smooth_k, True))
    if pv_accum_dtype not in _PV_ACCUMULATORS:
        raise ValueError(f"sageattn: pv_accum_dtype must be one of {', '.join(map(str, _PV_ACCUMULATORS))}; got {pv_accum_dtype!r}")
    return attention(q, k, v, tensor_layout, is_causal, sm_scale, return_lse, recipe=recipe)


def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                    return_attn_probs: bool = False, *, recipe: str = "auto") -> Any:  # fmt: skip
    """`flash_attn.flash_attn_func`: [B, S, H, D]; causal is aligned at the bottom right. Results are always deterministic.

    Examples
    --------
    >>> import numpy as np
    >>> from vcattn.compat import flash_attn_func
    >>> q = np.random.default_rng(0).standard_normal((1, 100, 2, 64), dtype=np.float32)
    >>> flash_attn_func(q, q, q, window_size=(16, 0))
    Traceback (most recent call last):
        ...
    vcattn._abi.UnsupportedError: flash_attn_func: window_size=(-1, -1) required, since vcattn has no other; got (16, 0)
    """
    del deterministic
    window_size = tuple(window_size) if isinstance(window_size, list) else window_size
    _refuse("flash_attn_func", dropout_p=(dropout_p, 0.0), window_size=(window_size, (-1, -1)), softcap=(softcap, 0.0),
            alibi_slopes=(alibi_slopes is not None, False), return_attn_probs=(return_attn_probs, False))  # fmt: skip
    return attention(q, k, v, "NHD", causal, softmax_scale, recipe=recipe)


def sdpa(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
         scale: float | None = None, enable_gqa: bool = False, *, recipe: str = "auto", fallback: str = "error") -> Any:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention`: [B, H, S, D]; of masks, key padding is served.

    Examples
    --------
    >>> import numpy as np
    >>> from vcattn.compat import sdpa
    >>> q = np.random.default_rng(0).standard_normal((1, 2, 100, 64), dtype=np.float32)
    >>> sdpa(q, q, q).shape
    (1, 2, 100, 64)
    """
    _refuse("sdpa", dropout_p=(dropout_p, 0.0))
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(x, name)
        if x.ndim != 4:
            raise UnsupportedError(f"sdpa: {name} must have 4 dimensions [B, H, S, D]; got shape {list(x.shape)}; reshape it")
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise UnsupportedError("sdpa: is_causal aligns at the top left there and at the bottom right here, so Sq == Sk is required; got "
                               f"{query.shape[-2]} and {key.shape[-2]}")  # fmt: skip
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(f"sdpa: as many heads in key as in query required without enable_gqa; got {key.shape[1]} and {query.shape[1]}")
    if attn_mask is not None:
        check_tensor(attn_mask, "attn_mask")
    if attn_mask is not None and attn_mask.ndim < 4:  # aligned at the last dimensions there
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
    return attention(query, key, value, "HND", is_causal, scale, recipe=recipe, attn_mask=attn_mask, fallback=fallback)
