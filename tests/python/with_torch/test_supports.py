"""`supports` on 5000 random sets of torch arguments: what it says is what the call does."""

import numpy as np
import pytest
import torch
from diffusers.models import attention_dispatch

import vcattn
import vcattn.integrations.diffusers
from vcattn.compat import flash_attn_func, sageattn, sdpa

SERVED, FALLBACK, REFUSED = "served", "fallback", "refused"


def random_arguments(rng):
    """Arguments that are right about half of the time, wrong in one or two ways otherwise."""

    def pick(*values):
        return values[rng.integers(len(values))]

    def rarely():
        return rng.random() < 0.06

    batch, heads_kv = int(pick(1, 2)), int(pick(1, 2))
    heads, seqlen_q, seqlen_kv = heads_kv * int(pick(1, 2)), int(pick(0, 1, 5, 9)), int(pick(0, 1, 9))
    head_dim = int(pick(20, 264) if rarely() else pick(32, 40, 64, 72, 128))
    shapes = [[batch, heads, seqlen_q, head_dim], [batch, heads_kv, seqlen_kv, head_dim], [batch, heads_kv, seqlen_kv, head_dim]]
    if rarely():
        shapes[rng.integers(3)][rng.integers(4)] += 1
    layout = pick("HND", "NHD")
    if layout == "NHD":
        shapes = [[shape[i] for i in (0, 2, 1, 3)] for shape in shapes]
    tensors = [torch.randn(shape, dtype=pick(torch.float32, torch.bfloat16, torch.float16)) for shape in shapes]
    i = rng.integers(3)
    if rarely():
        tensors[i] = pick(tensors[i].double(), tensors[i].to("meta"), tensors[i][0], tensors[i].numpy(force=True) if tensors[i].dtype != torch.bfloat16
                          else None, tensors[i].repeat_interleave(2, -1)[..., ::2])  # fmt: skip
    options = {"tensor_layout": "SHD" if rarely() else layout, "return_lse": bool(pick(False, True)), "fallback": pick("error", "error", "sdpa"),
               "recipe": pick("none", "vc8,block=7", 8) if rarely() else pick("auto", "vc8", "exact", "nvfp4", "vc8s,hadamard=off")}  # fmt: skip
    if rng.random() < 0.2:
        options["is_causal"] = True
    if rng.random() < 0.2:
        options["sm_scale"] = float("nan") if rarely() else pick(0.1, 1.0)
    if rng.random() < 0.2:
        lengths = rng.integers(0, seqlen_kv + 1 + rarely(), batch)
        options["seqused_k"] = pick(lengths.tolist(), torch.from_numpy(lengths), lengths, torch.from_numpy(lengths).float() if rarely() else lengths)
    if rng.random() < 0.2:
        keys = torch.arange(seqlen_kv) < torch.from_numpy(rng.integers(0, seqlen_kv + 1, (batch, 1)))
        options["attn_mask"] = pick(keys, keys[:, None, None], torch.zeros(keys.shape).masked_fill(~keys, float("-inf")), ~keys, keys[:, 1:],
                                    torch.randn(seqlen_kv), keys.numpy())  # fmt: skip
    if rng.random() < 0.15:
        state = vcattn.GroupingState(3)
        if rarely() and rarely():
            options["state"] = 3
        elif rng.random() < 0.3:
            small = torch.randn(1, 2, 40, 64)
            vcattn.attention(small, small, small, recipe="vc8", state=state.at(0, layer=0))
            options["state"] = state.at(int(pick(0, 1)), layer=0)
        else:
            options["state"] = state.at(int(pick(0, 2, 3)), layer=0)
    if rng.random() < 0.2 and isinstance(tensors[0], torch.Tensor):
        q = tensors[0]
        options["out"] = pick(torch.empty(q.shape), torch.empty(q.shape, dtype=torch.bfloat16), torch.empty([*q.shape[:-1], 7]),
                              torch.empty(q.shape, dtype=torch.int32), q, np.empty(q.shape, np.float32), torch.empty(q.shape, device="meta")
                              )  # fmt: skip
    if rarely():
        options["no_such_option"] = 1
    return tensors, options


@pytest.mark.filterwarnings("ignore:vcattn passed a call on:RuntimeWarning")
def test_supports_says_what_the_call_does():
    rng, found = np.random.default_rng(7), {SERVED: 0, FALLBACK: 0, REFUSED: 0}
    torch.manual_seed(7)
    for _ in range(5000):
        tensors, options = random_arguments(rng)
        ok, reason = vcattn.supports(*tensors, **options)
        vcattn.reset_stats()
        try:
            vcattn.attention(*tensors, **options)
        except (ValueError, TypeError) as error:
            outcome = REFUSED
            # Texts of TypeError name the function; a fall-back has reasons of its own.
            assert isinstance(error, TypeError) or str(error) == reason or options["fallback"] == "sdpa", (reason, str(error), options)
        else:
            outcome = SERVED if vcattn.stats()["served"] else FALLBACK
            assert bool(vcattn.stats()["fallback"]) == (outcome == FALLBACK) and (outcome == SERVED or options["fallback"] == "sdpa"), (reason, options)
        found[outcome] += 1
        assert ok == (outcome == SERVED) and ok == (reason == ""), (outcome, reason, options, [getattr(x, "shape", None) for x in tensors])
    assert found[FALLBACK] > 30 and found[SERVED] > 1000 and found[REFUSED] > 1000, found


def dispatch(q, k, v, **options):
    """diffusers with the backend, which asks for no fall-back where it asks for lse."""
    with attention_dispatch.attention_backend("vcattn"):
        return attention_dispatch.dispatch_attention_fn(q, k, v, attention_kwargs={"return_lse": True}, **options)


HOLE = torch.tensor([[True, False, True] * 3])
ERRORS = [
    (lambda f, x: f(x, x, x, window=3), TypeError, "unexpected keyword argument 'window'"),
    (lambda f, x: f(*[x.double()] * 3), ValueError, "q must be float32, float16 or bfloat16; got float64; convert it"),
    (lambda f, x: f(*[x[..., :20]] * 3), vcattn.UnsupportedError, "head_dim must be a multiple of 8 in 32..256; got 20"),
]


@pytest.mark.parametrize("function", [vcattn.attention, sageattn, flash_attn_func, sdpa, dispatch], ids=lambda f: f.__name__)
@pytest.mark.parametrize("call, error, text", ERRORS, ids=["keyword", "dtype", "head_dim"])
def test_errors_are_the_same_by_every_way(function, call, error, text):
    with pytest.raises(error, match=text):
        call(function, torch.randn(1, 9, 9, 64))


@pytest.mark.parametrize("function", [vcattn.attention, sdpa, dispatch], ids=lambda f: f.__name__)
def test_masks_other_than_padding_are_refused_by_every_way(function):
    x = torch.randn(1, 9, 9, 64)
    with pytest.raises(vcattn.UnsupportedError, match="is no key padding"):
        function(x, x, x, attn_mask=HOLE[:, None, None])


def test_state_that_does_not_fit_is_refused():
    state, x = vcattn.GroupingState(8), torch.randn(1, 2, 40, 64)
    vcattn.attention(x, x, x, state=state.at(0, layer=0))
    for other in (x[:, :1], x[:, :, :39], x.bfloat16(), torch.randn(1, 2, 40, 72)):
        later = {"state": state.at(1, layer=0)}
        with pytest.raises(ValueError, match=r"state of layer 0, branch 0 is for v \[B, Sk, Hkv, D\]"):
            vcattn.attention(other, other, other, **later)
        assert not vcattn.supports(other, other, other, **later)[0]
