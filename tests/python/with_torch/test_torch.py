"""torch tensors on the CPU: results, operators, compilation, fall-back."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from reference import TOLERANCE, relative_error, softmax_attention
from safetensors.torch import load_file

import vcattn
from vcattn import _torch  # noqa: F401  registers the operators


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def tensors(batch=2, heads=4, heads_kv=2, seqlen_q=70, seqlen_kv=131, head_dim=64, dtype=torch.float32):
    return (torch.randn(batch, heads, seqlen_q, head_dim, dtype=dtype), torch.randn(batch, heads_kv, seqlen_kv, head_dim, dtype=dtype),
            torch.randn(batch, heads_kv, seqlen_kv, head_dim, dtype=dtype))  # fmt: skip


def same(a, b):
    return torch.equal(a, b)


@pytest.mark.parametrize("recipe", ["vc8", "vc8s", "vsmooth8", "vsmooth8s", "exact"])
def test_bits_are_those_of_numpy(recipe):
    q, k, v = tensors()
    out, lse = vcattn.attention(q, k, v, recipe=recipe, return_lse=True)
    expected, expected_lse = vcattn.attention(q.numpy(), k.numpy(), v.numpy(), recipe=recipe, return_lse=True)
    assert (out.numpy() == expected).all() and (lse.numpy() == expected_lse).all() and lse.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_mixtures(dtype):
    q, k, v = tensors(dtype=dtype)
    expected, _ = softmax_attention(*(x.float().numpy() for x in (q, k, v)))
    for case in ((q, k, v), (q.float(), k.float(), v)):
        out = vcattn.attention(*case)
        assert out.dtype == case[0].dtype
        assert relative_error(out.float().numpy(), expected) < TOLERANCE["vc8s"]


def test_views_layouts_and_output_strides():
    q, k, v = tensors(heads=2)
    expected = vcattn.attention(q, k, v)
    fused = torch.stack([x.transpose(1, 2) for x in (torch.zeros_like(k), k, v)], dim=2)  # [B, Sk, 3, Hkv, D], NHD views inside
    assert same(vcattn.attention(q, fused[:, :, 1].transpose(1, 2), fused[:, :, 2].transpose(1, 2)), expected)
    nhd = q.transpose(1, 2).contiguous()
    out = vcattn.attention(nhd.transpose(1, 2), k, v)
    assert same(out, expected) and out.stride() == nhd.transpose(1, 2).stride()
    assert same(vcattn.attention(nhd, k.transpose(1, 2), v.transpose(1, 2), "NHD").transpose(1, 2), expected)
    given = torch.empty(2, 70, 2, 64, dtype=torch.bfloat16).transpose(1, 2)
    assert vcattn.attention(q, k, v, out=given) is given and same(given, expected.bfloat16())


def test_padding_and_masks():
    q, k, v = tensors(seqlen_q=131)
    lengths = torch.tensor([131, 40])
    keys = torch.arange(131) < lengths[:, None]
    k[1, :, 40:], v[1, :, 40:] = float("nan"), 1e4
    expected = vcattn.attention(q, k, v, seqused_k=lengths)
    assert torch.isfinite(expected).all()
    for mask in (keys, keys[:, None, None], keys[:, None, None].expand(2, 4, 131, 131),
                 torch.zeros(2, 1, 1, 131).masked_fill(~keys[:, None, None], float("-inf"))):  # fmt: skip
        assert same(vcattn.attention(q, k, v, attn_mask=mask), expected)
    product = keys[:, None, None, :] & keys[:, None, :, None]
    out = vcattn.attention(q, k, v, attn_mask=product)
    assert same(out[0], expected[0]) and same(out[1, :, :40], expected[1, :, :40]) and (out[1, :, 40:] == 0).all()


def test_varlen_and_prepared():
    q, k, v = torch.randn(40, 4, 64), torch.randn(131, 2, 64), torch.randn(131, 2, 64)
    cu_q, cu_k = torch.tensor([0, 10, 40], dtype=torch.int32), torch.tensor([0, 60, 131], dtype=torch.int32)
    out, lse = vcattn.attention_varlen(q, k, v, cu_q, cu_k, 30, 71, return_lse=True)
    expected, expected_lse = vcattn.attention_varlen(q.numpy(), k.numpy(), v.numpy(), [0, 10, 40], [0, 60, 131], return_lse=True)
    assert (out.numpy() == expected).all() and (lse.numpy() == expected_lse).all()
    q, k, v = tensors(dtype=torch.bfloat16)
    prepared = vcattn.prepare(q, k, v)
    expected = vcattn.attention(q, k, v)
    q.zero_(), k.zero_(), v.zero_()
    assert same(vcattn.attention_prepared(prepared), expected)


def test_state():
    q, k, v = tensors(heads_kv=4, seqlen_kv=600)
    state = vcattn.GroupingState(total_steps=8)
    expected = vcattn.attention(q.numpy(), k.numpy(), v.numpy())
    assert (vcattn.attention(q, k, v, state=state.at(0, layer=0)).numpy() == expected).all() and len(state) == 1


def test_audit_and_compat():
    q, k, v = tensors(heads=2, seqlen_q=300, seqlen_kv=300, dtype=torch.bfloat16)
    audit = vcattn.audit(q, k, v, "vc8", queries=64)
    assert 0.01 < audit.rel_l2 < TOLERANCE["vc8"]
    mask = torch.arange(300) < 200
    got = vcattn.compat.sdpa(q, k, v, mask[None])
    exact = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask[None].expand(300, 300))
    assert relative_error(got.float().numpy(), exact.numpy()) < TOLERANCE["vc8s"]


@pytest.mark.parametrize("recipe", ["vc8", "vc8s", "vsmooth4"])
def test_audit_of_a_capture_agrees_with_a_full_comparison(recipe):
    capture = load_file(Path(__file__).parents[3] / "data" / "wan_nano_2k_s10_l5.safetensors")
    q, k, v = (capture[name].transpose(1, 2) for name in "qkv")
    full = relative_error(vcattn.attention(q, k, v, recipe=recipe).float(), vcattn.attention(*(x.float() for x in (q, k, v)), recipe="exact"))
    assert vcattn.audit(q, k, v, recipe, queries=256).rel_l2 == pytest.approx(full, rel=0.1)


def test_errors():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="float64"):
        vcattn.attention(q.double(), k, v)
    with pytest.raises(TypeError, match="k must be of the kind of q, Tensor; got ndarray"):
        vcattn.attention(q, k.numpy(), v)
    assert vcattn.attention(q.to("meta"), k.to("meta"), v.to("meta")).shape == q.shape  # only shapes, as everywhere in torch
    assert vcattn.supports(q.to("meta"), k, v) == (False, "q must be on the CPU or a CUDA device; got meta; move it")
    with pytest.raises(TypeError, match="unexpected keyword"):
        vcattn.attention(q, k, v, dropout_p=0.0)


def test_fallback_is_named_counted_and_warned_of_once():
    q, k, v = (torch.randn(1, 2, 50, 20) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    with pytest.raises(vcattn.UnsupportedError, match="head_dim"):
        vcattn.attention(q, k, v)
    with pytest.warns(RuntimeWarning, match="head_dim must be a multiple of 8"):
        out = vcattn.attention(q, k, v, fallback="sdpa")
    assert same(vcattn.attention(q, k, v, fallback="sdpa"), out)  # no second warning: they are errors
    assert torch.allclose(out, expected, atol=1e-6)
    (reason, count), = vcattn.stats()["fallback"].items()
    assert reason.startswith("sdpa: head_dim") and count == 2 and vcattn.stats()["served"] == {}
    with pytest.raises(vcattn.UnsupportedError, match="gives no lse"):
        vcattn.attention(q, k, v, fallback="sdpa", return_lse=True)
    with pytest.raises(ValueError):  # a mistake is no reason to fall back
        vcattn.attention(q, k[:, :, :3], v, fallback="sdpa")


def test_no_silent_gradient():
    q, k, v = tensors()
    out = vcattn.attention(q.requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        out.sum().backward()


def test_fallback_treats_lengths_and_padding_as_attention_does():
    q, k, v = (torch.randn(2, 2, 50, 20) for _ in range(3))
    lengths = [50, 30]
    expected, _ = softmax_attention(*(x.numpy() for x in (q, k, v)), lengths=lengths)
    k[1, :, 30:], v[1, :, 30:] = float("nan"), float("inf")
    keys = torch.arange(50) < torch.tensor(lengths)[:, None]
    additive = torch.zeros(keys.shape, dtype=torch.float64).masked_fill(~keys, float("-inf"))
    with pytest.warns(RuntimeWarning):
        for options in ({"seqused_k": lengths}, {"attn_mask": keys}, {"attn_mask": additive[:, None, None]}):
            assert relative_error(vcattn.attention(q, k, v, fallback="sdpa", **options), expected) < 1e-6
    for is_causal in (False, True):
        out = vcattn.attention(q, k, v, seqused_k=[50, 0], is_causal=is_causal, fallback="sdpa")
        assert torch.isfinite(out).all() and (out[1] == 0).all()
    for bad in ([50], [50, 51], [-1, 50], [50, 2**32]):
        with pytest.raises(ValueError, match="seqused_k"):
            vcattn.attention(q, k, v, seqused_k=bad, fallback="sdpa")


def test_fallback_serves_masks_of_queries():
    q, k, v = (torch.randn(2, 2, 50, 64) for _ in range(3))
    expected, _ = softmax_attention(*(x.numpy() for x in (q, k, v)), causal=True)
    triangle = torch.ones(50, 50, dtype=torch.bool).tril()
    with pytest.warns(RuntimeWarning, match="is no key padding"):
        for mask in (triangle, triangle[None], triangle.expand(2, 2, 50, 50)):
            assert relative_error(vcattn.attention(q, k, v, attn_mask=mask, fallback="sdpa"), expected) < 1e-6
    with pytest.raises(ValueError, match=r"may be \[B, Sk\] or \[Sq, Sk\]"):
        vcattn.attention(*(x[:, :, :2] for x in (q, k, v)), attn_mask=triangle[:2, :2], fallback="sdpa")


def test_lazily_negated_views_are_refused():
    q, k, v = tensors()
    negated = torch.complex(q, q).conj().imag
    assert negated.is_neg()
    for case in ((negated, k, v), (q, torch.complex(k, k).conj().imag, v)):
        with pytest.raises(ValueError, match="resolve_neg"):
            vcattn.attention(*case)
        assert not vcattn.supports(*case)[0]
    assert same(vcattn.attention(negated.resolve_neg(), k, v), vcattn.attention(-q, k, v))


def test_tensors_without_memory_are_refused():
    q, k, v = tensors()
    for x in (q.to_sparse(), torch.nested.nested_tensor(list(q))):
        with pytest.raises(ValueError, match="q must be a dense tensor with memory of its own"):
            vcattn.attention(x, k, v)
        assert not vcattn.supports(x, k, v)[0]
    mask = torch.ones(2, 131, dtype=torch.bool, device="meta")
    with pytest.raises(vcattn.UnsupportedError, match="attn_mask must be on the CPU or a CUDA device; got meta"):
        vcattn.attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("name", ["k", "attn_mask", "seqused_k", "out"])
def test_meta_beside_others_is_refused_by_the_operator_too(name):
    q, k, v = tensors()
    options = {"k": k, "v": v}
    options[name] = {"k": k, "attn_mask": torch.ones(2, 1, 1, 131, dtype=torch.bool), "seqused_k": torch.tensor([1, 2]), "out": q}[name].to("meta")
    with pytest.raises(vcattn.UnsupportedError, match=f"{name} must be on the CPU or a CUDA device; got meta"):
        vcattn.attention(torch.nn.Parameter(q), **options)


def test_integers_are_integers():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="seqused_k must be a one-dimensional array of integers; got bfloat16"):
        vcattn.attention(q, k, v, seqused_k=torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="attn_mask must be dense"):
        vcattn.attention(q, k, v, attn_mask=torch.ones(2, 1, 1, 131).to_sparse())
    with pytest.raises(ValueError, match="got float8_e4m3fn"):
        vcattn.attention(q, k, v, attn_mask=torch.zeros(2, 1, 1, 131).to(torch.float8_e4m3fn))


def test_autograd_knows_that_out_was_written():
    q, k, v = tensors()
    saved = torch.randn(q.shape, requires_grad=True).exp()
    with torch.no_grad():
        vcattn.attention(q, k, v, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    saved = torch.randn(q.shape, requires_grad=True).exp()
    with torch.no_grad():
        vcattn.attention_prepared(vcattn.prepare(q, k, v), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    leaf = torch.empty_like(q, requires_grad=True)
    with pytest.raises(ValueError, match="out must not require a gradient"):
        vcattn.attention(q, k, v, out=leaf)
    with torch.inference_mode():
        out = torch.empty_like(q)
        assert same(vcattn.attention(q, k, v, out=out), vcattn.attention(q, k, v))


def test_transforms_are_refused():
    q, k, v = tensors()
    with pytest.raises(vcattn.UnsupportedError, match="torch.vmap is not supported; make the mapped dimension part of the batch"):
        torch.vmap(lambda k: vcattn.attention(q, k, v))(k[None])
    with pytest.raises(vcattn.UnsupportedError, match="no gradient"):
        torch.func.jvp(lambda q: vcattn.attention(q, k, v), (q,), (q,))
    with pytest.raises(vcattn.UnsupportedError, match="no gradient"):
        torch.func.grad(lambda v: vcattn.attention(q, k, v).sum())(v)
    with forward_ad.dual_level():
        with pytest.raises(vcattn.UnsupportedError, match="no gradient"):
            vcattn.attention(q, forward_ad.make_dual(k, k), v)
        dual = forward_ad.make_dual(k, k)
        with pytest.raises(vcattn.UnsupportedError, match="no gradient"):
            vcattn.prepare(q, dual, v)
        assert not vcattn.supports(q, dual, v)[0] and vcattn.supports(q, k, v)[0]
        assert same(vcattn.attention(q, k, v), vcattn.attention(q, k, v))


def test_shapes_alone_do_not_hide_mistakes():
    q, k, v = (x.to("meta") for x in tensors())
    for arguments, options, text in (((q, k, v, "BSHD"), {}, "tensor_layout"), ((q, k, v), {"recipe": "vc9"}, "vc9"),
                                     ((q.double(), k, v), {}, "float64"), ((q[0], k, v), {}, "4 dimensions")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            vcattn.attention(*arguments, **options)


def test_a_graph_whose_state_is_gone_says_so():
    q, k, v = tensors()
    state = vcattn.GroupingState(8).at(0, layer=0)
    token = state.token
    del state
    with pytest.raises(ValueError, match="the grouping state of this call is gone"):
        torch.ops.vcattn.attention(q, k, v, "HND", False, None, "vc8s", None, None, token, "error", False)


OPTIONS = ("HND", False, None, "vc8s", None, None, 0, "error")


@pytest.mark.parametrize("name", ["attention", "attention_out", "attention_varlen", "nhd"])
def test_opcheck(name):
    q, k, v = tensors(dtype=torch.bfloat16)
    if name == "attention":
        torch.library.opcheck(torch.ops.vcattn.attention.default, (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, *OPTIONS, True))
    elif name == "nhd":
        torch.library.opcheck(torch.ops.vcattn.attention.default, (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), "NHD", *OPTIONS[1:], True))
    elif name == "attention_out":
        torch.library.opcheck(torch.ops.vcattn.attention_out.default, (q, k, v, torch.empty_like(q), *OPTIONS, False))
    else:
        cu_q, cu_k = torch.tensor([0, 40, 70]), torch.tensor([0, 100, 131])
        torch.library.opcheck(torch.ops.vcattn.attention_varlen.default, (q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1),
                                                                          cu_q, cu_k, None, None, False, None, "vc8", True))  # fmt: skip


class Block(torch.nn.Module):
    def __init__(self, channels=128, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, torch.nn.Linear(channels, 3 * channels), torch.nn.Linear(channels, channels)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # views of a fused projection
        out = vcattn.attention(q, k, v, "NHD", attn_mask=mask, fallback="sdpa")
        return x + self.out(out.flatten(2))


def test_whoever_looks_sees_an_operator():
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def calls(q, k, v):
        varlen = vcattn.attention_varlen(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), [0, 70], [0, 131])
        return vcattn.attention(q, k, v), vcattn.attention(q, k, v, out=torch.empty_like(q)), varlen

    q, k, v = tensors()
    seen, operators = [], ["vcattn.attention.default", "vcattn.attention_out.default", "vcattn.attention_varlen.default"]
    with Watch():
        calls(q, k, v)
    assert set(operators) <= set(seen)
    assert set(operators) <= {str(node.target) for node in make_fx(calls)(q, k, v).graph.nodes}
    assert "vcattn::attention" in str(torch.jit.trace(lambda q, k, v: vcattn.attention(q, k, v), (q, k, v), check_trace=False).graph)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        assert all(type(x) is not torch.Tensor for x in calls(*fakes))
    assert vcattn.attention(torch.nn.Parameter(q), k, v).requires_grad
    with torch.no_grad():
        assert same(vcattn.attention(torch.nn.Parameter(q), k, v), vcattn.attention(q, k, v))


@pytest.mark.parametrize("masked", [False, True])
def test_compile_fullgraph(masked):
    model = torch.nn.Sequential(Block(), Block()) if not masked else Block()
    x = torch.randn(2, 100, 128)
    arguments = (x, torch.arange(100) < torch.tensor([[100], [60]])) if masked else (x,)
    with torch.no_grad():
        expected = model(*arguments)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(*arguments), expected, atol=1e-5)
        assert vcattn.stats()["served"] == {"auto": 2 * len(list(m for m in model.modules() if isinstance(m, Block)))}


def test_threads_do_not_mix_errors_or_results():
    q, k, v = tensors()
    expected, failures = vcattn.attention(q, k, v), []

    def work(bad):
        for _ in range(20):
            try:
                out = vcattn.attention(q, k, v, seqused_k=[9999, 1] if bad else None)
                if bad or not same(out, expected):
                    failures.append("wrong result")
            except ValueError as error:
                if not bad or "9999" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert failures == []


def test_supports_agrees_on_masks():
    q, k, v = tensors(seqlen_q=131)
    hole = torch.ones(2, 131, dtype=torch.bool)
    hole[0, 3] = False
    ok, reason = vcattn.supports(q, k, v, attn_mask=hole)
    assert not ok and "seqused_k" in reason
    assert vcattn.supports(q, k, v, attn_mask=hole[:, None, None, 4:], seqused_k=None)[0] is False
    assert vcattn.supports(q, k, v, attn_mask=torch.ones(2, 131, dtype=torch.bool)) == (True, "")
    assert np.isfinite(vcattn.attention(q, k, v, attn_mask=torch.ones(2, 131, dtype=torch.bool)).numpy()).all()
