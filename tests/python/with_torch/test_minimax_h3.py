"""MiniMax-H3, of diffusers since 0.42: text, audio and video in one packed sequence, two heads of 128 channels, two layers and a text refiner."""

import pytest
import torch
from diffusers import MiniMaxH3Scheduler, MiniMaxH3Transformer3DModel
from diffusers.modular_pipelines.minimax_h3.denoise import MiniMaxH3DenoiseStep, MiniMaxH3Ref2VADenoiseStep
from reference import relative_error
from test_diffusers import TOLERANCE, make_uniform, native_afterwards, recorded  # noqa: F401  fixtures

import vcattn
import vcattn.integrations.diffusers as integration

TEXT, AUDIO, VIDEO = 9, 12, 48
LAYERS = 3  # with the refiner's, which is the first


def transformer():
    model = MiniMaxH3Transformer3DModel(
        num_attention_heads=2, attention_head_dim=128, hidden_size=64, num_layers=2, num_refiner_layers=1, ffn_dim=64, in_channels=4,
        audio_in_channels=8, text_dim=16, freq_dim=32, time_embed_hidden_dim=32, time_embed_dim=32)  # fmt: skip
    with torch.no_grad():  # larger than the initial ones, so that attention matters to the output
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("to_v", "to_out", "adaln_proj.linear.weight")):
                parameter.mul_(4)
    return model.eval()


def layout():
    """Where the rows of text, audio and video lie, video with (t, h, w)."""
    total = TEXT + AUDIO + VIDEO
    tags = torch.tensor([1] * TEXT + [2] * AUDIO + [0] * VIDEO)
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(4))
    line = torch.arange(TEXT + AUDIO)[:, None] * torch.tensor([[1, 0, 0]])
    return {"token_tags": tags, "position_ids": torch.cat([line, grid]).float(), "text_indices": torch.arange(TEXT),
            "audio_indices": torch.arange(TEXT, TEXT + AUDIO), "video_indices": torch.arange(TEXT + AUDIO, total)}  # fmt: skip


def inputs(batch=1):
    return layout() | {"hidden_states": torch.randn(batch, VIDEO, 16), "audio_hidden_states": torch.randn(batch, AUDIO, 8),
                       "encoder_hidden_states": torch.randn(batch, TEXT, 16), "timestep": torch.tensor([0.3, 0.6]),
                       "timestep_indices": (layout()["token_tags"] == 2).long()}  # fmt: skip


def both(model, arguments, backend):
    """Velocities of video and audio, one after another."""
    model.set_attention_backend(backend)
    with torch.no_grad():
        return torch.cat([x.flatten() for x in model(**arguments, return_dict=False)])


def test_output_depends_on_attention(make_uniform):  # noqa: F811
    model, arguments = transformer(), inputs()
    expected = both(model, arguments, "native")
    make_uniform()
    assert relative_error(both(model, arguments, "native"), expected) > 8 * TOLERANCE


@pytest.mark.parametrize("recipe, tolerance", [("auto", TOLERANCE), ("exact", 1e-4)])
@pytest.mark.parametrize("fused, batch", [(False, 2), (True, 1)])
def test_against_native(recipe, tolerance, fused, batch, monkeypatch):
    """One packed sequence without a mask; fused projections give views of one buffer, which are served as they are."""
    integration.register("vcattn_test", recipe=recipe)
    seen, attention = [], integration.attention

    def watched(q, k, v, *rest, **options):
        seen.append((tuple(q.shape), v.stride(1), options["attn_mask"]))
        return attention(q, k, v, *rest, **options)

    monkeypatch.setattr(integration, "attention", watched)
    model, arguments = transformer(), inputs(batch)
    if fused:
        model.fuse_qkv_projections()
    native = both(model, arguments, "native")
    got = both(model, arguments, "vcattn_test")
    assert 0 < relative_error(got, native) < tolerance
    row = 3 * 256 if fused else 256
    assert seen == [((batch, seqlen, 2, 128), row, None) for seqlen in (TEXT, *[TEXT + AUDIO + VIDEO] * 2)]
    assert vcattn.stats() == {"served": {recipe: LAYERS}, "fallback": {}, "bypass": {}}


def denoise(pipe, steps):
    for scheduler in (pipe.scheduler, pipe.audio_scheduler):
        scheduler.set_timesteps(steps + 1)  # the grid ends with 0, which is no step
    generator = torch.Generator().manual_seed(2)
    indices = (layout()["token_tags"] == 2).long()
    plan = [(torch.stack(pair), indices) for pair in zip(pipe.scheduler.timesteps, pipe.audio_scheduler.timesteps)]
    state = pipe(latents=torch.randn(VIDEO, 16, generator=generator), audio_latents=torch.randn(AUDIO, 8, generator=generator),
                 prompt_embeds=torch.randn(1, TEXT, 16, generator=generator), row_timestep_plan=plan, timesteps=pipe.scheduler.timesteps,
                 audio_timesteps=pipe.audio_scheduler.timesteps, denoiser_input_fields=layout())  # fmt: skip
    return torch.cat([state.get("latents").flatten(), state.get("audio_latents").flatten()])


@pytest.mark.parametrize("blocks, name", [(MiniMaxH3DenoiseStep, "transformer"), (MiniMaxH3Ref2VADenoiseStep, "transformer_ref")])
def test_session_in_the_modular_pipeline(blocks, name, recorded):  # noqa: F811
    pipe = blocks().init_pipeline()
    model = transformer()
    pipe.update_components(**{name: model}, scheduler=MiniMaxH3Scheduler(), audio_scheduler=MiniMaxH3Scheduler(shift=3.0))
    model.set_attention_backend("native")
    native = denoise(pipe, 4)
    model.set_attention_backend("vcattn")
    with vcattn.session(pipe, 4) as session:
        got = denoise(pipe, 4)
        # Guidance is distilled: one forward pass and one branch at every step.
        assert [call[1:] for call in recorded] == [(step, layer, 0) for step in range(4) for layer in range(LAYERS)]
        assert session.step == 4 and session.keys() == [(0, layer, 0) for layer in range(LAYERS)]
    assert 0 < relative_error(got, native) < TOLERANCE
    assert vcattn.stats() == {"served": {"auto": 4 * LAYERS}, "fallback": {}, "bypass": {}}
