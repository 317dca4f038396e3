"""The preparation of `vc8s` step by step in PyTorch, each step the operation that is natural there: what fused kernels are compared with.

INT8 Q and K per 128 rows, E4M3 residuals of V per channel; tags: docs/equations.md. Sums and rotations are PyTorch's, so that values differ
from vcattn's in their last bits, and a few codes in a million with them. What INT8 scores do not need, bounds and variants, is left out.
"""

import math
from typing import Callable, NamedTuple

import torch
from torch import Tensor

TILE_ROWS = 128
KEYS_PER_GROUP = 16
INT8_MAX, E4M3_MAX, MEAN_QUOTIENT_MAX = 127.0, 448.0, 32768.0
AMAX_FLOOR, DESCALE_FLOOR = 2.0**-100, 2.0**-110


class Prepared(NamedTuple):
    """As in docs/formats.md, T tiles a head: codes of Q and K [H, T, 128, D], of V [H, T, D, 128 slots]."""
    q_codes: Tensor
    q_descale: Tensor
    k_codes: Tensor
    k_descale: Tensor
    v_codes: Tensor
    v_descale: Tensor
    v_mean: Tensor
    v_global_mean: Tensor
    lse_correction: Tensor


def hadamard_by_matmul(x: Tensor) -> Tensor:
    """[EQ-HADAMARD] in FP32, which the caller makes sure of."""
    matrix = torch.ones(1, 1, device=x.device)
    while matrix.shape[0] < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return x @ (matrix * x.shape[-1] ** -0.5)


def hadamard_by_butterflies(x: Tensor) -> Tensor:
    """[EQ-HADAMARD]"""
    stride = 1
    while stride < x.shape[-1]:
        a, b = x.unflatten(-1, (-1, 2, stride)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
        stride *= 2
    return x * x.shape[-1] ** -0.5


HADAMARD: dict[str, Callable[[Tensor], Tensor]] = {"matmul": hadamard_by_matmul, "butterflies": hadamard_by_butterflies}


def rows_of(permutation: Tensor) -> Tensor:
    """Rows of a [S, H, D] tensor as [S * H, D] in the order of a permutation [H, S]."""
    num_heads = permutation.shape[0]
    return (permutation.long() * num_heads + torch.arange(num_heads, device=permutation.device)[:, None]).flatten()


def sorted_rows(x: Tensor, rows: Tensor) -> Tensor:
    """[1, S, H, D] to [H, S, D]."""
    _, seqlen, num_heads, head_dim = x.shape
    return x.view(-1, head_dim).index_select(0, rows).view(num_heads, seqlen, head_dim)


def tiles_of(x: Tensor) -> Tensor:
    """[H, S, D] to [H, T, 128, D], zeros behind the last row."""
    padding = -x.shape[1] % TILE_ROWS
    return torch.nn.functional.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, TILE_ROWS))


def amax_of(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    return torch.linalg.vector_norm(x, math.inf, dim=dim, keepdim=True)


def int8_codes(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """[EQ-AMAX] with blocks of 128 rows."""
    amax = amax_of(tiles, (-2, -1))
    descale = torch.where(amax < AMAX_FLOOR, 1.0, amax / INT8_MAX)
    return (tiles * (1.0 / descale)).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), descale


def in_slots(codes: Tensor) -> Tensor:
    """[EQ-KEY-SLOT] transposed: bytes [H, T, 128, D] to [H, T, D, 128]. Key 8 j + 2 t + i of a group of 16 goes to slot 4 t + 2 j + i."""
    num_heads, tiles, _, head_dim = codes.shape
    keys = codes.view(num_heads, tiles, TILE_ROWS // KEYS_PER_GROUP, 2, 4, 2, head_dim)
    return keys.permute(0, 1, 6, 2, 4, 3, 5).reshape(num_heads, tiles, head_dim, TILE_ROWS)


def prepare(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, hadamard: Callable[[Tensor], Tensor]) -> Prepared:
    """q, k, v [1, S, H, D] BF16; rows: rows_of() the permutation."""
    seqlen_kv, softmax_scale = k.shape[1], k.shape[-1] ** -0.5

    q = q.float()
    k_mean = k.mean(1, keepdim=True, dtype=torch.float32)  # [EQ-KMEAN]
    lse_correction = (q * k_mean).sum(-1).mul(softmax_scale).transpose(1, 2)
    k = sorted_rows(k, rows).float() - k_mean[0].transpose(0, 1)
    k_codes, k_descale = int8_codes(tiles_of(hadamard(k)))
    q_codes, q_descale = int8_codes(tiles_of(hadamard(q)[0].transpose(0, 1)))

    v = tiles_of(sorted_rows(v, rows).float())
    valid = torch.full((v.shape[1], 1, 1), float(TILE_ROWS), device=v.device)
    last_rows = seqlen_kv - (v.shape[1] - 1) * TILE_ROWS
    valid[-1] = last_rows
    sums = v.sum(-2, keepdim=True)
    block_mean, global_mean = sums / valid, sums.sum(1, keepdim=True) / seqlen_kv  # [EQ-VSMOOTH]
    residual = v - block_mean
    residual[:, -1, last_rows:] = 0.0
    deviation = block_mean - global_mean
    descale = torch.maximum(amax_of(residual, (1, 2)) / E4M3_MAX, amax_of(deviation, (1, 2)) / MEAN_QUOTIENT_MAX)  # [EQ-VDESCALE]
    descale = torch.where(descale < DESCALE_FLOOR, 1.0, descale)
    inverse = 1.0 / descale
    codes = (residual * inverse).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    v_codes = in_slots(codes.view(torch.uint8))
    mean = deviation + (residual - codes.float() * descale).sum(-2, keepdim=True) / valid  # [EQ-EMC]
    v_mean = (mean * inverse).half()
    lost = (mean - v_mean.float() * descale) * valid
    return Prepared(q_codes, q_descale, k_codes, k_descale, v_codes, descale, v_mean, global_mean + lost.sum(1, keepdim=True) / seqlen_kv,
                    lse_correction)
