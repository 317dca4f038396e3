"""Integrations on stubs of their hosts, which have the hosts' signatures (recorded from their sources of March to August 2026)."""

import enum
import importlib
import inspect
import re
import sys
import types

import pytest
import torch
from reference import TOLERANCE, relative_error

import vcattn
import vcattn.integrations
from vcattn.integrations import longcat, wan


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def hnd(seqlen=100, heads=2, head_dim=64, batch=1):
    return torch.randn(3, batch, heads, seqlen, head_dim).unbind()


def exact(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def close(got, expected):
    return got.shape == expected.shape and 0 < relative_error(got, expected) < TOLERANCE["vc8s"]


def forget_integration(name, monkeypatch):
    """Lets the next import of an integration see the stub of the running test."""
    monkeypatch.delitem(sys.modules, f"vcattn.integrations.{name}", raising=False)
    monkeypatch.delattr(vcattn.integrations, name, raising=False)


@pytest.fixture
def module(monkeypatch):
    """Puts a stub module with these members, and its parents, where `import` finds it."""

    def make(name, **members):
        parts = name.split(".")
        for i in range(1, len(parts)):
            parent = ".".join(parts[:i])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        stub = types.ModuleType(name)
        vars(stub).update(members)
        monkeypatch.setitem(sys.modules, name, stub)
        for i in range(1, len(parts)):
            monkeypatch.setattr(sys.modules[".".join(parts[:i])], parts[i], sys.modules[".".join(parts[: i + 1])], raising=False)
        return stub

    return make


# --- LightX2V -------------------------------------------------------------------------------------------------------------------------


class LightRegister(dict):
    """A mapping, which is all that is used of it."""


@pytest.fixture
def registry(module, monkeypatch):
    """LightX2V's, where the integration has registered itself."""
    registry = module("lightx2v.utils.registry_factory", ATTN_WEIGHT_REGISTER=LightRegister()).ATTN_WEIGHT_REGISTER
    forget_integration("lightx2v", monkeypatch)
    import vcattn.integrations.lightx2v  # noqa: F401

    return registry


def test_lightx2v(registry):
    vcattn.integrations.lightx2v.register("vcattn_vc8", recipe="vc8")
    with pytest.raises(ValueError, match="vc9"):
        vcattn.integrations.lightx2v.register("vcattn_vc9", recipe="vc9")
    assert registry.keys() == {"vcattn", "vcattn_vc8"} and registry["vcattn"].recipe == "auto"
    weight = registry["vcattn_vc8"]()
    weight.load({}), weight.set_config({}), weight.to_cpu(non_blocking=True), weight.to_cuda(non_blocking=True)
    weight.load_state_dict_from_disk(0, None)
    assert weight.state_dict() == weight.load_state_dict({}, 0, None) == {}
    template = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"]
    parameters = inspect.signature(weight.apply).parameters.values()
    assert [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD] == template and [x for x in parameters if x.kind is x.VAR_KEYWORD]
    q, k, v = (x.transpose(1, 2)[0] for x in hnd())  # [L, H, D]
    expected = exact(*(x[None].transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2)[0]
    cu = torch.tensor([0, 100], dtype=torch.int32)
    for arguments in ((q, k, v), (q[None], k[None], v[None])):
        got = weight.apply(*arguments, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=100, max_seqlen_kv=100, model_cls="wan")
        assert got.shape == (100, 128) and 0 < relative_error(got, expected) < TOLERANCE["vc8"]
    packed = weight.apply(q, k, v, torch.tensor([0, 60, 100]), torch.tensor([0, 60, 100]), 60, 60)
    assert torch.equal(packed[:60], weight.apply(q[:60], k[:60], v[:60]))
    out, lse = weight.apply_with_lse(q, k, v)
    assert torch.equal(out, weight.apply(q, k, v)) and lse.shape == (100, 2)
    scaled = weight.apply(q, k, v, causal=True, softmax_scale=0.2)
    assert torch.equal(scaled, vcattn.attention(q[None], k[None], v[None], "NHD", True, 0.2, recipe="vc8").flatten(2)[0])
    mask = torch.arange(100)[None] < 60
    assert torch.equal(weight.apply(q, k, v, attn_mask=mask[:, None, None]), weight.apply(q, k, v, attn_mask=mask))
    assert not torch.equal(weight.apply(q, k, v, attn_mask=mask), out)
    with pytest.raises(ValueError, match="both say which keys"):
        weight.apply(q, k, v, torch.tensor([0, 60, 100]), torch.tensor([0, 60, 100]), 60, 60, attn_mask=mask)
    assert vcattn.stats()["served"].keys() == {"vc8"}


def test_lightx2v_keywords(registry):
    weight, (q, k, v) = registry["vcattn"](), (x.transpose(1, 2)[0] for x in hnd())
    expected = weight.apply(q, k, v)
    ignored = dict(block_idx=3, scheduler=object(), grid_sizes=torch.tensor([[1, 10, 10]]), sol_morton_preordered=True, model_cls="wan")
    neutral = dict(drop_rate=0, dropout_p=0.0, softcap=0.0, alibi_slopes=None, attn_mask=None, causal=False, softmax_scale=None)
    assert torch.equal(weight.apply(q, k, v, max_seqlen_q=100, max_seqlen_kv=100, **ignored, **neutral), expected)
    for name, value in (("drop_rate", 0.1), ("dropout_p", 0.1), ("window_size", (8, 8)), ("attn_bias", torch.zeros(100)), ("mask", q), ("softcap", 30.0)):
        with pytest.raises(vcattn.UnsupportedError, match=f"{name}=0 or None required"):
            weight.apply(q, k, v, **{name: value})
    with pytest.raises(TypeError, match="window_size"):
        weight.apply_with_lse(q, k, v, window_size=(8, 8))
    rows = torch.arange(100)[:, None] >= torch.arange(100)  # [Lq, Lk], as torch has it
    with pytest.raises(vcattn.UnsupportedError, match="no key padding"):
        weight.apply(q, k, v, attn_mask=rows)


def test_lightx2v_lengths(registry):
    """Rows after the last sequence are padding: never attended, and 0 in the result."""
    weight, (q, k, v) = registry["vcattn"](), (x.transpose(1, 2)[0] for x in hnd())
    for x in (q, k, v):
        x[60:] = float("nan")
    for cu, parts in (([0, 60], [(0, 60)]), ([0, 20, 60], [(0, 20), (20, 60)])):
        lengths = torch.tensor(cu, dtype=torch.int32)
        for arguments in ((q, k, v), (q[None], k[None], v[None])):
            out = weight.apply(*arguments, lengths, lengths, 100, 100)
            assert out.shape == (100, 128) and (out[60:] == 0).all()
            for begin, end in parts:
                assert torch.equal(out[begin:end], weight.apply(q[begin:end], k[begin:end], v[begin:end]))
    keys = weight.apply(q[:60], k, v, [0, 60], [0, 30], 60, 100)
    assert torch.equal(keys, weight.apply(q[:60], k[:30], v[:30]))
    q, k, v = (x[:60].view(2, 30, 2, 64) for x in (q, k, v))
    both = weight.apply(q, k, v)
    assert torch.equal(both[:30], weight.apply(q[0], k[0], v[0])) and torch.equal(both, weight.apply(q, k, v, [0, 30, 60], [0, 30, 60]))
    assert not torch.equal(both, weight.apply(q, k, v, [0, 60], [0, 60]))  # one sequence
    for cu_q, cu_k in (([0, 30], [0, 30]), ([0, 30, 61], [0, 30, 60]), ([0, 30, 60], [0, 30, 50])):
        with pytest.raises(ValueError, match="must end at the number of rows, 60 and 60"):
            weight.apply(q, k, v, cu_q, cu_k)
    with pytest.raises(ValueError, match="needed together"):
        weight.apply(q, k, v, cu_seqlens_q=[0, 60])


def test_lightx2v_names(registry):
    registry["flash_attn3"] = type("FlashAttn3Weight", (), {})
    with pytest.raises(ValueError, match="LightX2V has itself; got 'flash_attn3'"):
        vcattn.integrations.lightx2v.register("flash_attn3")
    with pytest.raises(TypeError, match="recipe must be a string"):
        vcattn.integrations.lightx2v.register("vcattn_8", recipe=8)
    vcattn.integrations.lightx2v.register("vcattn", recipe="vc8")  # again
    assert registry["vcattn"].recipe == "vc8" and "vcattn_8" not in registry


# --- xDiT -----------------------------------------------------------------------------------------------------------------------------


def test_xdit(module, monkeypatch):
    Backend = enum.Enum("AttentionBackendType", ["SDPA", "SAGE"])

    def sdpa_call(query, key, value, dropout_p, is_causal, attention_kwargs=None):
        return exact(query, key, value, is_causal=is_causal), None

    registry = {Backend.SDPA: sdpa_call}
    module("xfuser.core.distributed.attention_backend", ATTENTION_FUNCTION_REGISTRY=registry, AttentionBackendType=Backend)
    forget_integration("xdit", monkeypatch)
    from vcattn.integrations import xdit

    xdit.use(Backend.SDPA, recipe="vc8s")
    xdit.use(Backend.SDPA, recipe="vc8s")
    assert list(inspect.signature(registry[Backend.SDPA]).parameters) == list(inspect.signature(sdpa_call).parameters)
    q, k, v = hnd()
    out, lse = registry[Backend.SDPA](q, k, v, 0.0, False, {})
    assert close(out, exact(q, k, v)) and lse.shape == (1, 2, 100)
    keys = torch.arange(100)[None] < 60
    masked = {"attn_mask": keys[:, None, None], "indices_k": keys.flatten().nonzero().flatten(), "cu_seqlens_k": torch.tensor([0, 60]), "max_seqlen_k": 60}
    assert close(registry[Backend.SDPA](q, k, v, dropout_p=0.0, is_causal=False, attention_kwargs=masked)[0], exact(q, k[:, :, :60], v[:, :, :60]))
    short = (q, k[:, :, :7], v[:, :, :7], 0.0, False)
    assert torch.equal(registry[Backend.SDPA](*short)[0], exact(*short[:3]))
    registry[Backend.SDPA](q, k, v, 0.0, False, {"indices_k": masked["indices_k"]})
    of_wan = {"thw": (4, 5, 5), "spargeattn_simthreshold": 0.3, "spargeattn_cdfthreshold": 0.92, "spargeattn_reorder_sequence": True,
              "use_spargeattn_static_block_mask": True, "text_mask": None}  # fmt: skip
    assert torch.equal(registry[Backend.SDPA](q, k, v, 0.0, False, of_wan)[0], out)
    assert torch.equal(registry[Backend.SDPA](q, k, v, 0.0, False, {"attn_mask": keys})[0], registry[Backend.SDPA](q, k, v, 0.0, False, masked)[0])
    with pytest.raises(vcattn.UnsupportedError, match="attention_kwargs must be among attn_mask, .*; got ssta_topk, window_size as well"):
        registry[Backend.SDPA](q, k, v, 0.0, False, {"window_size": (8, 8), "ssta_topk": 64, **of_wan})
    registry[Backend.SDPA](q, k, v, 0.1, False, {})
    assert vcattn.stats()["bypass"] == {"xdit: cross-attention": 1, "xdit: packed keys": 1, "xdit: dropout": 1}
    with pytest.raises(ValueError, match="vc9"):
        xdit.use(Backend.SDPA, recipe="vc9")
    with pytest.raises(ValueError, match="one that xDiT has registered"):
        xdit.use(Backend.SAGE)
    xdit.restore(Backend.SDPA)
    assert registry[Backend.SDPA] is sdpa_call


# --- Wan ------------------------------------------------------------------------------------------------------------------------------


def wan_flash_attention(q, k, v, q_lens=None, k_lens=None, dropout_p=0.0, softmax_scale=None, q_scale=None, causal=False,
                        window_size=(-1, -1), deterministic=False, dtype=torch.bfloat16, version=None):  # fmt: skip
    return torch.zeros_like(q)  # the original needs a GPU


def test_wan(module):
    home = module("wan.modules.attention", flash_attention=wan_flash_attention)
    model = module("wan.modules.model", flash_attention=wan_flash_attention)
    other = module("wan.utils.other", flash_attention=lambda q: q)  # of that name only
    wan.enable(recipe="vc8s")
    wan.enable()
    assert tuple(inspect.signature(model.flash_attention).parameters) == wan.PARAMETERS and model.flash_attention is home.flash_attention
    assert other.flash_attention(1) == 1
    q, k, v = (x.transpose(1, 2) for x in hnd())
    expected = exact(*(x.transpose(1, 2) for x in (q, k[:, :60], v[:, :60])), scale=0.1).transpose(1, 2)
    out = model.flash_attention(q, k, v.bfloat16(), k_lens=torch.tensor([60]), softmax_scale=0.2, q_scale=0.5, window_size=(-1, -1))
    assert out.dtype == torch.float32 and close(out, expected)
    assert (model.flash_attention(q, k[:, :5], v[:, :5]) == 0).all() and (model.flash_attention(q, k, v, window_size=(8, 0)) == 0).all()
    assert (model.flash_attention(q, k, v, k_lens=torch.tensor([60]), causal=True) == 0).all()  # which the host aligns at the last valid key
    assert vcattn.stats()["bypass"] == {"wan: cross-attention": 1, "wan: window": 1, "wan: causal with key lengths": 1}
    replaced = model.flash_attention
    with pytest.raises(ValueError, match="vc9"):
        wan.enable(recipe="vc9")
    assert model.flash_attention is replaced
    wan.disable()
    assert home.flash_attention is wan_flash_attention and model.flash_attention is wan_flash_attention
    home.flash_attention = lambda q, k, v: q
    with pytest.raises(vcattn.UnsupportedError, match="must have the parameters q, k, v, q_lens"):
        wan.enable()


# --- LongCat-Video --------------------------------------------------------------------------------------------------------------------


def ulysses_wrapper(function):
    def wrapper(self, query, key, value, shape):
        return function(self, query, key, value, shape)

    return wrapper


def longcat_model():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.enable_bsa, self.qkv = 64**-0.5, False, torch.nn.Linear(128, 3 * 128)

        @ulysses_wrapper
        def _process_attn(self, q, k, v, shape):
            return torch.zeros_like(q)

        def forward(self, x, shape=(1, 1, 1)):
            q, k, v = self.qkv(x).view(2, -1, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0)  # HND views of a fused QKV
            return self._process_attn(q, k, v, shape), exact(q, k, v)

    return torch.nn.Sequential(Attention())


def test_longcat():
    model = longcat_model()
    x = torch.randn(2, 100, 128)
    longcat.enable(model)
    longcat.enable(model)
    with torch.no_grad():
        got, expected = model(x)
        assert close(got, expected)
        model[0].enable_bsa = True
        assert (model[0](x, shape=(4, 5, 5))[0] == 0).all()
        q, k, v = hnd()
        model[0].enable_bsa = False
        assert (model[0]._process_attn(q[:, :, :5], k, v, (1, 1, 1)) == 0).all()
    assert vcattn.stats()["bypass"] == {"longcat: block-sparse": 1, "longcat: condition frames": 1}
    with pytest.raises(TypeError, match="recipe must be a string"):
        longcat.enable(model, recipe=None)
    longcat.disable(model)
    assert (model(x)[0] == 0).all()
    with pytest.raises(vcattn.UnsupportedError, match="_process_attn"):
        longcat.enable(torch.nn.Linear(1, 1))
    type(model[0])._process_attn = lambda self, q, k, v: q
    with pytest.raises(vcattn.UnsupportedError, match="must have the parameters self, query, key, value, shape; got self, q, k, v"):
        longcat.enable(model)


# --- Where something is missing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, missing, install", [
    ("diffusers", "diffusers.models", "pip install torch 'diffusers>=0.36'"), ("lightx2v", "lightx2v", "github.com/ModelTC/LightX2V"),
    ("xdit", "xfuser", "pip install torch xfuser"), ("wan", "torch", "pip install torch"), ("longcat", "torch", "pip install torch"),
    ("comfyui", "torch", "pip install torch")])  # fmt: skip
def test_missing_host(name, missing, install, monkeypatch):
    forget_integration(name, monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=re.escape(f"vcattn.integrations.{name} needs a module that cannot be imported")) as error:
        importlib.import_module(f"vcattn.integrations.{name}")
    assert install in str(error.value) and missing in str(error.value)


def test_missing_wan(monkeypatch):
    monkeypatch.setitem(sys.modules, "wan", None)
    with pytest.raises(ImportError, match="put a checkout of github.com/Wan-Video/Wan2.2"):
        wan.enable()
