import inspect

import numpy as np
import pytest

import vcattn
from vcattn.compat import flash_attn_func, sageattn, sdpa

# Parameters of the originals, in their order, as their releases of 2025 and 2026 have them.
SIGNATURES = {
    sageattn: ["q", "k", "v", "tensor_layout", "is_causal", "sm_scale", "return_lse"],
    flash_attn_func: ["q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
                      "return_attn_probs"],
    sdpa: ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"],
}  # fmt: skip


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__name__)
def test_positional_order_is_the_original(function):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == SIGNATURES[function]


def test_positional_order_of_attention_is_that_of_sageattn():
    parameters = inspect.signature(vcattn.attention).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == SIGNATURES[sageattn]


def test_results(rng):
    q, k, v = rng.standard_normal((3, 2, 3, 100, 64), dtype=np.float32)
    expected, lse = vcattn.attention(q, k, v, is_causal=True, sm_scale=0.2, return_lse=True)
    got, got_lse = sageattn(q, k, v, "HND", True, 0.2, True)
    assert (got == expected).all() and (got_lse == lse).all()
    assert (sageattn(q, k, v, "HND", True, 0.2, smooth_k=True, pv_accum_dtype="fp32+fp16") == expected).all()
    assert (flash_attn_func(*(x.swapaxes(1, 2) for x in (q, k, v)), 0.0, 0.2, True).swapaxes(1, 2) == expected).all()
    assert (sdpa(q, k, v, None, 0.0, True, 0.2) == expected).all()
    keys = np.arange(100) < 60
    assert (sdpa(q, k, v, keys[None]) == vcattn.attention(q, k, v, seqused_k=[60, 60])).all()


@pytest.mark.parametrize("call, error, text", [
    (lambda q: flash_attn_func(q, q, q, 0.1), ValueError, "dropout_p=0.0 required"),
    (lambda q: flash_attn_func(q, q, q, softcap=30.0), ValueError, "softcap=0.0 required"),
    (lambda q: flash_attn_func(q, q, q, alibi_slopes=q), ValueError, "alibi_slopes"),
    (lambda q: sdpa(q, q, q, dropout_p=0.1), ValueError, "dropout_p"),
    (lambda q: sdpa(q, q[:, :, :5], q[:, :, :5], is_causal=True), ValueError, "Sq == Sk"),
    (lambda q: sdpa(q, q[:, :1], q[:, :1]), ValueError, "enable_gqa"),
    (lambda q: flash_attn_func(q, q, q, window_size=None), ValueError, r"window_size=\(-1, -1\) required"),
    (lambda q: sdpa(q.tolist(), q, q), TypeError, "query must be a numpy array or a torch tensor; got list"),
    (lambda q: sdpa(q, None, q), TypeError, "key must be"),
    (lambda q: sdpa(q[0], q[0], q[0]), ValueError, "query must have 4 dimensions"),
    (lambda q: sdpa(q, q, q, q.tolist()), TypeError, "attn_mask must be"),
    (lambda q: sageattn(q, q, q, smooth_k=False), ValueError, "smooth_k=True required"),
    (lambda q: sageattn(q, q, q, pv_accum_dtype="fp8"), ValueError, "pv_accum_dtype must be one of None, fp16"),
    (lambda q: sageattn(q, q, q, smooth_v=True), TypeError, "smooth_v"),
])  # fmt: skip
def test_refusals(rng, call, error, text):
    with pytest.raises(error, match=text):
        call(rng.standard_normal((1, 2, 10, 64), dtype=np.float32))
