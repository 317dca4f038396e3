"""The public calls."""

from __future__ import annotations

from typing import Any

from vcattn import _core, _tensors
from vcattn._core import Prepared, Request
from vcattn.grouping import StepState

_Tensor = Any  # numpy.ndarray or torch.Tensor


def attention(
    q: _Tensor, k: _Tensor, v: _Tensor, tensor_layout: str = "HND", is_causal: bool = False, sm_scale: float | None = None,
    return_lse: bool = False, *, recipe: str = "auto", attn_mask: _Tensor | None = None, seqused_k: Any = None,
    state: StepState | None = None, out: _Tensor | None = None, fallback: str = "error",
) -> Any:  # fmt: skip
    """Attention with low-bit Q, K and V: softmax(sm_scale Q K^T) V.

    Parameters
    ----------
    q, k, v
        float32, float16 or bfloat16, in any mixture; numpy arrays, or torch tensors on one device. Layout "HND": q [B, H, Sq, D],
        k and v [B, Hkv, Sk, D]; "NHD": q [B, Sq, H, D], k and v [B, Sk, Hkv, D]. H is a multiple of Hkv, D a multiple of 8 from 32 to 256.
        Any strides. Never modified.
    tensor_layout
        "HND" or "NHD".
    is_causal
        Row i sees keys 0 .. i + Sk - Sq.
    sm_scale
        Softmax scale; None: 1 / sqrt(D).
    return_lse
        Return the log-sum-exp as well.
    recipe
        "auto" (which is "vc8s"), or a recipe of the library with changes: "vc8", "vc8s,block=64,hadamard=off".
    attn_mask
        Key padding only, boolean (True: seen) or additive (0, and -inf or the lowest number of its dtype): [B, Sk], or broadcastable to
        [B, H, Sq, Sk]; [B, Sk] is refused where it may be [Sq, Sk]. It is reduced to lengths without a copy. Rows that see nothing give 0.
        On a CUDA device the call waits once, to read the lengths.
    seqused_k
        Number of valid keys of each batch entry, [B] integers from 0 to Sk. Later keys are padding whose content never matters. The library
        needs them on the CPU: a tensor on a CUDA device is waited for and copied, once; pass a list or a CPU tensor to avoid that.
    state
        Place in a grouping schedule, from `GroupingState.at`; None: the keys are grouped for this call alone.
    out
        Tensor to write to, with the shape of q; None: a new one with dtype and layout of q.
    fallback
        "error": raise where the library does not serve the call. "sdpa": compute it with torch's scaled_dot_product_attention, count it in
        `stats()`, and warn once for each reason.

    Returns
    -------
    out
        Shape and dtype of q.
    lse
        Only with return_lse: float32 [B, H, Sq], natural logarithm; -inf where a row sees no key.

    Raises
    ------
    UnsupportedError
        A valid call that this build, device or recipe does not serve. A subclass of ValueError.
    ValueError
        Shapes, dtypes or lengths that fit no call; the text says what was required, what was got, and what to do.
    TypeError
        An unknown keyword, or something that is no tensor.
    NonFiniteError
        NaN or infinity in valid rows, with "check_finite=on" in the recipe ("vc8s,check_finite=on", CPU only). A subclass of ValueError.
    RuntimeError
        On the CPU in a process that was forked after the first call.

    Notes
    -----
    On the CPU the call returns when the result is there, and other Python threads run meanwhile. Results are bitwise equal from run to run.
    There is no gradient.

    On a CUDA device it is enqueued on torch's current stream of the device of q, and waits for nothing but lengths or a mask on that device.
    Scratch comes from torch's allocator: about 1.2 bytes for each element of q, k and v. The call may be captured into a CUDA graph after
    one call on that device, which loads the kernels; lengths are then those of the capture.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 200, 64), dtype=np.float32) for _ in range(3))
    >>> out, lse = vcattn.attention(q, k, v, return_lse=True)
    >>> out.shape, out.dtype, lse.shape
    ((1, 2, 200, 64), dtype('float32'), (1, 2, 200))
    >>> vcattn.attention(q, k, v, window=3)
    Traceback (most recent call last):
        ...
    TypeError: attention() got an unexpected keyword argument 'window'
    """
    _check_outcome(return_lse, fallback, q)
    if _tensors.is_torch(q):
        from vcattn import _torch

        return _torch.attention(q, k, v, tensor_layout, is_causal, sm_scale, return_lse, recipe, attn_mask, seqused_k, state, out, fallback)
    request = Request(q, k, v, tensor_layout, is_causal=is_causal, sm_scale=sm_scale, recipe=recipe, attn_mask=attn_mask,
                      seqused_k=seqused_k, state=state)  # fmt: skip
    return _result(*request.run(out, return_lse))


def attention_varlen(
    q: _Tensor, k: _Tensor, v: _Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, is_causal: bool = False, sm_scale: float | None = None, return_lse: bool = False, *,
    recipe: str = "auto",
) -> Any:  # fmt: skip
    """Attention over sequences of different lengths, packed one after another.

    Parameters
    ----------
    q, k, v
        q [total_q, H, D], k and v [total_k, Hkv, D]; otherwise as for `attention`.
    cu_seqlens_q, cu_seqlens_k
        Integers [sequences + 1], ascending from 0 to total_q or total_k: sequence b owns rows cu[b] to cu[b + 1] - 1.
    max_seqlen_q, max_seqlen_k
        Longest sequences, as FlashAttention wants them told. Checked where given; not needed.
    is_causal, sm_scale, return_lse, recipe
        As for `attention`; causal within each sequence.

    Returns
    -------
    out
        Shape and dtype of q.
    lse
        Only with return_lse: float32 [H, total_q].

    Raises
    ------
    ValueError, UnsupportedError, TypeError
        As `attention`.

    Notes
    -----
    cu_seqlens on a CUDA device are copied to the CPU, which waits for the stream; pass them from the CPU to avoid that. Otherwise as
    `attention`.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> q = np.random.default_rng(0).standard_normal((30, 2, 64), dtype=np.float32)
    >>> vcattn.attention_varlen(q, q, q, [0, 10, 30], [0, 10, 30]).shape
    (30, 2, 64)
    """
    _core.check_switch(return_lse, "return_lse")
    cu_seqlens = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if _tensors.is_torch(q):
        from vcattn import _torch

        return _torch.attention_varlen(q, k, v, *cu_seqlens, is_causal, sm_scale, return_lse, recipe)
    return _result(*_core.varlen_request(q, k, v, *cu_seqlens, is_causal, sm_scale, recipe).run(None, return_lse))


def prepare(
    q: _Tensor, k: _Tensor, v: _Tensor, tensor_layout: str = "HND", is_causal: bool = False, sm_scale: float | None = None, *,
    recipe: str = "auto", attn_mask: _Tensor | None = None, seqused_k: Any = None, state: StepState | None = None,
) -> Prepared:  # fmt: skip
    """Quantises Q, K and V, so that the tensors can be freed before attention runs. Parameters as for `attention`.

    Returns
    -------
    Prepared
        For `attention_prepared`, any number of times.

    Notes
    -----
    On a CUDA device it is enqueued as `attention` is. `attention_prepared` may run on another stream, which the caller has to order after
    this one.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> q = np.random.default_rng(0).standard_normal((1, 2, 200, 64), dtype=np.float32)
    >>> prepared = vcattn.prepare(q, q, q)
    >>> bool((vcattn.attention_prepared(prepared) == vcattn.attention(q, q, q)).all())
    True
    """
    if _tensors.is_torch(q):
        from vcattn import _torch

        _torch.check_transforms(q, k, v)
    return Prepared(Request(q, k, v, tensor_layout, is_causal=is_causal, sm_scale=sm_scale, recipe=recipe, attn_mask=attn_mask,
                            seqused_k=seqused_k, state=state))  # fmt: skip


def attention_prepared(prepared: Prepared, return_lse: bool = False, *, out: _Tensor | None = None) -> Any:
    """Attention of what `prepare` made. Returns, raises and streams as `attention`; `out` is by default like the q it was made of."""
    if not isinstance(prepared, Prepared):
        raise TypeError(f"attention_prepared needs what prepare() returned; got {type(prepared).__name__}")
    _core.check_switch(return_lse, "return_lse")
    if out is not None:
        prepared.check_out(out)
    result = prepared.new_output() if out is None else out
    return _result(result, prepared.attend(result, return_lse))


def supports(q: _Tensor, k: _Tensor, v: _Tensor, *args: Any, **options: Any) -> tuple[bool, str]:
    """Whether `attention` serves these arguments, and if not, why. Never raises.

    Takes the arguments of `attention`. Looks at shapes, dtypes, strides, lengths and masks, never at q, k and v. What ``fallback="sdpa"``
    would compute is not served. Nor are tensors on "meta", for which a call with all three there gives shapes alone, as everywhere in torch.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> q = np.zeros((1, 2, 200, 20), np.float32)
    >>> ok, why = vcattn.supports(q, q, q)
    >>> ok, why[:43]
    (False, 'head_dim must be a multiple of 8 in 32..256')
    """
    try:
        return _supports(q, k, v, *args, **options)
    except Exception as error:  # noqa: BLE001  the answer is "no", whatever it is that the call would raise
        return False, str(error)


def _supports(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, *, recipe="auto", attn_mask=None,
              seqused_k=None, state=None, out=None, fallback="error") -> tuple[bool, str]:  # fmt: skip
    _check_outcome(return_lse, fallback, q)
    if _tensors.is_torch(q):
        from vcattn import _torch

        _torch.check_transforms(q, k, v)
    request = Request(q, k, v, tensor_layout, is_causal=is_causal, sm_scale=sm_scale, recipe=recipe, attn_mask=attn_mask,
                      seqused_k=seqused_k, state=state)  # fmt: skip
    if out is not None:
        request.check_out(out)
    return request.supports()


_supports.__name__ = _supports.__qualname__ = "supports"  # as errors about keywords name it


def _check_outcome(return_lse: Any, fallback: Any, q: Any) -> None:
    _core.check_switch(return_lse, "return_lse")
    _core.check_choice(fallback, "fallback", _core.FALLBACKS)
    if fallback == "sdpa" and not _tensors.is_torch(q):
        raise ValueError("fallback='sdpa' needs torch tensors; got numpy arrays; pass fallback='error'")


def _result(out: Any, lse: Any) -> Any:
    return out if lse is None else (out, lse)
