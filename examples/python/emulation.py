"""The NVFP4 recipes of vcattn emulated in torch: the arithmetic of a 4-bit attention at the speed of BF16 matrix products.

For studies of accuracy on GPUs that have no 4-bit kernel. docs/equations.md has the formulas, under the tags that the code carries.

>>> import torch
>>> q, k, v = torch.randn(3, 1, 300, 2, 64)  # each [B, S, H, D]
>>> emulated_attention(q, k, v, "sage3").shape
torch.Size([1, 300, 2, 64])
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from vcattn import GroupingState, _abi, _core
from vcattn.grouping import StepState

GROUP = 16  # values that share a UE4M3 scale factor
TILE = 128
NVFP4_RANGE = 448.0 * 6.0
SMALLEST_AMAX = 2.0**-100
CODES_PER_NAT = 8 * math.log2(math.e)
QK_NVFP4, V_NVFP4, P_NVFP4, P_TWO_LEVEL, ORDER_AUTO, ORDER_SEQUENCE = 4, 3, 3, 4, 0, 1  # of vcattn.h


def emulated_attention(
    q: Tensor, k: Tensor, v: Tensor, recipe: str, permutation: Tensor | None = None, sm_scale: float | None = None, *,
    state: StepState | None = None, compiled: bool | None = None, score_bytes: int = 1 << 30,
) -> Tensor:  # fmt: skip
    """Non-causal attention with NVFP4 Q, K, V and probabilities, as the recipe of the library defines it.

    Parameters
    ----------
    q, k, v
        [B, Sq, H, D], [B, Sk, H, D] twice; float32, float16 or bfloat16, on one device; D a multiple of 16 up to 256. Finite.
    recipe
        "nvfp4", "sage3" or "vsmooth4", with changes if wanted: "vsmooth4,rounding=nearest,block=64".
    permutation
        Order of the keys, [B, H, Sk] integers: sorted[i] = original[permutation[i]]. None: what the library would do, which is to group the
        keys of vsmooth4 for this call alone, and to take those of the others in sequence order.
    sm_scale
        Softmax scale; None: 1 / sqrt(D).
    state
        Place in a grouping schedule, from `vcattn.GroupingState.at`, instead of a permutation.
    compiled
        Run the elementwise passes under `torch.compile`; None: on CUDA devices only. Each new shape compiles anew.
    score_bytes
        Queries are taken in chunks of whole tiles whose FP32 scores fit here.

    Returns
    -------
    out
        Shape and dtype of q.

    Raises
    ------
    ValueError
        Shapes, dtypes, devices or a recipe that the emulation does not serve; permutation and state together.

    Notes
    -----
    Codes, scale factors and means are those of the library up to last bits of FP32 sums. Dequantised operands are exact in BF16, and products
    accumulate in FP32. Scores are quantised with the row maximum of the key tiles seen so far; where a later tile raises it, probabilities are
    rescaled to BF16 and not in the accumulator. Grouping on a CUDA device needs a GPU that vcattn serves.
    """
    options = _checked_options(q, k, v, recipe, permutation, state)
    batch, seqlen_q, num_heads, head_dim = q.shape
    compiled = q.is_cuda if compiled is None else compiled
    order = _key_order(v, recipe, options, permutation, state)
    rows_q, rows_k, rows_v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # [G, S, D], G = B H
    order = None if order is None else order.flatten(0, 1).long()

    operands = _run(_smooth_query_key, compiled)(rows_q, rows_k, order, bool(options.k_mean), bool(options.q_mean), bool(options.hadamard))
    query, key, query_mean, key_high = operands
    query_codes, key_codes, descale = _query_key_codes(query, key, seqlen_q, k.shape[1], options.qk_rounding, compiled)
    values, value_descale, block_means, global_mean = _run(_value_operand, compiled)(
        rows_v, order, bool(options.v_mean), options.v_block, bool(options.v_per_channel),
        bool(options.v_mean and options.emc))  # fmt: skip

    m = _f32(1 / math.sqrt(head_dim) if sm_scale is None else sm_scale) * _f32(CODES_PER_NAT)
    bias = torch.full((1, 1, key.shape[1]), -math.inf, device=q.device)  # of padding, whose probability is 0
    bias[..., : k.shape[1]] = 0
    if options.q_mean:  # [EQ-QMEAN]
        bias = bias + m * (query_mean.double() @ key_high.double().mT).float()
    top = NVFP4_RANGE if options.prob == P_TWO_LEVEL else 1.0
    out = query.new_empty(len(query), query.shape[1], head_dim)
    rows = TILE * max(1, score_bytes // (4 * TILE * len(key) * key.shape[1]))
    for first in range(0, query.shape[1], rows):
        chunk = slice(first, first + rows)
        scores = (_product(query_codes[:, chunk], key_codes.mT), m * descale,
                  bias[:, first // TILE : (first + rows) // TILE] if options.q_mean else bias, top)  # fmt: skip
        p = _run(_probabilities, compiled)(*scores, *_run(_probability_scaling, compiled)(*scores))
        out[:, chunk] = _run(_restore, compiled)(_product(p, values), head_dim, value_descale, block_means, global_mean)
    return out[:, :seqlen_q].unflatten(0, (batch, num_heads)).transpose(1, 2).to(q.dtype)


def _checked_options(q: Tensor, k: Tensor, v: Tensor, recipe: str, permutation: Tensor | None, state: StepState | None) -> Any:
    options = _abi.options(recipe)
    if options.qk != QK_NVFP4 or options.v != V_NVFP4 or options.prob not in (P_NVFP4, P_TWO_LEVEL):
        raise ValueError(f"recipe must have NVFP4 Q, K, V and probabilities, such as 'nvfp4', 'sage3' or 'vsmooth4'; got {recipe!r}; "
                         "vcattn.attention() computes the others")  # fmt: skip
    shapes = [list(x.shape) for x in (q, k, v)]
    if q.ndim != 4 or k.shape != v.shape or k.shape != (q.shape[0], k.shape[1], *q.shape[2:]):
        raise ValueError(f"q must be [B, Sq, H, D], k and v [B, Sk, H, D]; got {shapes[0]}, {shapes[1]} and {shapes[2]}; repeat the heads of K and V")
    if min(q.shape) == 0 or k.shape[1] == 0 or q.shape[3] % GROUP or q.shape[3] > 256:
        raise ValueError(f"q, k and v must not be empty, and D must be a multiple of {GROUP} up to 256; got {shapes[0]} and {shapes[1]}")
    if {x.dtype for x in (q, k, v)} - {torch.float32, torch.float16, torch.bfloat16}:
        raise ValueError(f"q, k and v must be float32, float16 or bfloat16; got {q.dtype}, {k.dtype} and {v.dtype}; convert them")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device; got {q.device}, {k.device} and {v.device}; move them")
    if permutation is not None and state is not None:
        raise ValueError("permutation and state both say in which order the keys come; pass one of them")
    return options


def _key_order(v: Tensor, recipe: str, options: Any, permutation: Tensor | None, state: StepState | None) -> Tensor | None:
    """Permutation of the keys [B, H, Sk]; None: sequence order."""
    batch, seqlen_kv, num_heads, _ = v.shape
    if permutation is not None:
        if permutation.shape != (batch, num_heads, seqlen_kv) or permutation.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"permutation must be int32 or int64 [B, H, Sk] = {[batch, num_heads, seqlen_kv]}; got {permutation.dtype} "
                             f"{list(permutation.shape)}")  # fmt: skip
        return permutation.to(v.device)
    grouped = options.order != ORDER_SEQUENCE and (options.order != ORDER_AUTO or options.v_mean)
    if state is None and not grouped:
        return None
    if state is None:
        state = GroupingState(total_steps=1, policy="every_step").at(0, layer=0)
    request = _core.Request(v, v, v, "NHD", recipe=recipe)
    with request.device.current():
        buffer = state.permutation(request.problem, request.options, request.device)
    return None if buffer is None else torch.as_tensor(buffer.data).view(batch, num_heads, seqlen_kv)


@functools.cache
def _run(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True) if compiled else function


def _f32(x: float) -> float:
    return torch.tensor(x, dtype=torch.float32).item()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched product of BF16 matrices in FP32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


def _e2m1(x: Tensor) -> Tensor:
    """[EQ-E2M1] Nearest value, ties to even, saturating."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    steps_per_unit = torch.where(a < 2, 2.0, torch.where(a < 4, 1.0, 0.5))  # no division in the inner loop
    return torch.copysign(torch.round(a * steps_per_unit) * step, x)


def _scale_factors(amax16: Tensor) -> tuple[Tensor, Tensor]:
    """[EQ-NVFP4] UE4M3 scale factors of groups, and their reciprocals, 0 for a factor of 0."""
    factors = (amax16 / 6).clamp(max=448.0).to(torch.float8_e4m3fn).float()
    return factors, torch.where(factors == 0, 0.0, 1 / factors)


def _nvfp4(x: Tensor, descale: Tensor) -> Tensor:
    """[EQ-NVFP4] Rows in units of the descale, quantised and dequantised; groups along the last dimension."""
    groups = (x * (1 / descale)).unflatten(-1, (-1, GROUP))
    factors, inverse = _scale_factors(groups.abs().amax(-1, keepdim=True))
    return (_e2m1(groups * inverse) * factors).flatten(-2)


def _descale(amax: Tensor) -> Tensor:
    return torch.where(amax < SMALLEST_AMAX, 1.0, amax / NVFP4_RANGE)


def _pad_rows(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[1] % TILE))


def _gather(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.gather(1, order[..., None].expand_as(x))


def _hadamard(x: Tensor) -> Tensor:
    """[EQ-HADAMARD] In FP64, which no TF32 setting touches."""
    channel = torch.arange(x.shape[-1], device=x.device)
    parity = channel[:, None] & channel  # of the bits that two channels share, at most eight
    for shift in (4, 2, 1):
        parity = parity ^ (parity >> shift)
    return (x.double() @ (1 - 2 * (parity & 1)).double() / math.sqrt(x.shape[-1])).float()


def _smooth_query_key(q: Tensor, k: Tensor, order: Tensor | None, k_mean: bool, q_mean: bool, hadamard: bool) -> tuple[Tensor, ...]:
    """What comes before quantisation: Q and K [G, S padded to tiles, D padded], Q means [G, tiles, D], and K in BF16 for them."""
    q, k = q.float(), k.float()
    if k_mean:  # [EQ-KMEAN]
        k = k - k.mean(1, keepdim=True)
    padding = (0, max(32, 1 << (q.shape[2] - 1).bit_length()) - q.shape[2])
    q, k = F.pad(q, padding), F.pad(_gather(k, order), padding)
    if hadamard:
        q, k = _hadamard(q), _hadamard(k)
    seqlen_q = q.shape[1]
    q, k = _pad_rows(q), _pad_rows(k)
    tiles = q.unflatten(1, (-1, TILE))
    valid = (torch.arange(q.shape[1], device=q.device) < seqlen_q).view(-1, TILE, 1)
    mean = tiles.sum(2, keepdim=True) / valid.sum(1, keepdim=True)  # [EQ-QMEAN]
    if q_mean:
        q = torch.where(valid, tiles - mean, 0.0).flatten(1, 2)
    return q, k, mean.squeeze(2), k.bfloat16()


def _query_key_codes(q: Tensor, k: Tensor, seqlen_q: int, seqlen_kv: int, rounding: int, compiled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes times scale factors in BF16, [G, S, D] each, and the product of their descales [G, 1, 1]."""
    amax_q, amax_k = (x.abs().amax((1, 2), keepdim=True) for x in (q, k))
    nearest = _run(_nvfp4, compiled)
    # [EQ-SHAPED] each operand by the other one; 1: K alone, 2: both
    codes_k = _shaped(k, _descale(amax_k), _feedback(q, amax_q), compiled) if rounding >= 1 else nearest(k, _descale(amax_k))
    codes_q = _shaped(q, _descale(amax_q), _feedback(k, amax_k), compiled) if rounding >= 2 else nearest(q, _descale(amax_q))
    return codes_q.bfloat16(), codes_k.bfloat16(), _descale(amax_q) * _descale(amax_k)


def _feedback(other: Tensor, amax: Tensor) -> Tensor:
    """[EQ-SHAPED] W [G, D, D], by which the error of a channel moves the targets of later ones."""
    width, tiles = other.shape[2], other.unflatten(1, (-1, TILE))
    rows = tiles[:, :: max(1, -(-tiles.shape[1] // 64))].flatten(1, 2)
    rows = torch.round(rows * (127 / amax.clamp(min=SMALLEST_AMAX))).bfloat16()  # integers up to 127 are exact
    moment = _product(rows.mT, rows)
    trace = moment.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=SMALLEST_AMAX)
    identity = torch.eye(width, device=other.device)
    moment = moment * (width / trace) + 0.01 * identity
    lower = torch.linalg.cholesky_ex(moment.flip(1, 2)).L.flip(1, 2)  # upper triangular: H = U diag U^T
    upper = lower / lower.diagonal(dim1=1, dim2=2)[:, None]
    return torch.linalg.solve_triangular(upper, identity.expand_as(upper), upper=True, unitriangular=True)


def _shaped(x: Tensor, descale: Tensor, feedback: Tensor, compiled: bool) -> Tensor:
    """[EQ-SHAPED] Rows [G, S, D] in units of the descale, block of channels by block."""
    targets = (x * (1 / descale)).mT.contiguous()  # [G, D, S]
    factors, inverse = _scale_factors(targets.unflatten(1, (-1, GROUP)).abs().amax(2))
    unit = factors.amax(1, keepdim=True)
    steps_per_unit = torch.where(unit > 0, 64 / unit, 0.0)
    codes, errors = torch.empty_like(targets, dtype=torch.bfloat16), torch.empty_like(targets, dtype=torch.bfloat16)
    round_block = _run(_shape_block, compiled)
    for group, first in enumerate(range(0, targets.shape[1], GROUP)):
        block = slice(first, first + GROUP)
        earlier = feedback[:, :first, block]
        target = targets[:, block]
        if first:
            largest = earlier.abs().amax(1, keepdim=True)
            integers = torch.round(earlier * torch.where(largest < SMALLEST_AMAX, 0.0, 127 / largest)).bfloat16()
            target = target + largest.mT / 127 * (unit / 64) * _product(integers.mT, errors[:, :first])
        scaling = factors[:, group], inverse[:, group], steps_per_unit[:, 0]
        codes[:, block], errors[:, block] = round_block(target, *scaling, feedback[:, block, block])
    return codes.mT


def _shape_block(target: Tensor, factor: Tensor, inverse: Tensor, steps_per_unit: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Values and errors (integer steps) of the 16 channels of a block; target [G, 16, S], the others [G, S], within [G, 16, 16]."""
    values: list[Tensor] = []
    errors: list[Tensor] = []
    for f in range(GROUP):
        t = target[:, f]
        for d in range(f):
            t = t + errors[d] * within[:, d, f, None]
        values.append(_e2m1(t * inverse) * factor)
        errors.append(values[f] - t)
    steps = [torch.round(error * steps_per_unit).clamp(-127, 127) for error in errors]
    return torch.stack(values, 1), torch.stack(steps, 1)


def _value_operand(v: Tensor, order: Tensor | None, v_mean: bool, block: int, per_channel: bool, emc: bool) -> tuple[Tensor, ...]:
    """Codes of V times scale factors beside an indicator of its blocks (whose product with P is the row sums of the blocks), in BF16
    [G, Sk padded, D + blocks]; descale [G, 1, D or 1]; block means in its units [G, blocks, D]; global mean [G, 1, D]."""
    v = _gather(v.float(), order)
    seqlen_kv = v.shape[1]
    blocks = _pad_rows(v).unflatten(1, (-1, block))  # [G, blocks, rows, D]
    valid = (torch.arange(blocks.shape[1] * block, device=v.device) < seqlen_kv).view(-1, block, 1)
    count = valid.sum(1, keepdim=True)
    mean, global_mean = torch.zeros_like(blocks[:, :, :1]), torch.zeros_like(v[:, None, :1])
    if v_mean:  # [EQ-VSMOOTH]
        global_mean = v.mean(1)[:, None, None]
        mean = torch.where(count > 0, blocks.sum(2, keepdim=True) / count.clamp(min=1) - global_mean, 0.0)
    residual = torch.where(valid, blocks - (mean + global_mean), 0.0)
    axes = (1, 2) if per_channel else (1, 2, 3)
    descale = torch.maximum(residual.abs().amax(axes, keepdim=True) / NVFP4_RANGE, mean.abs().amax(axes, keepdim=True) / 32768)
    descale = torch.where(descale < 2.0**-110, 1.0, descale)  # [EQ-VDESCALE]
    codes = _nvfp4(residual.mT, descale.mT).mT  # [EQ-NVFP4-V]
    if emc:  # [EQ-EMC]
        mean = mean + (residual - codes * descale).sum(2, keepdim=True) / count.clamp(min=1)
    stored = (mean * (1 / descale)).half().float()
    if emc:
        global_mean = global_mean + (count * (mean - stored * descale)).sum(1, keepdim=True) / seqlen_kv
    number = torch.arange(-(-blocks.shape[1] // 8) * 8, device=v.device)  # rows of whole 16 bytes
    indicator = (torch.arange(valid.numel(), device=v.device)[:, None] // block == number).expand(len(v), -1, -1)
    operand = torch.cat([codes.flatten(1, 2).bfloat16(), indicator.bfloat16()], -1)
    return operand, descale[:, 0], stored[:, :, 0], global_mean[:, 0]


def _code_units(s: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    """Scores [G, rows, Sk] in 1/8 octave, as [G, rows / 128, 128, key tiles, 8, 16]. bias: [G, rows / 128, Sk], or [1, 1, Sk]."""
    x = s.unflatten(1, (-1, TILE)) * factor[..., None] + bias[:, :, None]
    return x.unflatten(-1, (-1, TILE // GROUP, GROUP))


def _probability_scaling(s: Tensor, factor: Tensor, bias: Tensor, top: float) -> tuple[Tensor, Tensor, Tensor]:
    """[EQ-P-NVFP4] Row maximum after each key tile; of each group, what brings probabilities to E2M1 and what brings codes back, under the
    last row maximum. top: what the row maximum becomes."""
    largest = _code_units(s, factor, bias).amax(-1)
    row_max = largest.amax(-1, keepdim=True).cummax(-2).values
    factors, inverse = _scale_factors(torch.exp2((largest - row_max) / 8) * top)
    return row_max, inverse, factors * torch.exp2((row_max - row_max[..., -1:, :]) / 8)  # [EQ-RESCALE]


def _probabilities(s: Tensor, factor: Tensor, bias: Tensor, top: float, row_max: Tensor, inverse: Tensor, factors: Tensor) -> Tensor:
    """[EQ-P-NVFP4] Quantised and dequantised, [G, rows, Sk] in BF16."""
    p = torch.exp2((_code_units(s, factor, bias) - row_max[..., None]) / 8) * top
    return (_e2m1(p * inverse[..., None]) * factors[..., None]).bfloat16().flatten(3).flatten(1, 2)


def _restore(sums: Tensor, head_dim: int, descale: Tensor, block_means: Tensor, global_mean: Tensor) -> Tensor:
    """[EQ-RESTORE] sums [G, rows, D + blocks]: P times codes of V, then the row sums of the blocks."""
    row_sums = sums[..., head_dim : head_dim + block_means.shape[1]]
    of_means = (row_sums.double() @ block_means.double()).float()  # in FP64, which no TF32 setting touches
    return descale * (sums[..., :head_dim] + of_means) / row_sums.sum(-1, keepdim=True) + global_mean
