"""The NVFP4 recipes of vcattn emulated in torch, by BF16 matrix products: for studies of accuracy on GPUs without a 4-bit kernel.

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

GROUP, TILE = 16, 128  # values that share a UE4M3 scale factor; rows of a tile
NVFP4_RANGE = 448.0 * 6.0
SMALLEST_AMAX = 2.0**-100
CODES_PER_NAT = 8 * math.log2(math.e)
QK_NVFP4, V_NVFP4, PROBABILITIES, TWO_LEVEL, ORDER_AUTO, ORDER_SEQUENCE = 4, 3, (3, 4), 4, 0, 1  # of vcattn.h


def emulated_attention(q: Tensor, k: Tensor, v: Tensor, recipe: str, permutation: Tensor | None = None, sm_scale: float | None = None, *,
                       state: StepState | None = None, compiled: bool | None = None, score_bytes: int = 1 << 30) -> Tensor:  # fmt: skip
    """Non-causal attention with NVFP4 Q, K, V and probabilities, as a recipe of the library defines it.

    Parameters
    ----------
    q, k, v
        [B, Sq, H, D], [B, Sk, H, D] twice; float32, float16 or bfloat16, on one device; D a multiple of 16 from 32 to 256. Finite.
    recipe
        "nvfp4", "sage3" or "vsmooth4", with changes if wanted: "vsmooth4,rounding=nearest,block=64".
    permutation
        Order of the keys, [B, H, Sk] int32 or int64: sorted[i] = original[permutation[i]]. None: as the library, which groups the keys of
        vsmooth4 for this call alone and takes those of nvfp4 and sage3 in sequence order.
    sm_scale
        Softmax scale; None: 1 / sqrt(D).
    state
        Place in a grouping schedule, from `vcattn.GroupingState.at`, instead of a permutation.
    compiled
        Run elementwise passes under `torch.compile`; None: on CUDA devices only. Every new shape compiles anew.
    score_bytes
        Query tiles are taken together as far as their FP32 scores fit here.

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
    Scale factors, codes and means are those of the library up to last bits of FP32 sums, which shaped rounding passes on to other codes.
    Dequantised operands are exact in BF16, and products accumulate in FP32. Where a later key tile raises the row maximum, earlier
    probabilities are rescaled in BF16 and not in the accumulator. Grouping on a CUDA device needs a GPU that vcattn serves.
    """
    options = _checked_options(q, k, v, recipe, permutation, state)
    (batch, seqlen_q, num_heads, head_dim), seqlen_kv = q.shape, k.shape[1]
    run = functools.partial(_function, compiled=q.is_cuda if compiled is None else compiled)
    order = _key_order(v, recipe, options, permutation, state)
    rows_q, rows_k, rows_v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # [G, S, D], G = B H

    query, key, query_mean, key_high = run(_smooth_query_key)(rows_q, rows_k, order, bool(options.k_mean), bool(options.q_mean),
                                                              bool(options.hadamard))  # fmt: skip
    query_codes, key_codes, descale = _query_key_codes(query, key, options.qk_rounding, run)
    values, *restoration = run(_value_operand)(rows_v, order, bool(options.v_mean), options.v_block, bool(options.v_per_channel),
                                               bool(options.v_mean and options.emc))  # fmt: skip

    sm_scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    bias = torch.zeros(1, 1, key.shape[1], device=q.device)
    bias[..., seqlen_kv:] = -math.inf  # padding has probability 0
    if options.q_mean:  # [EQ-QMEAN] in FP64, which no TF32 setting touches
        bias = bias + sm_scale * CODES_PER_NAT * (query_mean.double() @ key_high.double().mT).float()
    top = NVFP4_RANGE if options.prob == TWO_LEVEL else 1.0
    out = query.new_empty(len(query), query.shape[1], head_dim)
    rows = TILE * max(1, score_bytes // (4 * TILE * len(key) * key.shape[1]))
    for first in range(0, query.shape[1], rows):
        chunk = slice(first, first + rows)
        bias_of_chunk = bias[:, first // TILE : (first + rows) // TILE] if options.q_mean else bias
        scores = _product(query_codes[:, chunk], key_codes.mT), sm_scale * CODES_PER_NAT * descale, bias_of_chunk, top
        p = run(_probabilities)(*scores, *run(_probability_scaling)(*scores))
        out[:, chunk] = run(_restore)(_product(p, values), *restoration)
    return out[:, :seqlen_q].unflatten(0, (batch, num_heads)).transpose(1, 2).to(q.dtype)


def _checked_options(q: Tensor, k: Tensor, v: Tensor, recipe: str, permutation: Tensor | None, state: StepState | None) -> _abi.Options:
    options = _abi.options(recipe)
    if options.qk != QK_NVFP4 or options.v != V_NVFP4 or options.prob not in PROBABILITIES:
        raise ValueError(f"recipe must have NVFP4 Q, K, V and P, as nvfp4, sage3 and vsmooth4; got {recipe!r}; use vcattn.attention()")
    shapes = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
    alike = q.ndim == k.ndim == 4 and k.shape == v.shape and (q.shape[0], *q.shape[2:]) == (k.shape[0], *k.shape[2:])
    if not alike or not q.numel() * k.numel():
        raise ValueError(f"q must be [B, Sq, H, D], k and v [B, Sk, H, D], none empty; got {shapes}; repeat the heads of K and V")
    if q.shape[3] % GROUP or not 32 <= q.shape[3] <= 256:
        raise ValueError(f"D must be a multiple of {GROUP} in 32..256; got {shapes}; pad q, k and v with zeros and pass sm_scale")
    if {x.dtype for x in (q, k, v)} - {torch.float32, torch.float16, torch.bfloat16}:
        raise ValueError(f"q, k and v must be float32, float16 or bfloat16; got {q.dtype}, {k.dtype} and {v.dtype}; convert them")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device; got {q.device}, {k.device} and {v.device}; move them")
    if permutation is not None and state is not None:
        raise ValueError("permutation and state both say in which order the keys come; got both; pass one of them")
    return options


def _key_order(v: Tensor, recipe: str, options: _abi.Options, permutation: Tensor | None, state: StepState | None) -> Tensor | None:
    """Permutation of the keys [G, Sk]; None: sequence order."""
    batch, seqlen_kv, num_heads, _ = v.shape
    if permutation is not None:
        if permutation.shape != (batch, num_heads, seqlen_kv) or permutation.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"permutation must be [B, H, Sk] = [{batch}, {num_heads}, {seqlen_kv}] of int32 or int64; got "
                             f"{list(permutation.shape)} of {permutation.dtype}")  # fmt: skip
        return permutation.to(v.device, torch.int64).flatten(0, 1)
    if state is None:
        if options.order == ORDER_SEQUENCE or (options.order == ORDER_AUTO and not options.v_mean):
            return None
        state = GroupingState(total_steps=1, policy="every_step").at(0, layer=0)
    request = _core.Request(v, v, v, "NHD", recipe=recipe)
    with request.device.current():
        buffer = state.permutation(request.problem, request.options, request.device)
    return None if buffer is None else torch.as_tensor(buffer.data).long().view(batch * num_heads, seqlen_kv)


@functools.cache
def _function(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True) if compiled else function


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched product of BF16 matrices in FP32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


def _e2m1(x: Tensor) -> Tensor:
    """[EQ-E2M1] Nearest value, ties to even, saturating."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    steps_per_unit = torch.where(a < 2, 2.0, torch.where(a < 4, 1.0, 0.5))  # no division, since this is the inner loop
    return torch.copysign(torch.round(a * steps_per_unit) * step, x)


def _scale_factors(amax16: Tensor) -> tuple[Tensor, Tensor]:
    """[EQ-NVFP4] UE4M3 scale factors of groups, and their reciprocals, 0 for a factor of 0."""
    factors = (amax16 / 6).clamp(max=448.0).to(torch.float8_e4m3fn).float()
    return factors, torch.where(factors == 0, 0.0, 1 / factors)


def _nvfp4(x: Tensor, descale: Tensor) -> Tensor:
    """[EQ-NVFP4] Codes times scale factors, with groups along the last dimension."""
    groups = (x * (1 / descale)).unflatten(-1, (-1, GROUP))
    factors, inverse = _scale_factors(groups.abs().amax(-1, keepdim=True))
    return (_e2m1(groups * inverse) * factors).flatten(-2).bfloat16()


def _padded(x: Tensor, order: Tensor | None, width: int) -> Tensor:
    """Rows [G, S, D] in their order, with zeros up to whole tiles and `width` channels."""
    x = x if order is None else x.gather(1, order[..., None].expand_as(x))
    return F.pad(x, (0, width - x.shape[2], 0, -x.shape[1] % TILE))


def _hadamard(x: Tensor) -> Tensor:
    """[EQ-HADAMARD] In FP64, which no TF32 setting touches."""
    channel = torch.arange(x.shape[-1], device=x.device)
    parity = channel[:, None] & channel  # of the bits that two channels share, at most eight
    for shift in (4, 2, 1):
        parity = parity ^ (parity >> shift)
    return (x.double() @ (1 - 2 * (parity & 1)).double() / math.sqrt(x.shape[-1])).float()


def _smooth_query_key(q: Tensor, k: Tensor, order: Tensor | None, k_mean: bool, q_mean: bool, hadamard: bool) -> tuple[Tensor, ...]:
    """What comes before quantisation: Q and K [G, S padded, D padded], Q means [G, tiles, D padded], and K in BF16 for them."""
    k = k.float() - k.float().mean(1, keepdim=True) if k_mean else k.float()  # [EQ-KMEAN]
    width, seqlen_q = 1 << (q.shape[2] - 1).bit_length(), q.shape[1]
    q, k = _padded(q.float(), None, width), _padded(k, order, width)
    if hadamard:
        q, k = _hadamard(q), _hadamard(k)
    tiles = q.unflatten(1, (-1, TILE))
    valid = (torch.arange(q.shape[1], device=q.device) < seqlen_q).view(-1, TILE, 1)
    mean = tiles.sum(2, keepdim=True) / valid.sum(1, keepdim=True)  # [EQ-QMEAN]
    return torch.where(valid, tiles - mean, 0.0).flatten(1, 2) if q_mean else q, k, mean.squeeze(2), k.bfloat16()


def _query_key_codes(q: Tensor, k: Tensor, rounding: int, run: Callable[..., Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Codes times scale factors of Q and K in BF16, and the product of their descales [G, 1, 1]."""
    amax = [x.abs().amax((1, 2), keepdim=True) for x in (q, k)]
    descale_q, descale_k = (torch.where(a < SMALLEST_AMAX, 1.0, a / NVFP4_RANGE) for a in amax)
    # [EQ-SHAPED] each by the other one, before rounding. 0: neither, 1: K, 2: both
    codes_q = _shaped(q, descale_q, _feedback(k, amax[1]), run) if rounding == 2 else run(_nvfp4)(q, descale_q)
    codes_k = _shaped(k, descale_k, _feedback(q, amax[0]), run) if rounding else run(_nvfp4)(k, descale_k)
    return codes_q, codes_k, descale_q * descale_k


def _feedback(other: Tensor, amax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[EQ-SHAPED] W [G, D, D] as FP32; from blocks of channels to later ones as integers in BF16, with their scales [G, D, 1]."""
    width, tiles = other.shape[2], other.unflatten(1, (-1, TILE))
    rows = tiles[:, :: -(-tiles.shape[1] // 64)].flatten(1, 2)
    rows = torch.round(rows * (127 / amax.clamp(min=SMALLEST_AMAX))).bfloat16()
    moment, identity = _product(rows.mT, rows), torch.eye(width, device=other.device)
    trace = moment.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=SMALLEST_AMAX)
    # H = U diag U^T from the Cholesky factor of H with rows and columns reversed.
    upper = torch.linalg.cholesky_ex((moment * (width / trace) + 0.01 * identity).flip(1, 2)).L.flip(1, 2)
    upper = upper / upper.diagonal(dim1=1, dim2=2)[:, None]
    w = torch.linalg.solve_triangular(upper, identity.expand_as(upper), upper=True, unitriangular=True)
    block = torch.arange(width, device=w.device) // GROUP
    between = torch.where(block[:, None] < block, w, 0.0)
    largest = between.abs().amax(1, keepdim=True)
    integers = torch.round(between * torch.where(largest < SMALLEST_AMAX, 0.0, 127 / largest)).bfloat16()
    return w, integers, largest.mT / 127


def _shaped(x: Tensor, descale: Tensor, feedback: tuple[Tensor, Tensor, Tensor], run: Callable[..., Any]) -> Tensor:
    """[EQ-SHAPED] Codes times scale factors of rows [G, S, D], block of channels by block."""
    w, integers, scales = feedback
    targets = (x * (1 / descale)).mT.contiguous()
    factors, inverse = _scale_factors(targets.unflatten(1, (-1, GROUP)).abs().amax(2))
    unit = factors.amax(1)
    codes, errors = torch.empty_like(targets, dtype=torch.bfloat16), torch.zeros_like(targets, dtype=torch.bfloat16)
    for group in range(factors.shape[1]):
        block = slice(group * GROUP, (group + 1) * GROUP)
        earlier = _product(integers[:, :, block].mT, errors)  # exact, being integers
        codes[:, block], errors[:, block] = run(_shape_block)(
            targets[:, block], earlier, scales[:, block], factors[:, group], inverse[:, group], unit, w[:, block, block])  # fmt: skip
    return codes.mT


def _shape_block(
    target: Tensor, earlier: Tensor, scales: Tensor, factor: Tensor, inverse: Tensor, unit: Tensor, w: Tensor
) -> tuple[Tensor, Tensor]:
    """Values, and errors in steps of 1/64 unit, of 16 channels; target and earlier [G, 16, S], factor, inverse and unit [G, S]."""
    target = target + scales * (unit / 64)[:, None] * earlier
    values: list[Tensor] = []
    errors: list[Tensor] = []
    for f in range(GROUP):
        t = target[:, f]
        for d in range(f):
            t = t + errors[d] * w[:, d, f, None]
        values.append(_e2m1(t * inverse) * factor)
        errors.append(values[f] - t)
    steps_per_unit = torch.where(unit > 0, 64 / unit, 0.0)[:, None]
    return torch.stack(values, 1), torch.round(torch.stack(errors, 1) * steps_per_unit).clamp(-127, 127)


def _value_operand(v: Tensor, order: Tensor | None, v_mean: bool, block: int, per_channel: bool, emc: bool) -> tuple[Tensor, ...]:
    """Codes times scale factors of V, beside an indicator of its blocks whose product with P is their row sums, [G, Sk padded, D + blocks];
    descale [G, 1, 1 or D]; means of the blocks in its units [G, blocks, D]; global mean [G, 1, D]."""
    seqlen_kv, width = v.shape[1:]
    rows = _padded(v.float(), order, width)
    blocks = rows.unflatten(1, (-1, block))
    valid = (torch.arange(rows.shape[1], device=v.device) < seqlen_kv).view(-1, block, 1)
    count = valid.sum(1, keepdim=True)
    global_mean = v.float().mean(1)[:, None, None] * v_mean
    mean = torch.where(count > 0, blocks.sum(2, keepdim=True) / count.clamp(min=1) - global_mean, 0.0) * v_mean  # [EQ-VSMOOTH]
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
    indicator = (torch.arange(rows.shape[1], device=v.device)[:, None] // block == number).bfloat16()
    return torch.cat([codes.flatten(1, 2), indicator.expand(len(v), -1, -1)], -1), descale[:, 0], stored[:, :, 0], global_mean[:, 0]


def _code_units(s: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    """Scores [G, rows, Sk] in 1/8 octave, as [G, tiles, 128, key tiles, 8, 16]. factor: [G, 1, 1]; bias: [G, tiles, Sk] or [1, 1, Sk]."""
    return (s.unflatten(1, (-1, TILE)) * factor[..., None] + bias[:, :, None]).unflatten(-1, (-1, TILE // GROUP, GROUP))


def _probability_scaling(s: Tensor, factor: Tensor, bias: Tensor, top: float) -> tuple[Tensor, Tensor, Tensor]:
    """[EQ-P-NVFP4] Row maximum after each key tile; what brings the probabilities of a group to E2M1, and what brings codes back, under the
    last row maximum. top: what a row maximum becomes."""
    largest = _code_units(s, factor, bias).amax(-1)
    row_max = largest.amax(-1, keepdim=True).cummax(-2).values
    factors, inverse = _scale_factors(torch.exp2((largest - row_max) / 8) * top)
    return row_max, inverse, factors * torch.exp2((row_max - row_max[..., -1:, :]) / 8)  # [EQ-RESCALE]


def _probabilities(s: Tensor, factor: Tensor, bias: Tensor, top: float, row_max: Tensor, inverse: Tensor, factors: Tensor) -> Tensor:
    """[EQ-P-NVFP4] Quantised and dequantised, [G, rows, Sk] in BF16."""
    p = torch.exp2((_code_units(s, factor, bias) - row_max[..., None]) / 8) * top
    return (_e2m1(p * inverse[..., None]) * factors[..., None]).bfloat16().flatten(3).flatten(1, 2)


def _restore(sums: Tensor, descale: Tensor, block_means: Tensor, global_mean: Tensor) -> Tensor:
    """[EQ-RESTORE] sums [G, rows, D + blocks]: P times codes of V, then the row sums of the blocks. FP64 as for Hadamard."""
    head_dim = block_means.shape[2]
    row_sums = sums[..., head_dim : head_dim + block_means.shape[1]]
    of_means = (row_sums.double() @ block_means.double()).float()
    return descale * (sums[..., :head_dim] + of_means) / row_sums.sum(-1, keepdim=True) + global_mean
