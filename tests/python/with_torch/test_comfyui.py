"""The ComfyUI node on ComfyUI's own attention functions, where `VCATTN_COMFYUI` names its folder or they can be imported, and always on a
recorded host, which calls an override as ComfyUI's sources of October 2025 to October 2026 do. Names of tests say which: [recorded], [0.3.64]."""

import contextlib
import copy
import gc
import importlib.util
import inspect
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from test_hosts import close, exact, hnd

import vcattn
from vcattn.integrations import comfyui

# Of every attention function of ComfyUI, after q, k and v.
PARAMETERS = ["heads", "mask", "attn_precision", "skip_reshape", "skip_output_reshape", "kwargs"]


def recorded_function(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    if not skip_reshape:
        head_dim = q.shape[-1] // heads
        q, k, v = (x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        mask = mask[(None,) * max(3 - mask.ndim, 0)]
        mask = mask[:, None] if mask.ndim == 3 else mask
    out = exact(q, k, v, attn_mask=mask, scale=kwargs.get("scale"), enable_gqa=kwargs.get("enable_gqa", False))
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


def recorded_attention(*args, preferred_attention=None, **kwargs):
    """Passes the bare function and everything it was called with to an override, but for a method that the model would prefer."""
    override = (kwargs.get("transformer_options") or {}).get("optimized_attention_override")
    if override is None or "_inside_attn_wrapper" in kwargs:
        return recorded_function(*args, **kwargs)
    return override(recorded_function, *args, _inside_attn_wrapper=True, **kwargs)


def importable(name):
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


HOSTS = {"recorded": [recorded_attention]}
SIGNATURES = {"recorded": [recorded_function]}
if "VCATTN_COMFYUI" in os.environ:
    sys.path.insert(0, os.environ["VCATTN_COMFYUI"])
REAL = "VCATTN_COMFYUI" in os.environ or importable("comfy.ldm.modules.attention")
if REAL:
    import comfy.cli_args

    comfy.cli_args.args.cpu = True  # before it looks for a GPU
    import comfy.ldm.modules.attention as comfy_attention
    from comfyui_version import __version__ as comfyui_version

    HOSTS[comfyui_version] = [comfy_attention.attention_pytorch, comfy_attention.attention_sub_quad, comfy_attention.attention_split,
                              comfy_attention.attention_basic]  # fmt: skip
    SIGNATURES[comfyui_version] = list(HOSTS[comfyui_version])

every_host = pytest.mark.parametrize("host", HOSTS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


class Model:
    """As much of ComfyUI's ModelPatcher as the node needs."""

    def __init__(self, model_options=None):
        self.model_options = model_options or {"transformer_options": {"kept": 1}}

    def clone(self):
        return Model(copy.deepcopy(self.model_options))


def make_override(**changes):
    model = Model()
    arguments = dict(recipe="auto", grouping="first_quarter", refresh_interval=4) | changes
    (patched,) = comfyui.NODE_CLASS_MAPPINGS["VcattnAttention"]().patch(model, **arguments)
    assert model.model_options == {"transformer_options": {"kept": 1}}
    options = patched.model_options["transformer_options"]
    assert options["kept"] == 1
    return options["optimized_attention_override"]


def with_override(override, **options):
    return {"transformer_options": {"optimized_attention_override": override, **options}}


@every_host
def test_signature(host):
    for function in SIGNATURES[host]:
        assert list(inspect.signature(function).parameters)[3:] == PARAMETERS
    assert list(inspect.signature(comfyui.Override.__call__).parameters) == ["self", "default", "q", "k", "v", *PARAMETERS]


@every_host
@pytest.mark.parametrize("skip_reshape", [False, True])
@pytest.mark.parametrize("skip_output_reshape", [False, True])
def test_layouts(host, skip_reshape, skip_output_reshape):
    q, k, v = hnd()
    arguments = (q, k, v) if skip_reshape else tuple(x.transpose(1, 2).flatten(2) for x in (q, k, v))
    options = dict(skip_reshape=skip_reshape, skip_output_reshape=skip_output_reshape)
    for function in HOSTS[host]:
        expected = function(*arguments, 2, **options)
        assert vcattn.stats()["served"] == {}
        got = function(*arguments, 2, some_new_option=1, low_precision_attention=True, **options, **with_override(make_override()))
        assert close(got, expected) and vcattn.stats()["served"] == {"auto": 1}
        vcattn.reset_stats()


@every_host
def test_scale_and_grouped_heads(host):
    """That the functions of older releases ignore; so the expectation is not theirs."""
    q, k, v = hnd(heads=4)
    options = dict(skip_reshape=True, skip_output_reshape=True, scale=0.2, enable_gqa=True)
    for function in HOSTS[host]:
        got = function(q, k[:, :2], v[:, :2], 4, **options, **with_override(make_override()))
        assert close(got, exact(q, k[:, :2], v[:, :2], scale=0.2, enable_gqa=True))
    packed = [x.transpose(1, 2).flatten(2) for x in (q, k[:, :2], v[:, :2])]
    got = HOSTS[host][0](*packed, 4, enable_gqa=True, **with_override(make_override()))
    assert close(got, exact(q, k[:, :2], v[:, :2], enable_gqa=True).transpose(1, 2).flatten(2))


@every_host
def test_bypass(host):
    q, k, v = hnd()
    for function in HOSTS[host]:
        vcattn.reset_stats()
        for arguments, options in (((q, k[:, :, :7], v[:, :, :7]), {}), ((q, k, v), {"low_precision_attention": False})):
            got = function(*arguments, 2, skip_reshape=True, **options, **with_override(make_override()))
            assert torch.equal(got, function(*arguments, 2, skip_reshape=True))
        trained = q.clone().requires_grad_()
        function(trained, k, v, 2, skip_reshape=True, **with_override(make_override())).sum().backward()
        assert trained.grad is not None
        assert vcattn.stats()["bypass"] == {f"comfyui: {reason}": 1 for reason in ("cross-attention", "low_precision_attention=False", "gradient")}
        function(q, k, v, 2, skip_reshape=True)  # as text encoders call it
        assert vcattn.stats()["served"] == {}


@every_host
@pytest.mark.parametrize("shape", [(1, 1, 100, 100), (1, 100, 100), (100, 100), (1, 1, 1, 100)])
def test_masks(host, shape):
    q, k, v = hnd()
    seen = (torch.arange(100) < 60).expand(shape)
    for mask in (seen, torch.zeros(shape).masked_fill(~seen, float("-inf"))):
        got = HOSTS[host][0](q, k, v, 2, mask=mask, skip_reshape=True, **with_override(make_override()))
        assert close(got, exact(q, k[:, :, :60], v[:, :, :60]).transpose(1, 2).flatten(2))
    assert vcattn.stats()["served"] == {"auto": 2}
    with pytest.warns(RuntimeWarning, match="holds a bias"):
        bias = torch.randn(100, 100)
        got = HOSTS[host][0](q, k, v, 2, mask=bias, skip_reshape=True, **with_override(make_override()))
    assert torch.allclose(got, exact(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2), atol=1e-5)


@pytest.fixture
def places(monkeypatch):
    """(step, layer, branch) of every call that had a state."""
    calls, original = [], vcattn.GroupingState.at

    def at(self, step, *, layer, branch=0):
        calls.append((step, layer, branch))
        return original(self, step, layer=layer, branch=branch)

    monkeypatch.setattr(vcattn.GroupingState, "at", at)
    return calls


@every_host
def test_schedule(host, places):
    override = make_override(grouping="every_step")
    function, sample_sigmas = HOSTS[host][0], torch.tensor([1.0, 0.75, 0.5, 0.0])
    for sigma in sample_sigmas[:-1]:
        sigmas = sigma[None]
        for branch in ([0], [1]):
            for _ in range(2):  # layers
                options = with_override(override, sigmas=sigmas, sample_sigmas=sample_sigmas, cond_or_uncond=branch)
                function(*hnd(), 2, skip_reshape=True, **options)
    assert places == [(step, layer, branch) for step in range(3) for branch in range(2) for layer in range(2)]
    assert len(override._state) == 4
    # Between two steps, as samplers of higher order ask, and at another resolution.
    options = with_override(override, sigmas=torch.tensor([0.6]), sample_sigmas=sample_sigmas, cond_or_uncond=[0])
    function(*hnd(seqlen=130), 2, skip_reshape=True, **options)
    assert places[-1] == (1, 0, 0)
    assert copy.deepcopy(override)._state is None and copy.deepcopy(override).recipe == "auto"
    del sample_sigmas, options, sigma, sigmas
    gc.collect()
    assert override._state is None  # with the sampler's sigmas


def test_node_folder():
    path = Path(__file__).parents[3] / "integrations" / "comfyui" / "__init__.py"
    spec = importlib.util.spec_from_file_location("vcattn_node", path)
    node = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(node)
    cls = node.NODE_CLASS_MAPPINGS["VcattnAttention"]
    assert list(inspect.signature(getattr(cls, cls.FUNCTION)).parameters)[1:] == list(cls.INPUT_TYPES()["required"])
    assert node.NODE_DISPLAY_NAME_MAPPINGS.keys() == node.NODE_CLASS_MAPPINGS.keys()
    with pytest.raises(ValueError, match="vc9"):
        make_override(recipe="vc9")
    with pytest.raises(ValueError, match="policy must be one of"):
        make_override(grouping="sometimes")


if REAL:  # its own classes

    def test_wan_model(places):
        """ComfyUI's Wan model with two layers, called as its sampler calls it, two CFG branches one after another."""
        import comfy.model_patcher
        import comfy.ops
        import comfy.samplers
        from comfy.ldm.wan.model import WanModel
        from reference import relative_error
        from test_diffusers import TOLERANCE

        model = WanModel(in_dim=4, out_dim=4, dim=256, ffn_dim=64, freq_dim=32, text_dim=16, num_heads=2, num_layers=2,
                         operations=comfy.ops.manual_cast, dtype=torch.float32, device="cpu")  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        x, context = torch.randn(1, 4, 3, 16, 16), torch.randn(1, 7, 16)
        sigmas = torch.tensor([1.0, 0.5, 0.0])

        def sample(override):
            out = x
            for i in range(2):
                halves = []
                for branch in ([0], [1]):
                    options = {"sigmas": sigmas[i : i + 1], "sample_sigmas": sigmas, "cond_or_uncond": branch}
                    options |= {"optimized_attention_override": override} if override else {}
                    with torch.no_grad():
                        halves.append(model(out, sigmas[i : i + 1] * 1000, context * (1 - branch[0]), transformer_options=options))
                out = out + (sigmas[i + 1] - sigmas[i]) * (halves[1] + 3 * (halves[0] - halves[1]))
            return out

        native = sample(None)
        assert vcattn.stats()["served"] == {}
        patcher = comfy.model_patcher.ModelPatcher(types.SimpleNamespace(), torch.device("cpu"), torch.device("cpu"), size=1)
        (patched,) = comfyui.VcattnAttention().patch(patcher, "auto", "first_quarter", 4)
        assert "optimized_attention_override" not in patcher.model_options["transformer_options"]
        override = patched.clone().model_options["transformer_options"]["optimized_attention_override"]
        assert 0 < relative_error(sample(override), native) < 2 * TOLERANCE
        assert vcattn.stats() == {"served": {"auto": 8}, "fallback": {}, "bypass": {"comfyui: cross-attention": 8}}
        assert [place[1:] for place in places] == [(layer, branch) for branch in (0, 1) for layer in (0, 1)] * 2
