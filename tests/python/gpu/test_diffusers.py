"""A transformer of diffusers on a CUDA device, with the session's grouping schedule."""

import types

import pytest
import torch
from cuda_cases import DEVICE, error, same

diffusers = pytest.importorskip("diffusers")

import vcattn  # noqa: E402
import vcattn.integrations.diffusers  # noqa: E402, F401  registers the backend

LAYERS, STEPS = 2, 8


def wan(dtype=torch.float32):
    model = diffusers.WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=128, in_channels=4, out_channels=4,
                                            text_dim=16, freq_dim=32, ffn_dim=64, num_layers=LAYERS, cross_attn_norm=True,
                                            qk_norm="rms_norm_across_heads", rope_max_seq_len=32)  # fmt: skip
    return model.to(DEVICE, dtype).eval().requires_grad_(False)


def test_session():
    model, scheduler = wan(), diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS, device=DEVICE)
    text, noise = torch.randn(1, 7, 16, device=DEVICE), torch.randn(1, 4, 3, 32, 32, device=DEVICE)

    def denoise(waits):
        x = noise
        for i, t in enumerate(scheduler.timesteps):
            torch.cuda.synchronize()
            torch.cuda._sleep(int(200e6))
            event = torch.cuda.Event()
            event.record()
            velocity = model(x, t.expand(1), text, return_dict=False)[0]
            waits.append(event.query())
            x = scheduler.step(velocity, t, x, return_dict=False)[0]
        scheduler._step_index = None
        return x

    waits = []
    model.set_attention_backend("native")
    expected = denoise(waits)
    model.set_attention_backend("vcattn")
    pipe = types.SimpleNamespace(transformer=model, scheduler=scheduler)
    with vcattn.session(pipe, num_inference_steps=STEPS, refresh_interval=1) as session:
        got = denoise(waits)
        assert len(session.keys()) == LAYERS and session.step == STEPS
        assert all(group.permutation.data.is_cuda for state in session._states.values() for group in state._kept.values())
        session.restart()
        again = denoise([])
    assert same(got, again)
    assert 0 < error(got, expected.double()) < 0.02
    assert vcattn.stats()["served"] == {"auto": 2 * LAYERS * STEPS} and vcattn.stats()["fallback"] == {}
    # The first pass of each backend may allocate and load; no other waits for the device.
    assert not any(waits[1:STEPS] + waits[STEPS + 1 :]), waits
