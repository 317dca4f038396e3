"""Plain attention in FP64, written for these tests alone."""

import numpy as np


def softmax_attention(q, k, v, sm_scale=None, causal=False, lengths=None):
    """q [B, H, Sq, D], k and v [B, Hkv, Sk, D]; returns out [B, H, Sq, D] and lse [B, H, Sq]. Rows without a key: 0 and -inf."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, seqlen_q, head_dim = q.shape
    seqlen_kv = k.shape[2]
    k, v = (np.repeat(x, heads // k.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(head_dim) if sm_scale is None else sm_scale)
    seen = np.ones((batch, 1, seqlen_q, seqlen_kv), bool)
    if causal:
        seen &= np.arange(seqlen_kv) <= np.arange(seqlen_q)[:, None] + seqlen_kv - seqlen_q
    if lengths is not None:
        seen &= np.arange(seqlen_kv) < np.asarray(lengths)[:, None, None, None]
    weights = np.exp(scores - np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=-1e30)) * seen
    total = weights.sum(-1, keepdims=True)
    out = np.divide(weights @ np.where(np.isfinite(v), v, 0), total, out=np.zeros(q.shape), where=total > 0)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0]) + np.where(seen, scores, -np.inf).max(-1, initial=-1e30)
    return out, np.where(total[..., 0] > 0, lse, -np.inf)


def relative_error(got, expected):
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


# Largest relative error on normal random tensors, about twice what is measured.
TOLERANCE = {"exact": 1e-6, "bf16": 0.008, "vc8": 0.1, "vc8s": 0.08, "vsmooth8": 0.1, "vsmooth8s": 0.08, "fp8": 0.12, "sage2": 0.1,
             "vc8-paper": 0.15, "nvfp4": 0.4, "sage3": 0.4, "vsmooth4": 0.4}  # fmt: skip
