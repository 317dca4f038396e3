"""The backend in diffusers' own classes, with small random weights and heads of 128 channels."""

import copy
import gc
import os
import threading
import types
import warnings
import weakref

import diffusers
import pytest
import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, HunyuanVideo15Transformer3DModel, WanPipeline, WanTransformer3DModel
from diffusers.models import attention_dispatch
from reference import relative_error

import vcattn
import vcattn.integrations.diffusers as integration

LAYERS = 2
TOLERANCE = 0.02  # relative, of a model's output; about four times what is measured


@pytest.fixture(autouse=True)
def native_afterwards():
    torch.manual_seed(1)
    yield
    attention_dispatch._AttentionBackendRegistry._active_backend = attention_dispatch.AttentionBackendName.NATIVE


def test_release():
    """That a run with another release of diffusers is one."""
    assert diffusers.__version__ == os.environ.get("VCATTN_EXPECTED_DIFFUSERS", diffusers.__version__)


def spread_weights(model):
    """Larger weights than the initial ones, so that attention is far from uniform and matters to the output."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attn2" not in name and any(part in name for part in ("to_q", "to_k", "to_v", "to_out")):
                parameter.mul_(4)
    return model.eval()


def wan_transformer(**changes):
    config = dict(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=128, in_channels=4, out_channels=4, text_dim=16, freq_dim=32,
                  ffn_dim=64, num_layers=LAYERS, cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_max_seq_len=32)  # fmt: skip
    return spread_weights(WanTransformer3DModel(**(config | changes)))


def wan_inputs(batch=1, frames=3, size=16):
    return dict(hidden_states=torch.randn(batch, 4, frames, size, size), timestep=torch.full((batch,), 500),
                encoder_hidden_states=torch.randn(batch, 7, 16))  # fmt: skip


def run(model, inputs, backend):
    model.set_attention_backend(backend)
    with torch.no_grad():
        return model(**inputs, return_dict=False)[0]


@pytest.fixture
def make_uniform(monkeypatch):
    """Replaces native self-attention by the mean of V: what an error is when attention is lost, and so what a tolerance is worth."""
    registry, native = attention_dispatch._AttentionBackendRegistry, attention_dispatch.AttentionBackendName.NATIVE
    original = registry._backends[native]

    def uniform(query, key, value, **options):
        return value.mean(1, keepdim=True).expand_as(query) if query.shape == key.shape else original(query, key, value, **options)

    return lambda: monkeypatch.setitem(registry._backends, native, uniform)


def test_output_depends_on_attention(make_uniform):
    model, inputs = wan_transformer(), wan_inputs()
    expected = run(model, inputs, "native")
    make_uniform()
    assert relative_error(run(model, inputs, "native"), expected) > 8 * TOLERANCE


@pytest.mark.parametrize("recipe, tolerance", [("auto", TOLERANCE), ("exact", 1e-4)])
def test_wan_against_native(recipe, tolerance):
    integration.register("vcattn_test", recipe=recipe)
    model, inputs = wan_transformer(), wan_inputs()
    native = run(model, inputs, "native")
    assert vcattn.stats()["served"] == {}
    got = run(model, inputs, "vcattn_test")
    assert 0 < relative_error(got, native) < tolerance
    assert vcattn.stats() == {"served": {recipe: LAYERS}, "fallback": {}, "bypass": {"diffusers: cross-attention": LAYERS}}


def test_heads_outside_the_table_go_to_sdpa_and_are_told():
    model, inputs = wan_transformer(attention_head_dim=20), wan_inputs()
    native = run(model, inputs, "native")
    with pytest.warns(RuntimeWarning, match="head_dim must be a multiple of 8"):
        assert torch.allclose(run(model, inputs, "vcattn"), native, atol=1e-5)
    assert sum(vcattn.stats()["fallback"].values()) == LAYERS


def test_training_goes_to_native():
    model, inputs = wan_transformer(), wan_inputs()
    model.set_attention_backend("vcattn")
    model(**inputs, return_dict=False)[0].sum().backward()
    assert vcattn.stats()["bypass"] == {"diffusers: cross-attention": LAYERS, "diffusers: gradient": LAYERS}


def test_backend_is_an_enumeration_member():
    member = attention_dispatch.AttentionBackendName("vcattn")
    assert member is attention_dispatch.AttentionBackendName.VCATTN and member in list(attention_dispatch.AttentionBackendName)
    assert member.value == "vcattn" and isinstance(member, str)
    with attention_dispatch.attention_backend("vcattn"):
        q = torch.randn(1, 50, 2, 64)
        out = attention_dispatch.dispatch_attention_fn(q, q, q)
    assert torch.equal(out, vcattn.attention(q, q, q, "NHD"))
    with pytest.raises(ValueError, match="lower case"):
        integration.register("VCATTN")
    for name in ("native", "_native_cudnn"):
        with pytest.raises(ValueError, match=f"must not be one of the backends that diffusers has itself; got '{name}'"):
            integration.register(name)
    with pytest.raises(ValueError, match="vc9"):
        integration.register("vcattn_vc9", recipe="vc9")
    with pytest.raises(TypeError, match="recipe must be a string .*; got NoneType"):
        integration.register("vcattn_vc9", recipe=None)
    assert "vcattn_vc9" not in list(attention_dispatch.AttentionBackendName)


def test_arguments_are_handled_or_passed_on():
    def call(**arguments):
        with attention_dispatch.attention_backend("vcattn"):
            return attention_dispatch.dispatch_attention_fn(q, q, q, **arguments)

    q = torch.randn(2, 60, 2, 64)
    keys = torch.arange(60) < torch.tensor([[60], [30]])
    expected = vcattn.attention(q, q, q, "NHD", seqused_k=torch.tensor([60, 30]))
    for mask in (keys, keys[:, None, None], keys[:, None, None].expand(2, 2, 60, 60)):
        assert torch.equal(call(attn_mask=mask), expected)
    assert torch.equal(call(is_causal=True, scale=0.2), vcattn.attention(q, q, q, "NHD", True, 0.2))
    out, lse = call(attention_kwargs={"return_lse": True})
    assert torch.equal(out, vcattn.attention(q, q, q, "NHD")) and lse.shape == (2, 2, 60)
    torch.manual_seed(3)
    call(dropout_p=0.5)
    assert vcattn.stats()["bypass"] == {"diffusers: dropout": 1}


def test_masks_of_two_and_three_dimensions():
    def call(x, mask):
        return attention_dispatch.dispatch_attention_fn(x, x, x, attn_mask=mask, backend="vcattn")

    q = torch.randn(2, 60, 3, 64)
    keys = torch.arange(60) < torch.tensor([[60], [30]])
    assert torch.equal(call(q, keys[:, None].expand(2, 60, 60)), vcattn.attention(q, q, q, "NHD", seqused_k=[60, 30]))  # [B, Sq, Sk]
    assert torch.equal(call(q, keys[1].expand(3, 60, 60)), vcattn.attention(q, q, q, "NHD", seqused_k=[30, 30]))  # [H, Sq, Sk]
    with pytest.raises(ValueError, match=r"attn_mask \[2, 60, 60\] may be \[B, Sq, Sk\] or \[H, Sq, Sk\]"):
        call(q[:, :, :2], keys[:, None].expand(2, 60, 60))
    triangle = torch.ones(60, 60, dtype=torch.bool).tril()
    expected = torch.nn.functional.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2)
    with pytest.warns(RuntimeWarning, match="is no key padding"):
        assert torch.allclose(call(q, triangle), expected, atol=1e-5)


def test_mask_with_a_bias_goes_to_sdpa():
    q, bias = torch.randn(1, 60, 2, 64), torch.randn(1, 2, 60, 60)
    with attention_dispatch.attention_backend("vcattn"), pytest.warns(RuntimeWarning, match="holds a bias"):
        out = attention_dispatch.dispatch_attention_fn(q, q, q, attn_mask=bias)
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, q, q)), attn_mask=bias)
    assert torch.allclose(out.transpose(1, 2), expected, atol=1e-5)


def test_context_parallel_forward_gives_lse_by_sequence():
    q = torch.randn(1, 60, 2, 64)
    out, lse = integration._context_parallel_forward("vc8", None, q, q, q, return_lse=True)
    expected, expected_lse = vcattn.attention(q, q, q, "NHD", recipe="vc8", return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse.transpose(1, 2)) and lse.is_contiguous()
    assert attention_dispatch._AttentionBackendRegistry._is_context_parallel_available(attention_dispatch.AttentionBackendName("vcattn"))


@pytest.mark.parametrize("valid", [6, 3])
def test_hunyuan_video_15_masks(valid):
    model = spread_weights(HunyuanVideo15Transformer3DModel(
        in_channels=8, out_channels=4, num_attention_heads=2, attention_head_dim=128, num_layers=LAYERS, num_refiner_layers=1, mlp_ratio=2.0,
        patch_size=1, patch_size_t=1, text_embed_dim=16, text_embed_2_dim=16, image_embed_dim=16, rope_axes_dim=(16, 56, 56), target_size=8))  # fmt: skip
    text_mask = torch.arange(6)[None] < valid
    inputs = dict(hidden_states=torch.randn(1, 8, 3, 8, 8), timestep=torch.tensor([500.0]), encoder_hidden_states=torch.randn(1, 6, 16),
                  encoder_attention_mask=text_mask.long(), encoder_hidden_states_2=torch.randn(1, 5, 16),
                  encoder_attention_mask_2=(torch.arange(5)[None] < 2).long(), image_embeds=torch.zeros(1, 4, 16))  # fmt: skip
    native = run(model, inputs, "native")
    got = run(model, inputs, "vcattn")
    assert torch.isfinite(got).all() and relative_error(got, native) < TOLERANCE
    stats = vcattn.stats()
    assert stats["served"]["auto"] >= LAYERS and stats["fallback"] == {}


def wan_pipeline(**changes):
    parts = dict(tokenizer=None, text_encoder=None, vae=None, scheduler=FlowMatchEulerDiscreteScheduler(), transformer=wan_transformer())
    pipe = WanPipeline(**(parts | changes))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def generate(pipe, steps, size=128, **changes):
    generator = torch.Generator().manual_seed(2)
    arguments = dict(prompt_embeds=torch.randn(1, 7, 16, generator=generator), negative_prompt_embeds=torch.randn(1, 7, 16, generator=generator),
                     height=size, width=size, num_frames=9, num_inference_steps=steps, guidance_scale=3.0, output_type="latent",
                     latents=torch.randn(1, 4, 3, size // 8, size // 8, generator=generator))  # fmt: skip
    return pipe(**(arguments | changes)).frames


@pytest.fixture
def recorded(monkeypatch):
    """(step, layer, branch) of every call that had a state."""
    calls = []
    original = vcattn.GroupingState.at

    def at(self, step, *, layer, branch=0):
        calls.append((id(self), step, layer, branch))
        return original(self, step, layer=layer, branch=branch)

    monkeypatch.setattr(vcattn.GroupingState, "at", at)
    return calls


def test_session_keys_every_layer_and_branch(recorded):
    pipe = wan_pipeline()
    pipe.transformer.set_attention_backend("native")
    native = generate(pipe, 4)
    pipe.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, 4) as session:
        out = generate(pipe, 4)
        # attn1 and attn2 of each layer are modules with a backend: self-attention is every second one.
        assert [call[1:] for call in recorded] == [(step, layer, branch) for step in range(4) for branch in range(2) for layer in (0, 2)]
        assert session.step == 4 and session.keys() == [(0, layer, branch) for layer in (0, 2) for branch in (0, 1)]
    assert relative_error(out, native) < TOLERANCE
    assert vcattn.stats()["served"] == {"auto": 16} and vcattn.stats()["fallback"] == {}


def test_frames_of_a_whole_pipeline(make_uniform):
    """With a VAE, whose own attention stays what it was; exact, since a random decoder turns any small error into a large one."""
    vae = AutoencoderKLWan(base_dim=3, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
                           latents_mean=[0.0] * 4, latents_std=[1.0] * 4)  # fmt: skip
    pipe = wan_pipeline(vae=vae.eval())
    pipe.transformer.set_attention_backend("native")
    native = generate(pipe, 2, size=64, output_type="pt")
    pipe.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, 2, recipe="exact"):
        frames = generate(pipe, 2, size=64, output_type="pt")
    assert vcattn.stats()["served"] == {"exact": 2 * 2 * LAYERS} and vcattn.stats()["fallback"] == {}
    assert frames.shape == (1, 9, 3, 64, 64) and relative_error(frames, native) < 1e-4
    make_uniform()
    pipe.transformer.set_attention_backend("native")
    assert relative_error(generate(pipe, 2, size=64, output_type="pt"), native) > 0.01


def test_session_leaves_nothing_behind():
    pipe = wan_pipeline()
    pipe.transformer.set_attention_backend("vcattn")
    with pytest.raises(KeyError), vcattn.session(pipe, 3) as session:
        generate(pipe, 3)
        states = [weakref.ref(state) for state in session._states.values()]
        raise KeyError
    gc.collect()
    assert integration._open == [] and len(states) == 1 and states[0]() is None
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler
    assert "cache_context" not in vars(pipe.transformer)
    assert not any(module._forward_pre_hooks for module in pipe.transformer.modules())
    generate(pipe, 1)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler()
    integration._enter_model(session, 0)  # as a graph may do that was compiled meanwhile
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler


def test_session_survives_a_failed_forward_and_a_new_resolution():
    pipe = wan_pipeline()
    pipe.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, 2) as session:
        with pytest.raises(RuntimeError):
            generate(pipe, 2, prompt_embeds=torch.randn(1, 7, 15))
        assert integration._place.get() is None
        first = generate(pipe, 2)
        generate(pipe, 2, size=160)
        assert torch.equal(generate(pipe, 2), first)
    inputs = [wan_inputs(size=16), wan_inputs(size=20)]
    with vcattn.session(pipe, 5), torch.no_grad():  # without set_timesteps in between
        for x in inputs:
            pipe.transformer(**x)
            pipe.scheduler._step_index = 0
            pipe.scheduler.set_timesteps(5)


def test_session_of_two_experts(recorded):
    pipe = wan_pipeline(transformer_2=wan_transformer(), boundary_ratio=0.6)
    pipe.transformer.set_attention_backend("native")
    native = generate(pipe, 6)
    for model in (pipe.transformer, pipe.transformer_2):
        model.set_attention_backend("vcattn")
    with vcattn.session(pipe, 6) as session:
        assert 0 < relative_error(generate(pipe, 6), native) < TOLERANCE
        assert {key[0] for key in session.keys()} == {0, 1}
    assert vcattn.stats()["served"] == {"auto": 6 * 2 * LAYERS} and vcattn.stats()["fallback"] == {}
    states = list(dict.fromkeys(call[0] for call in recorded))
    assert len(states) == 2
    for state in states:  # each counts its own steps from 0
        steps = sorted({call[1] for call in recorded if call[0] == state})
        assert steps == list(range(len(steps)))


def test_session_recipe_and_refusals():
    pipe = wan_pipeline()
    pipe.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, 1, recipe="vc8", policy="never"):
        generate(pipe, 1)
    assert vcattn.stats()["served"] == {"vc8": 2 * LAYERS}
    for steps, error in ((0, ValueError), (-1, ValueError), ("4", TypeError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"num_inference_steps must be .*got {steps!r}"), vcattn.session(pipe, steps):
            pass
    with pytest.raises(ValueError, match="vc9"), vcattn.session(pipe, 1, recipe="vc9"):
        pass
    with pytest.raises(TypeError, match="recipe must be a string"), vcattn.session(pipe, 1, recipe=8):
        pass
    pipe.scheduler = None
    with pytest.raises(ValueError, match="with a scheduler, whose steps it counts; got WanPipeline with scheduler NoneType"), vcattn.session(pipe, 1):
        pass
    assert integration._open == []
    with pytest.raises(ValueError, match="policy must be one of"), vcattn.session(pipe, 1, policy="x"):
        pass
    with pytest.raises(ValueError, match="a pipeline with a transformer"), vcattn.session(object(), 1):
        pass


def test_compile_fullgraph_of_the_real_class():
    model, inputs = wan_transformer(), wan_inputs()
    expected = run(model, inputs, "vcattn")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs, return_dict=False)[0]
    assert torch.allclose(got, expected, atol=1e-4)
    assert vcattn.stats()["served"] == {"auto": 2 * LAYERS}


# --- Whose session, and whether there is one ------------------------------------------------------------------------------------------


def with_recipe(recipe, **changes):
    """A pipeline whose model uses a backend with this recipe."""
    integration.register(f"vcattn_{recipe}", recipe=recipe)
    pipe = wan_pipeline(**changes)
    pipe.transformer.set_attention_backend(f"vcattn_{recipe}")
    return pipe


def test_session_keeps_the_recipe_of_the_backend():
    pipe = with_recipe("vc8", transformer_2=wan_transformer(), boundary_ratio=0.6)
    integration.register("vcattn_fp8", recipe="fp8")
    pipe.transformer_2.set_attention_backend("vcattn_fp8")
    with vcattn.session(pipe, 6) as session:
        generate(pipe, 6)
        assert session.recipe is None and {key[0] for key in session.keys()} == {0, 1}
    served = vcattn.stats()["served"]
    assert served.keys() == {"vc8", "fp8"} and sum(served.values()) == 6 * 2 * LAYERS


def alone(pipe, steps, **options):
    """What a session of one pipeline gives, with nothing else open."""
    with vcattn.session(pipe, steps, **options):
        return generate(pipe, steps)


def test_nested_sessions_belong_to_their_models(recorded):
    outer, inner, other = with_recipe("vc8"), with_recipe("vc8s"), with_recipe("fp8")
    expected = alone(outer, 4), alone(inner, 2, recipe="sage2")
    vcattn.reset_stats()
    recorded.clear()
    with vcattn.session(outer, 4) as first, vcattn.session(inner, 2, recipe="sage2") as second:
        assert torch.equal(generate(outer, 4), expected[0]) and torch.equal(generate(inner, 2), expected[1])
        assert (first.step, second.step) == (4, 2) and first.keys() == second.keys() != []
        states = {id(state) for session in (first, second) for state in session._states.values()}
        assert {call[0] for call in recorded} == states and len(states) == 2
        generate(other, 1)  # has no session: its own recipe, and no state
        with pytest.raises(RuntimeError):
            generate(inner, 2, prompt_embeds=torch.randn(1, 7, 15))
        assert torch.equal(generate(outer, 4), expected[0])
    assert vcattn.stats()["served"] == {"vc8": 2 * 4 * 2 * LAYERS, "sage2": 2 * 2 * LAYERS, "fp8": 2 * LAYERS}
    assert len(recorded) == (2 * 4 + 2) * 2 * LAYERS


def test_a_backend_of_its_own_asks_the_session():
    """As one does that emulates a recipe; another session's models are not its own."""
    asked = []

    def asking(query, key, value):
        asked.append([session.state(query) is not None for session in (first, second)])
        return torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (query, key, value))).transpose(1, 2)

    integration.add_backend("asking", asking)
    pipes = wan_pipeline(), wan_pipeline()
    for pipe in pipes:
        pipe.transformer.set_attention_backend("asking")
    with vcattn.session(pipes[0], 1) as first, vcattn.session(pipes[1], 1) as second:
        for pipe in pipes:
            generate(pipe, 1)
    calls = 2 * 2 * LAYERS  # cross-attention as well
    assert asked == [[True, False]] * calls + [[False, True]] * calls


def test_sessions_left_in_the_order_of_their_opening():
    first, second = with_recipe("vc8"), with_recipe("vc8s")
    expected = alone(second, 2)
    sessions = [vcattn.session(pipe, 2) for pipe in (first, second)]
    for session in sessions:
        session.__enter__()
    generate(first, 2)
    sessions[0].__exit__(None, None, None)
    assert torch.equal(generate(second, 2), expected)
    sessions[1].__exit__(None, None, None)
    assert integration._open == [] and all(type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler for pipe in (first, second))


def test_sessions_in_threads(recorded):
    pipes = [with_recipe("vc8"), with_recipe("vc8s")]
    expected = [alone(pipe, 3) for pipe in pipes]
    vcattn.reset_stats()
    together, results = threading.Barrier(len(pipes), timeout=60), [None] * len(pipes)

    def work(i):
        with vcattn.session(pipes[i], 3):
            together.wait()
            step = pipes[i].scheduler.step

            def in_turns(*args, **kwargs):  # so that neither is through before the other begins
                together.wait()
                return step(*args, **kwargs)

            pipes[i].scheduler.step = in_turns
            results[i] = generate(pipes[i], 3)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pipes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got, want) for got, want in zip(results, expected))
    assert vcattn.stats()["served"] == {"vc8": 3 * 2 * LAYERS, "vc8s": 3 * 2 * LAYERS}


def test_one_session_for_a_model_and_a_scheduler():
    pipe = with_recipe("vc8")
    twin, sharing = wan_pipeline(transformer=pipe.transformer), wan_pipeline(scheduler=pipe.scheduler)
    sharing.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, 2):
        compiled = types.SimpleNamespace(transformer=torch.compile(pipe.transformer), scheduler=FlowMatchEulerDiscreteScheduler())
        for other in (pipe, twin, compiled):
            with pytest.raises(ValueError, match="a model can be in one session at a time; got transformer"), vcattn.session(other, 2):
                pass
        with pytest.raises(ValueError, match="a scheduler can be in one session at a time"), vcattn.session(sharing, 2):
            pass
        generate(pipe, 2)  # still counted
        assert len(integration._open) == 1
    assert vcattn.stats()["served"] == {"vc8": 2 * 2 * LAYERS}
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler and not any(module._forward_pre_hooks for module in pipe.transformer.modules())
    alone(sharing, 1)


def test_an_interrupt_leaves_no_session(monkeypatch, recorded):
    """torch calls no hook after it, so that the layer is never left."""
    pipe, other = with_recipe("vc8"), with_recipe("vc8s")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), vcattn.session(pipe, 2), monkeypatch.context() as patch:
        patch.setattr(integration, "attention", interrupt)
        generate(pipe, 2)
    assert integration._place.get() is not None
    third = with_recipe("fp8")
    recorded.clear()
    with vcattn.session(third, 1):
        generate(other, 1)
        assert recorded == []
        generate(third, 1)
    assert vcattn.stats()["served"] == {"vc8s": 2 * LAYERS, "fp8": 2 * LAYERS}


def test_session_without_a_backend_of_vcattn():
    pipe = wan_pipeline()
    with pytest.raises(ValueError, match="needs a transformer that uses a backend of vcattn; got native"), vcattn.session(pipe, 1):
        pass
    pipe.transformer.set_attention_backend("_native_math")
    with pytest.raises(ValueError, match="got _native_math; call pipe.transformer.set_attention_backend"), vcattn.session(pipe, 1):
        pass
    pipe.transformer.reset_attention_backend()
    with attention_dispatch.attention_backend("vcattn"):  # the active one is used where none is set
        alone(pipe, 1)
    assert vcattn.stats()["served"] == {"auto": 2 * LAYERS}


def test_session_that_serves_nothing_says_so():
    pipe = with_recipe("vc8", transformer_2=wan_transformer(), boundary_ratio=0.6)
    with pytest.warns(RuntimeWarning, match="none of transformer, transformer_2 ran inside"), vcattn.session(pipe, 1):
        pass
    pipe.transformer_2.set_attention_backend("native")
    with pytest.warns(RuntimeWarning, match="session: transformer_2 ran inside, but no self-attention") as told:
        alone(pipe, 6)
    assert told[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="session: transformer ran inside"), vcattn.session(pipe, 1):
        pipe.transformer(**wan_inputs())  # with a gradient, which native attention has
    with pytest.raises(KeyError), warnings.catch_warnings():
        warnings.simplefilter("error")
        with vcattn.session(pipe, 1):
            raise KeyError  # which says enough


def test_more_steps_than_announced():
    pipe = with_recipe("vc8")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with vcattn.session(pipe, 2):
            generate(pipe, 2)
            generate(pipe, 2)  # starts anew
            generate(pipe, 1)
    with pytest.warns(RuntimeWarning, match="given num_inference_steps=2, and another step began") as told, vcattn.session(pipe, 2) as session:
        generate(pipe, 4)
        assert session.step == 4
    assert len([warning for warning in told if "another step" in str(warning.message)]) == 1


def test_another_scheduler_inside_a_session(recorded):
    pipe, first = with_recipe("vc8"), FlowMatchEulerDiscreteScheduler()
    pipe.scheduler = first
    expected = alone(pipe, 3)
    recorded.clear()
    with vcattn.session(pipe, 3) as session:
        generate(pipe, 2)
        pipe.scheduler = FlowMatchEulerDiscreteScheduler()
        assert torch.equal(generate(pipe, 3), expected) and session.step == 3
        assert type(first) is FlowMatchEulerDiscreteScheduler is not type(pipe.scheduler)
    assert sorted({call[1] for call in recorded[2 * 2 * LAYERS :]}) == [0, 1, 2]
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy])
def test_copies_of_the_scheduler_are_ordinary(double):
    """Pipelines that make audio beside video copy theirs."""
    pipe = with_recipe("vc8")
    noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))

    def two_in_turn():
        mine, samples = pipe.scheduler, [noise, noise]
        mine.set_timesteps(4)
        other = double(mine)
        for t in mine.timesteps:
            samples = [scheduler.step(0.1 * sample, t, sample).prev_sample for scheduler, sample in zip((mine, other), samples)]
        return samples

    expected = two_in_turn()
    assert torch.equal(*expected)
    with vcattn.session(pipe, 4) as session:
        generate(pipe, 1)
        assert all(torch.equal(got, want) for got, want in zip(two_in_turn(), expected)) and session.step == 4
        assert type(pipe.scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"


def compile_blocks(pipe):
    for block in pipe.transformer.blocks:
        block.compile(backend="aot_eager")


def compile_in_place(pipe):
    pipe.transformer.compile(backend="aot_eager")


def wrap_compiled(pipe):
    pipe.transformer = torch.compile(pipe.transformer, backend="aot_eager")


@pytest.mark.parametrize("compiled", [compile_blocks, compile_in_place, wrap_compiled])
def test_sessions_of_compiled_models(compiled, recorded):
    torch.compiler.reset()
    pipe, other = with_recipe("vc8"), with_recipe("vc8s")
    expected, places = alone(pipe, 3), [call[1:] for call in recorded]
    compiled(pipe)
    before = generate(pipe, 1)
    vcattn.reset_stats()
    for _ in range(2):
        recorded.clear()
        with vcattn.session(other, 1), vcattn.session(pipe, 3) as session:
            assert relative_error(generate(pipe, 3), expected) < 1e-4
            assert [call[1:] for call in recorded] == places and session.step == 3
            generate(other, 1)
    assert vcattn.stats()["served"] == {"vc8": 2 * 3 * 2 * LAYERS, "vc8s": 2 * 2 * LAYERS}
    recorded.clear()
    assert torch.equal(generate(pipe, 1), before) and recorded == []
