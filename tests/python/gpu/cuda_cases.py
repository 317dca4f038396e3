"""Tensors and an exact result, for the tests on a CUDA device."""

import torch

DEVICE = "cuda"
BF16 = torch.bfloat16


def tensors(batch=2, heads=4, heads_kv=2, seqlen_q=300, seqlen_kv=700, head_dim=128, dtype=BF16, device=DEVICE):
    shapes = ((batch, heads, seqlen_q, head_dim), *[(batch, heads_kv, seqlen_kv, head_dim)] * 2)
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def exact(q, k, v, mask=None, causal=False):
    """torch's scaled_dot_product_attention in FP64, and the natural log-sum-exp. mask: boolean, True is seen."""
    q, k, v = (x.double() for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(k.shape[2] - q.shape[2])
    if mask is not None:
        seen = seen & mask
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * q.shape[3] ** -0.5
    return out, scores.masked_fill(~seen, float("-inf")).logsumexp(3)


def error(got, expected):
    return float((got.double() - expected).norm() / expected.norm())
