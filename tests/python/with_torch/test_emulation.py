"""examples/python/emulation.py against the CPU back end."""

import importlib.util
from pathlib import Path

import pytest
import torch
from reference import relative_error
from safetensors.torch import load_file

import vcattn

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("emulation", ROOT / "examples" / "python" / "emulation.py")
_emulation = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_emulation)
emulated_attention = _emulation.emulated_attention

NEAREST = ("nvfp4", "sage3", "vsmooth4,rounding=nearest", "sage3,v_mean=on,block=32,v_scaling=channel,order=sequence")
SHAPED = ("vsmooth4", "vsmooth4,rounding=shaped_k,hadamard=off,q_mean=off,block=64")
# Difference from the library over its error. Nearest rounding leaves sums in another order and rescaling in BF16; shaped rounding passes
# the last bit of a sum on to the codes of all later channels.
LARGEST_DIFFERENCE = {**dict.fromkeys(NEAREST, 0.02), **dict.fromkeys(SHAPED, 0.15)}


def tensors(seqlen_q=333, seqlen_kv=517, head_dim=64, batch=2):
    """Channels of different size, a mean of K, and values of several kinds, so that every part of a recipe has something to do."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(batch, seqlen, 2, head_dim) for seqlen in (seqlen_q, seqlen_kv, seqlen_kv))
    kinds = torch.randn(9, head_dim)[torch.randint(9, v.shape[:3])]
    return q * torch.linspace(0.3, 2, head_dim) + 0.5, k * torch.linspace(2, 0.3, head_dim) + 1, 0.4 * v + kinds


def capture():
    return tuple(load_file(ROOT / "data" / "wan_nano_2k_s10_l5.safetensors")[name].float() for name in "qkv")


def check(q, k, v, recipe, sm_scale=None):
    exact, expected = (vcattn.attention(q, k, v, "NHD", recipe=name, sm_scale=sm_scale) for name in ("exact", recipe))
    out = emulated_attention(q, k, v, recipe, sm_scale=sm_scale)
    error = relative_error(expected, exact)
    assert abs(relative_error(out, exact) - error) < 0.03 * error + 1e-7  # a single key is exact
    assert relative_error(out, expected) < LARGEST_DIFFERENCE[recipe] * error + 1e-7


@pytest.mark.parametrize("recipe", NEAREST + SHAPED)
def test_agrees_with_the_library(recipe):
    check(*tensors(), recipe)


@pytest.mark.parametrize("recipe", ["nvfp4", "sage3", "vsmooth4"])
def test_agrees_on_a_capture(recipe):
    check(*capture(), recipe)


@pytest.mark.parametrize("seqlen_q, seqlen_kv, head_dim", [(1, 1, 32), (127, 129, 96), (128, 17, 48), (257, 128, 256)])
@pytest.mark.parametrize("recipe", ["nvfp4", "sage3", "vsmooth4,rounding=nearest"])
def test_odd_sizes(recipe, seqlen_q, seqlen_kv, head_dim):
    check(*tensors(seqlen_q, seqlen_kv, head_dim, batch=1), recipe, sm_scale=0.1)


def test_dtypes_views_and_chunks():
    q, k, v = tensors()
    out = emulated_attention(q, k, v, "sage3")
    assert out.shape == q.shape and out.dtype == torch.float32
    assert torch.equal(emulated_attention(q, k, v, "sage3", score_bytes=1), out)
    halves = [x.bfloat16() for x in (q, k, v)]
    expected = emulated_attention(*(x.float() for x in halves), "sage3").bfloat16()
    assert torch.equal(emulated_attention(*halves, "sage3"), expected)
    assert torch.equal(emulated_attention(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in halves), "sage3"), expected)


def test_order_of_the_keys():
    q, k, v = tensors(batch=1)
    recipe = "vsmooth4,rounding=nearest"
    order = torch.argsort(torch.rand(1, 2, k.shape[1]), -1)
    index = order.transpose(1, 2)[..., None].expand_as(k)
    shuffled = emulated_attention(q, k, v, recipe, order)
    in_sequence = emulated_attention(q, k.gather(1, index), v.gather(1, index), f"{recipe},order=sequence")
    assert relative_error(shuffled, in_sequence) < 1e-3  # only the mean of K is summed in another order
    assert torch.equal(emulated_attention(q, k, v, recipe, order.int()), shuffled)
    exact = vcattn.attention(q, k, v, "NHD", recipe="exact")
    assert relative_error(emulated_attention(q, k, v, recipe), exact) < relative_error(shuffled, exact)  # grouping helps


def test_grouping_state():
    q, k, v = tensors(batch=1)
    recipe = "vsmooth4,rounding=nearest"
    state = vcattn.GroupingState(total_steps=8)
    first = emulated_attention(q, k, v, recipe, state=state.at(0, layer=0))
    assert torch.equal(first, emulated_attention(q, k, v, recipe)) and len(state) == 1
    assert torch.equal(emulated_attention(q, k, v, recipe, state=state.at(7, layer=0)), first)
    never = vcattn.GroupingState(total_steps=8, policy="never")
    in_sequence = emulated_attention(q, k, v, f"{recipe},order=sequence")
    assert torch.equal(emulated_attention(q, k, v, recipe, state=never.at(0, layer=0)), in_sequence)
    assert not torch.equal(in_sequence, first)


def test_zeros_and_a_constant_value():
    q, k, v = tensors(seqlen_q=40, seqlen_kv=50, batch=1)
    assert torch.equal(emulated_attention(q, k, 0 * v, "vsmooth4"), 0 * q)
    out = emulated_attention(0 * q, 0 * k, torch.ones_like(v), "vsmooth4")
    assert torch.allclose(out, torch.ones_like(out), atol=1e-6)


def test_errors():
    q, k, v = tensors(seqlen_q=20, seqlen_kv=30)
    order = torch.arange(30).expand(2, 2, 30)
    state = vcattn.GroupingState(total_steps=1).at(0, layer=0)
    for arguments, text in [((q, k, v, "vc8s"), "NVFP4.*got 'vc8s'"), ((q, k, v, "vsmooth5"), "vsmooth5"),
                            ((q, k[:, :, :1], v[:, :, :1], "sage3"), r"got \[2, 20, 2, 64\], \[2, 30, 1, 64\].*repeat"),
                            ((q, k, v[:, :29], "sage3"), "k and v"), ((q, k[:, :0], v[:, :0], "sage3"), "none empty"),
                            ((q[..., :40], k[..., :40], v[..., :40], "sage3"), "multiple of 16"),
                            ((q[..., :16], k[..., :16], v[..., :16], "sage3"), "32..256"),
                            ((q, k, v.double(), "sage3"), "float64"), ((q, k, v.to("meta"), "sage3"), "one device"),
                            ((q, k, v, "vsmooth4", order[:1]), r"permutation.*\[2, 2, 30\].*got \[1, 2, 30\]"),
                            ((q, k, v, "vsmooth4", order.float()), "permutation.*float32")]:  # fmt: skip
        with pytest.raises(ValueError, match=text):
            emulated_attention(*arguments)
    with pytest.raises(ValueError, match="permutation and state"):
        emulated_attention(q, k, v, "vsmooth4", order, state=state)
