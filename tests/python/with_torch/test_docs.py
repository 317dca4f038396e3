"""The Python blocks of README.md and docs/python.md run, one host after another; and what the text says that no other test asserts."""

import functools
import types
from pathlib import Path

import pytest
import torch
from diffusers.models import attention_dispatch
from torch._dynamo import exc

import vcattn

ROOT = Path(__file__).parents[3]


def blocks(name):
    """[(heading, code)]"""
    found, heading, code = [], "", None
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line == "```python":
            code = []
        elif line == "```" and code is not None:
            found.append((heading, "\n".join(code)))
            code = None
        elif code is not None:
            code.append(line)
    return found


def stub(monkeypatch, name, **members):
    import sys

    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    vars(sys.modules[name]).update(members)
    for i in range(1, len(parts)):
        setattr(sys.modules[".".join(parts[:i])], parts[i], sys.modules[".".join(parts[: i + 1])])


def names_of_host(heading, monkeypatch):
    """What the block expects to be there."""
    import test_hosts

    if heading == "LightX2V":
        stub(monkeypatch, "lightx2v.utils.registry_factory", ATTN_WEIGHT_REGISTER=test_hosts.LightRegister())
    if heading == "xDiT":
        kinds = types.SimpleNamespace(SDPA="SDPA")
        stub(monkeypatch, "xfuser.core.distributed.attention_backend", AttentionBackendType=kinds, ATTENTION_FUNCTION_REGISTRY={"SDPA": test_hosts.exact})
    if heading.startswith("Wan"):
        stub(monkeypatch, "wan.modules.attention", flash_attention=test_hosts.wan_flash_attention)
    if heading == "LongCat-Video":
        return {"dit": test_hosts.longcat_model()}
    if heading == "Python":
        return {name: torch.randn(1, 2, 100, 64) for name in "qkv"}
    return {}


CASES = [(name, *block) for name in ("README.md", "docs/python.md") for block in blocks(name)]


def test_every_host_has_a_block():
    assert {heading for name, heading, _ in CASES if name == "docs/python.md"} == {
        "", "diffusers", "LightX2V", "xDiT", "Wan (official repositories)", "LongCat-Video"}  # fmt: skip


@pytest.mark.parametrize("name, heading, code", CASES, ids=[f"{name}-{heading}" for name, heading, _ in CASES])
def test_block_runs(name, heading, code, monkeypatch):
    import test_hosts

    for module in ("lightx2v", "xdit"):
        test_hosts.forget_integration(module, monkeypatch)
    try:
        exec(compile(code, f"{name}:{heading}", "exec"), names_of_host(heading, monkeypatch))
    finally:
        attention_dispatch._AttentionBackendRegistry._active_backend = attention_dispatch.AttentionBackendName.NATIVE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_additive_masks(dtype):
    q, seen = torch.randn(2, 2, 40, 64), torch.arange(40) < torch.tensor([[40], [25]])
    expected = vcattn.attention(q, q, q, attn_mask=seen)
    for hidden in (-torch.inf, torch.finfo(dtype).min, -1e4):
        mask = torch.zeros(2, 40, dtype=dtype).masked_fill(~seen, hidden)
        if hidden == -1e4:
            with pytest.raises(vcattn.UnsupportedError, match="attn_mask holds a bias"):
                vcattn.attention(q, q, q, attn_mask=mask)
            mask = mask == 0
        assert torch.equal(vcattn.attention(q, q, q, attn_mask=mask), expected)


@pytest.mark.parametrize("inside, error", [(False, exc.FailOnRecompileLimitHit), (True, exc.Unsupported)], ids=["outside", "inside"])
def test_grouping_states_and_compilation(inside, error):
    q, k, v = torch.randn(3, 1, 1, 300, 64)

    def of_place(place):
        return vcattn.attention(q, k, v, state=place)

    def of_step(state, step):
        return vcattn.attention(q, k, v, state=state.at(step, layer=0))

    def generate(compiled=lambda function: function, steps=12):
        torch.compiler.reset()
        state, function = vcattn.GroupingState(total_steps=12, policy="every_step"), compiled(of_step if inside else of_place)
        return torch.stack([function(state, step) if inside else function(state.at(step, layer=0)) for step in range(steps)])

    expected = generate()
    assert not torch.equal(expected[0], expected[1])  # by their permutations
    assert torch.equal(generate(functools.partial(torch.compile, backend="aot_eager")), expected)
    whole = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    if not inside:
        assert torch.equal(generate(whole, steps=8), expected[:8])
    with pytest.raises(error):
        generate(whole)
