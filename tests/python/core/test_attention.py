"""Numpy arrays in, numpy arrays out."""

import contextlib
import copy
import pickle
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from reference import TOLERANCE, relative_error, softmax_attention

import vcattn
from vcattn import _abi, _core, _device
from vcattn._device import Device


def tensors(rng, batch=2, heads=4, heads_kv=2, seqlen_q=70, seqlen_kv=131, head_dim=64, dtype=np.float32):
    shapes = ((batch, heads, seqlen_q, head_dim), (batch, heads_kv, seqlen_kv, head_dim), (batch, heads_kv, seqlen_kv, head_dim))
    return tuple(rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)


def nhd(x):
    return np.ascontiguousarray(x.swapaxes(1, 2))


@pytest.mark.parametrize("recipe", vcattn.RECIPES)
def test_recipe_against_fp64(rng, recipe):
    q, k, v = tensors(rng)
    before = [x.copy() for x in (q, k, v)]
    out, lse = vcattn.attention(q, k, v, recipe=recipe, return_lse=True)
    expected, expected_lse = softmax_attention(q, k, v)
    assert out.shape == q.shape and out.dtype == np.float32 and lse.shape == (2, 4, 70) and lse.dtype == np.float32
    assert relative_error(out, expected) < TOLERANCE[recipe]
    assert np.abs(lse - expected_lse).max() < 0.5 * TOLERANCE[recipe] + 1e-5
    assert all((x == y).all() for x, y in zip(before, (q, k, v)))
    assert vcattn.stats()["served"] == {recipe: 1}


def test_layouts_and_strides_give_the_same_bits(rng):
    q, k, v = tensors(rng)
    expected = vcattn.attention(q, k, v)
    assert (vcattn.attention(nhd(q), nhd(k), nhd(v), "NHD").swapaxes(1, 2) == expected).all()
    assert (vcattn.attention(*(nhd(x).swapaxes(1, 2) for x in (q, k, v))) == expected).all()
    assert (vcattn.attention(*(np.repeat(x, 2, axis=3)[..., ::2] for x in (q, k, v))) == expected).all()
    fused = np.concatenate([nhd(q), nhd(k).repeat(1, 0), nhd(v)][1:], axis=2)  # [B, Sk, 2 Hkv, D]
    assert (vcattn.attention(q, fused[:, :, :2].swapaxes(1, 2), fused[:, :, 2:].swapaxes(1, 2)) == expected).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtypes(rng, dtype):
    q, k, v = tensors(rng, dtype=dtype)
    out = vcattn.attention(q, k, v.astype(np.float32))
    assert out.dtype == dtype
    assert relative_error(out, softmax_attention(q, k, v)[0]) < TOLERANCE["vc8s"]


def test_bfloat16_of_ml_dtypes(rng):
    q, k, v = tensors(rng, dtype=ml_dtypes.bfloat16)
    out = vcattn.attention(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    assert relative_error(out.astype(np.float32), softmax_attention(*(x.astype(np.float32) for x in (q, k, v)))[0]) < TOLERANCE["vc8s"]


def test_scale_causal_and_lengths(rng):
    q, k, v = tensors(rng, seqlen_q=131)
    assert relative_error(vcattn.attention(q, k, v, sm_scale=0.3), softmax_attention(q, k, v, 0.3)[0]) < 0.1
    assert relative_error(vcattn.attention(q, k, v, is_causal=True), softmax_attention(q, k, v, causal=True)[0]) < 0.1
    k[0, :, 50:] = np.nan
    v[0, :, 50:] = 1e4
    out, lse = vcattn.attention(q, k, v, seqused_k=[50, 0], return_lse=True)
    assert relative_error(out[0], softmax_attention(q[:1], k[:1, :, :50], v[:1, :, :50])[0][0]) < 0.1
    assert (out[1] == 0).all() and (lse[1] == -np.inf).all()


@pytest.mark.parametrize("form", ["keys", "broadcast", "full", "product", "additive"])
def test_key_padding_masks(rng, form):
    q, k, v = tensors(rng, seqlen_q=131)
    lengths = np.array([131, 77])
    keys = np.arange(131) < lengths[:, None]
    mask = {
        "keys": keys,
        "broadcast": keys[:, None, None],
        "full": np.broadcast_to(keys[:, None, None], (2, 4, 131, 131)).copy(),
        "product": keys[:, None, None, :] & keys[:, None, :, None],
        "additive": np.where(keys, 0.0, -np.inf).astype(np.float32)[:, None, None],
    }[form]
    out, lse = vcattn.attention(q, k, v, attn_mask=mask, return_lse=True)
    expected, expected_lse = vcattn.attention(q, k, v, seqused_k=lengths, return_lse=True)
    if form == "product":  # padded queries see nothing
        expected[1, :, 77:], expected_lse[1, :, 77:] = 0, -np.inf
    assert (out == expected).all() and (lse == expected_lse).all()


def test_other_masks_are_refused(rng):
    q, k, v = tensors(rng, seqlen_q=131)
    hole = np.ones((2, 131), bool)
    hole[0, 7] = False
    for mask in (hole, np.tri(131, dtype=bool)[None, None], np.full((2, 1, 1, 131), 0.5, np.float32)):
        with pytest.raises(vcattn.UnsupportedError, match="seqused_k"):
            vcattn.attention(q, k, v, attn_mask=mask)
        assert not vcattn.supports(q, k, v, attn_mask=mask)[0]
    with pytest.raises(ValueError, match="broadcastable"):
        vcattn.attention(q, k, v, attn_mask=np.ones((2, 130), bool))


def test_varlen(rng):
    cu_q, cu_k = [0, 5, 5, 40], [0, 60, 70, 131]
    q = rng.standard_normal((40, 4, 64), dtype=np.float32)
    k, v = rng.standard_normal((2, 131, 2, 64), dtype=np.float32)
    out, lse = vcattn.attention_varlen(q, k, v, cu_q, cu_k, 35, 61, return_lse=True)
    assert lse.shape == (4, 40)
    for b in (0, 2):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        expected, expected_lse = softmax_attention(*(x[None].swapaxes(1, 2) for x in (q[rows], k[keys], v[keys])))
        assert relative_error(out[rows].swapaxes(0, 1), expected[0]) < TOLERANCE["vc8s"]
        assert np.abs(lse[:, rows] - expected_lse[0]).max() < 0.05
    with pytest.raises(ValueError, match="max_seqlen_k must be at least the longest sequence of cu_seqlens_k, 61; got 60"):
        vcattn.attention_varlen(q, k, v, cu_q, cu_k, 35, 60)


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_prepared_has_one_owner(rng, double):
    x = rng.standard_normal((1, 1, 9, 64), dtype=np.float32)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        double(vcattn.prepare(x, x, x))


def test_prepared_outlives_its_tensors(rng):
    q, k, v = tensors(rng)
    expected, expected_lse = vcattn.attention(q, k, v, recipe="vc8", return_lse=True)
    prepared = vcattn.prepare(q, k, v, recipe="vc8")
    for x in (q, k, v):
        x.fill(np.nan)
    out, lse = vcattn.attention_prepared(prepared, return_lse=True)
    assert (out == expected).all() and (lse == expected_lse).all()
    given = np.empty_like(expected)
    assert vcattn.attention_prepared(prepared, out=given) is given and (given == expected).all()
    assert 0 < prepared.nbytes < 5 * k.nbytes and 0 < prepared.value_energy_removed < 1
    with pytest.raises(TypeError, match="prepare"):
        vcattn.attention_prepared(q)


def test_out(rng):
    q, k, v = tensors(rng)
    out = np.empty((2, 70, 4, 64), np.float16).swapaxes(1, 2)
    assert vcattn.attention(q, k, v, out=out) is out
    assert (out == vcattn.attention(q, k, v).astype(np.float16)).all()
    with pytest.raises(ValueError, match="shape of q"):
        vcattn.attention(q, k, v, out=np.empty((2, 4, 71, 64), np.float32))
    with pytest.raises(ValueError, match="overlap"):
        vcattn.attention(q, k, v, out=q)
    read_only = np.empty_like(q)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        vcattn.attention(q, k, v, out=read_only)


BAD_CALLS = [
    (lambda q, k, v: vcattn.attention(q, k, v, window=3), TypeError, "unexpected keyword argument 'window'"),
    (lambda q, k, v: vcattn.attention(q.tolist(), k, v), TypeError, "q must be a numpy array or a torch tensor; got list"),
    (lambda q, k, v: vcattn.attention(q.astype(np.float64), k, v), ValueError, "q must be float32, float16 or bfloat16; got float64"),
    (lambda q, k, v: vcattn.attention(q[0], k, v), ValueError, "q must have 4 dimensions"),
    (lambda q, k, v: vcattn.attention(q, k, v, "BSHD"), ValueError, "tensor_layout must be one of 'NHD', 'HND'; got 'BSHD'"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe="vc9"), ValueError, "vc9"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe=8), TypeError, "recipe must be a string"),
    (lambda q, k, v: vcattn.attention(q[..., :20], k[..., :20], v[..., :20]), vcattn.UnsupportedError, "multiple of 8 in 32..256; got 20"),
    (lambda q, k, v: vcattn.attention(q, k[..., :40], v), ValueError, "same shape"),
    (lambda q, k, v: vcattn.attention(q, k[:, :, :9], v), ValueError, "same shape"),
    (lambda q, k, v: vcattn.attention(q[:, :3], k, v), ValueError, "multiple of num_heads"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1]), ValueError, "seqused_k"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1, 132]), ValueError, "0..131; got 132"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1.5, 2]), ValueError, "array of integers"),
    (lambda q, k, v: vcattn.attention(q, k, v, sm_scale=float("inf")), ValueError, "finite"),
    (lambda q, k, v: vcattn.attention(q, k, v, fallback="native"), ValueError, "fallback must be one of 'error', 'sdpa'"),
    (lambda q, k, v: vcattn.attention(q, k, v, fallback="sdpa"), ValueError, "needs torch tensors"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1, 2], attn_mask=np.ones((2, 131), bool)), ValueError, "pass one of them"),
    (lambda q, k, v: vcattn.attention(q, k, v, state=3), TypeError, "GroupingState.at"),
    (lambda q, k, v: vcattn.attention(q, k, v, is_causal=True, state=vcattn.GroupingState(3).at(0, layer=0)), vcattn.UnsupportedError, "state"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BAD_CALLS)))
def test_error_texts(rng, index):
    call, error, text = BAD_CALLS[index]
    with pytest.raises(error, match=text):
        call(*tensors(rng))


def random_arguments(rng):
    """Arguments that are right about half of the time."""

    def pick(*values):
        return values[rng.integers(len(values))]

    batch, heads_kv = int(pick(1, 2)), int(pick(1, 2))
    heads, seqlen_q, seqlen_kv, head_dim = heads_kv * int(pick(1, 2)), int(pick(0, 1, 5)), int(pick(0, 1, 9)), int(pick(32, 40, 64, 72, 128, 20, 264))
    dtype = pick(np.float32, np.float16, np.float16, np.float64)
    shapes = [[batch, heads, seqlen_q, head_dim], [batch, heads_kv, seqlen_kv, head_dim], [batch, heads_kv, seqlen_kv, head_dim]]
    if rng.random() < 0.15:
        shapes[rng.integers(3)][rng.integers(4)] += 1
    layout = pick("HND", "NHD")
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    if layout == "NHD":
        arrays = [nhd(x) for x in arrays]
    options = {"tensor_layout": layout if rng.random() < 0.97 else "SHD", "recipe": pick("vc8s", "vc8", "exact", "nvfp4", "vc8s,hadamard=off", "none")}
    if rng.random() < 0.3:
        options["is_causal"] = True
    if rng.random() < 0.3:
        options["sm_scale"] = pick(0.1, 1.0, float("nan"))
    if rng.random() < 0.3:
        options["seqused_k"] = rng.integers(0, seqlen_kv + 2, batch)
    if rng.random() < 0.3:
        mask = np.arange(seqlen_kv) < rng.integers(0, seqlen_kv + 1, (batch, 1))
        options["attn_mask"] = pick(mask, mask[:, None, None], ~mask, mask[:, None, None, :] & np.ones((1, seqlen_q, 1), bool))
    if rng.random() < 0.1:
        options["no_such_option"] = 1
    return arrays, options


def test_supports_says_what_the_call_does():
    rng = np.random.default_rng(5)
    answers = {True: 0, False: 0}
    for _ in range(5000):
        arrays, options = random_arguments(rng)
        ok, reason = vcattn.supports(*arrays, **options)
        answers[ok] += 1
        try:
            vcattn.attention(*arrays, **options)
        except (ValueError, TypeError) as error:
            # Texts of TypeError name the function.
            assert not ok and (reason == str(error) or isinstance(error, TypeError)), (ok, reason, str(error), options)
        else:
            assert ok and reason == "", (reason, options, [x.shape for x in arrays])
    assert min(answers.values()) > 1000


def test_bitwise_repeatable(rng):
    q, k, v = tensors(rng, seqlen_kv=700)
    assert (vcattn.attention(q, k, v) == vcattn.attention(q, k, v)).all()


class StubTorch:
    """As much of torch as the way of a CUDA tensor needs, so that it can be gone without either; `log` is what torch was told."""

    uint8 = "uint8"

    class Tensor: ...

    def __init__(self):
        self.log, self.stream = [], 0x7A
        self._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.stream)
        self.cuda = types.SimpleNamespace(device=self.on, current_stream=lambda index: self.stream, is_current_stream_capturing=lambda: False)

    @contextlib.contextmanager
    def on(self, index):
        self.log.append(("device", index))
        yield

    def device(self, kind, index):
        return f"{kind}:{index}"

    def empty(self, count, dtype, device):
        self.log.append((count, dtype, device))
        return types.SimpleNamespace(data_ptr=lambda: 0x1000, record_stream=self.log.append)


@pytest.fixture
def stub_torch(monkeypatch):
    stub = StubTorch()
    monkeypatch.setitem(sys.modules, "torch", stub)
    monkeypatch.setattr(_device, "_kernels_loaded", {1})
    return stub


def test_cuda_is_refused_with_the_reason_of_the_library(rng, stub_torch):
    available, why_not = _abi.answer("cuda_available")
    if available:
        pytest.skip("there is a GPU")
    request = _core.Request(*tensors(rng), "HND")
    for index in (0, 1):  # whether the kernels are loaded or not
        request.device = Device("cuda", index)
        with pytest.raises(vcattn.UnsupportedError) as error:
            request.attend(np.empty_like(request.q), None)
        assert str(error.value) == why_not and stub_torch.log[-1] == ("device", index)
    assert request.supports() == (False, why_not)


def test_kernels_are_not_loaded_during_a_capture(stub_torch):
    stub_torch.cuda.is_current_stream_capturing = lambda: True
    with pytest.raises(RuntimeError, match="first call on cuda:0 loads kernels"), Device("cuda", 0).current():
        pass
    with Device("cuda", 1).current():
        assert stub_torch.log == [("device", 1)]


def test_a_call_has_stream_and_scratch_of_torch(stub_torch):
    call = Device("cuda", 1).call(4096)
    assert (call.device, call.stream, call.workspace, call.workspace_bytes) == (_abi.CUDA, 0x7A, 0x1000, 4096)
    assert stub_torch.log == [(4096, "uint8", "cuda:1")]
    call = Device("cuda", 1).call(0)
    assert (call.workspace, call.workspace_bytes) == (None, 0)
    assert Device().call(4096) is None


def test_memory_that_outlives_a_call_knows_its_streams(stub_torch):
    buffer = _device.Buffer(Device("cuda", 1), 64, "uint8")
    assert buffer.address() == 0x1000 and stub_torch.log == [(64, "uint8", "cuda:1")]
    stub_torch.stream = 0x7B
    assert buffer.address() == 0x1000 and stub_torch.log[1:] == [0x7B]
    assert _device.Buffer(Device("cuda", 1), 0, "uint8").address() is None
