"""The Python blocks of README.md and docs/python.md run, one host after another."""

import types
from pathlib import Path

import pytest
import torch
from diffusers.models import attention_dispatch

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
    import test_diffusers
    import test_hosts

    if heading == "diffusers":
        return {"pipe": test_diffusers.wan_pipeline(), "embeds": torch.randn(1, 7, 16),
                "arguments": dict(height=64, width=64, num_frames=5, output_type="latent")}  # fmt: skip
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
