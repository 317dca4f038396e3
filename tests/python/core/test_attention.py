"""Numpy arrays in, numpy arrays out."""

import contextlib
import copy
import multiprocessing
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
    with pytest.raises(ValueError, match="attn_mask must be bool, float16, bfloat16, float32 or float64; got int64"):
        vcattn.attention(q, k, v, attn_mask=np.ones((2, 131), np.int64))


def test_masks_with_fewer_dimensions_are_aligned_at_the_last(rng):
    q, k, v = tensors(rng, seqlen_q=131)
    expected = vcattn.attention(q, k, v, seqused_k=[77, 77])
    keys = np.arange(131) < 77
    for mask in (keys, keys[None], np.broadcast_to(keys, (131, 131)), np.broadcast_to(keys, (4, 131, 131)), keys[None, None]):
        assert (vcattn.attention(q, k, v, attn_mask=mask) == expected).all()
    assert (vcattn.attention(q, k, v, attn_mask=np.ones((131, 1), bool)) == vcattn.attention(q, k, v)).all()
    with pytest.raises(vcattn.UnsupportedError, match="is no key padding"):
        vcattn.attention(q, k, v, attn_mask=np.tri(131, dtype=bool))


def test_a_mask_that_has_two_meanings_is_refused(rng):
    q, k, v = tensors(rng, batch=3, seqlen_q=3, seqlen_kv=3)
    triangle = np.tri(3, dtype=bool)  # causal as [Sq, Sk], lengths 1, 2, 3 as [B, Sk]
    with pytest.raises(ValueError, match=r"attn_mask \[3, 3\] may be \[B, Sk\] or \[Sq, Sk\]"):
        vcattn.attention(q, k, v, attn_mask=triangle)
    assert not vcattn.supports(q, k, v, attn_mask=triangle)[0]
    assert (vcattn.attention(q, k, v, attn_mask=triangle[:, None, None]) == vcattn.attention(q, k, v, seqused_k=[1, 2, 3])).all()
    with pytest.raises(vcattn.UnsupportedError, match="is no key padding"):
        vcattn.attention(q, k, v, attn_mask=triangle[None, None])


def test_check_finite_is_asked_for_in_the_recipe(rng):
    q, k, v = tensors(rng)
    k[1, 0, 5, 3] = np.inf
    vcattn.attention(q, k, v, recipe="vc8")
    with pytest.raises(vcattn.NonFiniteError, match="k"):
        vcattn.attention(q, k, v, recipe="vc8,check_finite=on")
    assert (vcattn.attention(q, k, v, recipe="vc8,check_finite=on", seqused_k=[131, 5]) == vcattn.attention(q, k, v, recipe="vc8", seqused_k=[131, 5])).all()


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
    with pytest.raises(ValueError, match="overlap itself"):
        vcattn.attention(q, k, v, out=np.lib.stride_tricks.as_strided(np.empty(64, np.float32), q.shape, (0, 0, 0, 4)))
    with pytest.raises(ValueError, match="overlap itself"):  # rows over each other's halves
        vcattn.attention(q, k, v, out=np.lib.stride_tricks.as_strided(np.empty(99999, np.float32), q.shape, (4 * 70 * 256, 70 * 256, 128, 4)))
    for bad in ([1], None.__class__, np.ma.masked_array(q)):
        with pytest.raises(TypeError, match="out must be a numpy array or a torch tensor"):
            vcattn.attention(q, k, v, out=bad)
    read_only = np.empty_like(q)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        vcattn.attention(q, k, v, out=read_only)


def test_out_may_lie_between_the_inputs_but_not_on_them(rng):
    memory = rng.standard_normal((2, 151, 5, 4, 64), dtype=np.float32)  # [B, S, 5, H, D]
    q, k, v, out = (memory[:, :, i].swapaxes(1, 2) for i in range(4))
    expected, rest = vcattn.attention(q, k, v), memory[:, :, [0, 1, 2, 4]].copy()
    assert vcattn.attention(q, k, v, out=out) is out and (out == expected).all() and (memory[:, :, [0, 1, 2, 4]] == rest).all()
    backwards = out[:, :, ::-1]
    assert vcattn.supports(q, k, v, out=backwards) == (True, "")
    vcattn.attention(q, k, v, out=backwards)
    assert (backwards == expected).all() and (memory[:, :, [0, 1, 2, 4]] == rest).all()
    rows = rng.standard_normal((2, 4, 151, 64), dtype=np.float32)
    for q, out in ((rows[:, :, :150], rows[:, :, 1:]), (rows[:, :, ::2], rows[:, :, :76][:, :, ::-1]), (rows[..., :64:2], rows[:, :, :, :32])):
        with pytest.raises(ValueError, match="out must not overlap q"):
            vcattn.attention(q, q.copy(), q.copy(), out=out)
        assert not vcattn.supports(q, q.copy(), q.copy(), out=out)[0]
    even, odd = rows[:, :, ::2], rows[:, :, 1::2]
    assert (vcattn.attention(even[:, :, :75], k, v, out=odd) == odd).all()


def test_prepared_output_has_the_strides_of_q(rng):
    for dtype in (np.float32, ml_dtypes.bfloat16):
        q = np.asfortranarray(rng.standard_normal((1, 2, 9, 64)).astype(dtype))
        out = vcattn.attention_prepared(vcattn.prepare(q, q, q))
        assert out.strides == vcattn.attention(q, q, q).strides == q.strides and out.dtype == dtype


def _attend_in_child(queue):
    x = np.ones((1, 1, 300, 64), np.float32)
    try:
        vcattn.attention(x, x, x)
    except RuntimeError as error:
        queue.put((str(error), vcattn.supports(x, x, x)))
    else:
        queue.put(("served", None))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_do_not_survive_a_fork(rng, method):
    vcattn.attention(*tensors(rng))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_attend_in_child, args=(queue,))
    child.start()
    text, supported = queue.get(timeout=60)
    child.join()
    if method == "spawn":
        assert text == "served"
    else:
        assert "forked" in text and "spawn" in text and supported == (False, text)


BAD_CALLS = [
    (lambda q, k, v: vcattn.attention(q, k, v, window=3), TypeError, "unexpected keyword argument 'window'"),
    (lambda q, k, v: vcattn.attention(q.tolist(), k, v), TypeError, "q must be a numpy array or a torch tensor; got list"),
    (lambda q, k, v: vcattn.attention(q.astype(np.float64), k, v), ValueError, "q must be float32, float16 or bfloat16; got float64"),
    (lambda q, k, v: vcattn.attention(q[0], k, v), ValueError, "q must have 4 dimensions"),
    (lambda q, k, v: vcattn.attention(q, k, v, "BSHD"), ValueError, "tensor_layout must be one of 'NHD', 'HND'; got 'BSHD'"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe="vc9"), ValueError, "vc9"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe=8), TypeError, "recipe must be a string"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe="vc8\0x"), ValueError, "null character"),
    (lambda q, k, v: vcattn.attention(q, k, v, recipe="vc8,block=64,block=32"), ValueError, "each option once"),
    (lambda q, k, v: vcattn.attention(q, k, v, is_causal="yes"), TypeError, "is_causal must be True or False; got str"),
    (lambda q, k, v: vcattn.attention(q, k, v, sm_scale=True), TypeError, "sm_scale must be a number or None; got bool"),
    (lambda q, k, v: vcattn.attention(q, k, v, sm_scale="1"), TypeError, "sm_scale must be a number or None; got str"),
    (lambda q, k, v: vcattn.attention(q, k, v, return_lse=q), TypeError, "return_lse must be True or False; got ndarray"),
    (lambda q, k, v: vcattn.attention_prepared(vcattn.prepare(q, k, v), np.empty_like(q)), TypeError, "return_lse must be True or False"),
    (lambda q, k, v: vcattn.attention_prepared(np.empty_like(q), vcattn.prepare(q, k, v)), TypeError, "needs what prepare"),
    (lambda q, k, v: vcattn.attention(np.ma.masked_array(q), k, v), TypeError, "q must be a numpy array or a torch tensor; got MaskedArray"),
    (lambda q, k, v: vcattn.attention(q[:1], k, v), ValueError, r"q \[B, Sq, H, D\] and k \[B, Sk, Hkv, D\] must agree"),
    (lambda q, k, v: vcattn.attention(q[..., :20], k[..., :20], v[..., :20]), vcattn.UnsupportedError, "multiple of 8 in 32..256; got 20"),
    (lambda q, k, v: vcattn.attention(q, k[..., :40], v), ValueError, "same shape"),
    (lambda q, k, v: vcattn.attention(q, k[:, :, :9], v), ValueError, "same shape"),
    (lambda q, k, v: vcattn.attention(q[:, :3], k, v), ValueError, "multiple of num_heads"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1]), ValueError, "seqused_k"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=np.zeros(0, np.int32)), ValueError, "seqused_k must not be empty"),
    (lambda q, k, v: vcattn.prepare(q, k, v, seqused_k=np.zeros(0, np.int32)), ValueError, "seqused_k must not be empty"),
    (lambda q, k, v: vcattn.attention_varlen(q[0], k[0], v[0], *[np.zeros(0, np.int32)] * 2), ValueError, "cu_seqlens_q must not be empty"),
    (lambda q, k, v: vcattn.attention_varlen(q[0], q[0], q[0], [0, 4], [0, 4], "4"), TypeError, "max_seqlen_q must be an integer; got '4'"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1, 132]), ValueError, "0..131; got 132"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[1.5, 2]), ValueError, "array of integers"),
    (lambda q, k, v: vcattn.attention(q, k, v, seqused_k=[2**32, 2]), ValueError, "seqused_k must hold numbers below 2\\^31; got 2 to 4294967296"),
    (lambda q, k, v: vcattn.attention_varlen(q[0], k[0], v[0], [0, 2**32 + 4], [0, 2]), ValueError, "cu_seqlens_q must hold numbers below"),
    (lambda q, k, v: vcattn.audit(q, k, v, queries=2.5), TypeError, "queries must be an integer; got 2.5"),
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
            assert not ok and reason == str(error).replace("attention()", "supports()"), (ok, reason, str(error), options)
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
