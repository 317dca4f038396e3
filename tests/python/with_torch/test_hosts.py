"""Integrations on stubs of their hosts, which have the hosts' signatures (recorded from their sources of March to August 2026)."""

import enum
import inspect
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


def test_lightx2v(module, monkeypatch):
    registry = module("lightx2v.utils.registry_factory", ATTN_WEIGHT_REGISTER=LightRegister()).ATTN_WEIGHT_REGISTER
    forget_integration("lightx2v", monkeypatch)
    import vcattn.integrations.lightx2v

    vcattn.integrations.lightx2v.register("vcattn_vc8", recipe="vc8")
    with pytest.raises(ValueError, match="vc9"):
        vcattn.integrations.lightx2v.register("vcattn_vc9", recipe="vc9")
    assert registry.keys() == {"vcattn", "vcattn_vc8"} and registry["vcattn"].recipe == "auto"
    weight = registry["vcattn_vc8"]()
    weight.load({}), weight.set_config({}), weight.to_cpu(non_blocking=True), weight.to_cuda(non_blocking=True)
    weight.load_state_dict_from_disk(0, None)
    assert weight.state_dict() == weight.load_state_dict({}, 0, None) == {}
    template = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv", "kwargs"]
    assert list(inspect.signature(weight.apply).parameters) == template
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
    with pytest.raises(vcattn.UnsupportedError, match="drop_rate=0 required"):
        weight.apply(q, k, v, drop_rate=0.1)
    with pytest.raises(ValueError, match="both say which keys"):
        weight.apply(q, k, v, torch.tensor([0, 60, 100]), torch.tensor([0, 60, 100]), 60, 60, attn_mask=mask)
    assert vcattn.stats()["served"].keys() == {"vc8"}


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
    registry[Backend.SDPA](q, k, v, 0.1, False, {})
    assert vcattn.stats()["bypass"] == {"xdit: cross-attention": 1, "xdit: packed keys": 1, "xdit: dropout": 1}
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
    wan.enable(recipe="vc8s")
    wan.enable()
    assert tuple(inspect.signature(model.flash_attention).parameters) == wan.PARAMETERS and model.flash_attention is home.flash_attention
    q, k, v = (x.transpose(1, 2) for x in hnd())
    expected = exact(*(x.transpose(1, 2) for x in (q, k[:, :60], v[:, :60])), scale=0.1).transpose(1, 2)
    out = model.flash_attention(q, k, v.bfloat16(), k_lens=torch.tensor([60]), softmax_scale=0.2, q_scale=0.5, window_size=(-1, -1))
    assert out.dtype == torch.float32 and close(out, expected)
    assert (model.flash_attention(q, k[:, :5], v[:, :5]) == 0).all() and (model.flash_attention(q, k, v, window_size=(8, 0)) == 0).all()
    assert vcattn.stats()["bypass"] == {"wan: cross-attention": 1, "wan: window": 1}
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
    longcat.disable(model)
    assert (model(x)[0] == 0).all()
    with pytest.raises(vcattn.UnsupportedError, match="_process_attn"):
        longcat.enable(torch.nn.Linear(1, 1))
    type(model[0])._process_attn = lambda self, q, k, v: q
    with pytest.raises(vcattn.UnsupportedError, match="must have the parameters self, query, key, value, shape; got self, q, k, v"):
        longcat.enable(model)
