"""examples/python in its small form on the CPU."""

import json
import math
import sys
import types
from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from diffusers.models import attention_dispatch
from safetensors.torch import save_file

import vcattn

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples/python"))

import compare_recipes  # noqa: E402
import comparison  # noqa: E402
import fidelity_table  # noqa: E402
import metrics  # noqa: E402
import models  # noqa: E402
import records  # noqa: E402
import variants  # noqa: E402

PCA_SIZE = (8, 32, 48)


@pytest.fixture(autouse=True)
def native_afterwards():
    yield
    attention_dispatch._AttentionBackendRegistry._active_backend = attention_dispatch.AttentionBackendName.NATIVE


@pytest.fixture(scope="module")
def pca_folder(tmp_path_factory):
    """A random transformer, three prompts, and a PCA whose basis is orthonormal."""
    folder = tmp_path_factory.mktemp("pca")
    torch.manual_seed(1)
    WanTransformer3DModel(num_attention_heads=1, attention_head_dim=64, in_channels=6, out_channels=6, text_dim=16, freq_dim=32, ffn_dim=32,
                          num_layers=1).save_pretrained(folder)  # fmt: skip
    basis = torch.linalg.qr(torch.randn(768, 6)).Q.contiguous()
    save_file({"prompts": torch.randn(3, 5, 16, dtype=torch.bfloat16), "pca_basis": basis, "pca_mu": 0.1 * torch.randn(768),
               "pca_scale": torch.rand(6) + 0.5}, folder / models.PCA_FILE, {"prompt_names": '["null", "cat", "dog"]'})  # fmt: skip
    return folder


def compare(folder, *arguments):
    size = ",".join(map(str, PCA_SIZE))
    return compare_recipes.main(["--device", "cpu", "--model", str(folder), "--size", size, "--steps", "2", *map(str, arguments)])


@pytest.fixture
def refused(capsys):
    """Asserts that a program ends with one line that says why."""

    def check(text, main, *arguments):
        with pytest.raises(SystemExit) as end:
            main(*arguments)
        *usage, line = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and ": error: " in line and text in line and usage[0].startswith("usage: ")

    return check


@pytest.fixture
def no_work(monkeypatch):
    """Fails where a model is loaded."""

    def load(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(models, "load", load)


def test_small_form_runs_and_shows(tmp_path, capsys):
    record = compare_recipes.main(["--device", "cpu", "--pairs", "1", "--steps", "2", "--recipes", "exact", "vc8s", "nvfp4",
                                   "--policies", "every_step", "--videos", str(tmp_path)])  # fmt: skip
    rows = {row["variant"]: row for row in record.rows}
    assert list(rows) == ["_native_math", "exact never", "vc8s every_step", "nvfp4 never"]
    for name, row in rows.items():
        assert all(math.isfinite(row[metric]) for metric in ("psnr", "ssim", "ms_ssim", "flip", "latent_rel_l2")), name
        assert row["stats"]["fallback"] == {} and (row["kind"] == "bf16" or sum(row["stats"]["served"].values()) == 8)  # 2 steps, CFG, 2 layers
    assert rows["nvfp4 never"]["latent_rel_l2"] > 1.5 * rows["exact never"]["latent_rel_l2"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".mp4", ".png"} and len(list(tmp_path.glob("*.mp4"))) == 5
    assert "`vc8s`, grouped at every step" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, text", [
    (["--recipes", "fp8", "vc9"], "--recipes: must be one of exact, bf16, "),
    (["--recipes", "vc8,block=65"], "--recipes: must have changes that the library knows; got vc8,block=65: "),
    (["--recipes", "vc8,blocks=64"], "got vc8,blocks=64: "),
    (["--recipes", "auto"], "got auto"),
    (["--policy-recipes", "vc9"], "--policy-recipes: must be one of "),
    (["--recipes", "fp8", "vc8", "--policy-recipes", "vc8", "vc8s"], "compared, fp8, vc8; got vc8s; name them in --recipes too"),
    (["--policy-recipes", "vc8,block=64"], "got vc8,block=64; name them in --recipes too"),
    (["--recipes", "fp8", "--policies", "never"], "--policies needs --policy-recipes that are compared; got none among fp8"),
    (["--policies", "sometimes"], "--policies: invalid choice: 'sometimes'"),
    *((["--time-limit", value], f"--time-limit: must be more than 0 seconds; got {value}") for value in ("nan", "-1", "0")),
    (["--guidance", "nan"], "--guidance: must be a finite number; got nan"),
    (["--size", "5,176"], "--size: must be FRAMES,HEIGHT,WIDTH; got 5,176"),
    (["--noise-floor", "_native_flsh"], "--noise-floor needs an attention backend of diffusers that runs on cpu; got _native_flsh: "),
    (["--noise-floor", "_native_cudnn"], "that runs on cpu; got _native_cudnn: "),
    (["--noise-floor", "vcattn"], "--noise-floor needs a backend that computes in BF16; got vcattn, which quantises"),
])  # fmt: skip
def test_mistakes_are_refused_at_once(refused, no_work, arguments, text):
    refused(text, compare_recipes.main, ["--device", "cpu", *arguments])


def test_places_that_cannot_be_written_are_refused_at_once(refused, no_work, tmp_path):
    file, record = tmp_path / "file", tmp_path / "record.json"
    file.write_text("[1]")
    for option, path, text in (("--record", file / "record.json", "be written to"), ("--videos", file, "be written to"),
                               ("--record", tmp_path, "Is a directory"), ("--record", file, "holds something else")):  # fmt: skip
        refused(f"{option} needs a ", compare_recipes.main, ["--device", "cpu", option, str(path)])
        refused(text, compare_recipes.main, ["--device", "cpu", option, str(path)])
    content = json.dumps({"conditions": {}, "rows": []})
    record.write_text(content)
    with pytest.raises(AssertionError, match="a model was loaded"):
        compare_recipes.main(["--device", "cpu", "--record", str(record), "--videos", str(tmp_path / "new/videos")])
    assert record.read_text() == content and file.read_text() == "[1]"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new", "record.json"] and not list((tmp_path / "new/videos").iterdir())


def test_mistakes_about_a_model_are_refused(refused, pca_folder, tmp_path):
    refused("--model needs a folder with model_index.json", compare_recipes.main, ["--device", "cpu", "--model", str(tmp_path / "none")])
    refused("cat, dog; got bird", compare, pca_folder, "--prompt", "bird")
    refused("1 more than a multiple of 4 (frames), and multiples of 16,16 (height, width); got 5,176,170", compare_recipes.main,
            ["--device", "cpu", "--size", "5,176,170"])  # fmt: skip
    refused("--size of random Wan must be 1 more", compare_recipes.main, ["--device", "cpu", "--size", "6,176,176"])


def test_device_that_is_missing_is_refused(refused, no_work, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("--device cuda needs a GPU", compare_recipes.main, ["--device", "cuda"])


def test_package_that_is_missing_is_named(refused, monkeypatch):
    monkeypatch.delitem(sys.modules, "comparison")
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    refused("needs the package torchmetrics", compare_recipes.main, [])


def test_recipes_that_the_device_lacks_are_refused(monkeypatch):
    monkeypatch.setattr(vcattn, "supports", lambda *_, recipe: (recipe != "vc8", "no kernel"))
    chosen = variants.choose(torch.device("cpu"), 64, [], ["never"], [])
    assert [variant.recipe for variant in chosen] == [recipe for recipe in vcattn.RECIPES if recipe != "vc8"]
    with pytest.raises(vcattn.UnsupportedError, match="--recipes needs recipes that cpu serves; got vc8: no kernel"):
        variants.choose(torch.device("cpu"), 64, ["fp8", "vc8"], ["never"], [])
    with pytest.raises(vcattn.UnsupportedError, match="--policy-recipes needs recipes that cpu serves; got vc8: no kernel"):
        variants.choose(torch.device("cpu"), 64, [], ["never"], ["vc8"])


def test_policies_that_are_repeated_run_once():
    chosen = variants.choose(torch.device("cpu"), 64, ["vc8", "vc8"], ["never", "every_step", "never"], ["vc8"])
    assert list(map(str, chosen)) == ["vc8 never", "vc8 every_step"]


def test_record_accumulates_and_refuses_other_conditions(refused, pca_folder, tmp_path, monkeypatch):
    path, calls = tmp_path / "record.json", []
    generate = models.Model.generate
    monkeypatch.setattr(models.Model, "generate", lambda self, *pairs: calls.append(pairs) or generate(self, *pairs))
    compare(pca_folder, "--record", path, "--recipes", "fp8", "--pairs", 1)
    assert len(calls) == 3  # reference, second kernel, fp8
    compare(pca_folder, "--record", path, "--recipes", "fp8", "sage2", "--pairs", 1)
    assert len(calls) == 5  # reference, sage2
    compare(pca_folder, "--record", path, "--recipes", "fp8", "sage2", "--pairs", 1)
    assert len(calls) == 5
    rows = json.loads(path.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["_native_math", "fp8 never", "sage2 never"] and {row["prompt"] for row in rows} == {"cat"}
    refused("guidance 5.0 there, 3.0 here", compare, pca_folder, "--record", path, "--guidance", 3)
    assert len(json.loads(path.read_text())["rows"]) == 3


def test_time_limit_stops_before_the_first_video(pca_folder, capsys):
    assert compare(pca_folder, "--recipes", "fp8", "--time-limit", 1e-9).rows == []
    assert "4 of 4 videos are missing" in capsys.readouterr().err


def test_batch_gives_the_rows_of_single_videos(pca_folder, monkeypatch):
    load = models.load

    def load_float32(*arguments):  # in BF16, roundings that a batch turns over would grow from step to step
        model = load(*arguments)
        model.pipe.transformer.float()
        return model

    monkeypatch.setattr(models, "load", load_float32)
    arguments = ("--pairs", 3, "--recipes", "vc8s", "--policies", "every_step", "--noise-floor", "none")
    single, batched = ({(row["prompt"], row["seed"]): row for row in compare(pca_folder, *arguments, "--batch", n).rows} for n in (1, 2))
    assert single.keys() == batched.keys() == {("cat", 0), ("dog", 1), ("cat", 2)}
    assert [row["batch"] for row in batched.values()] == [2, 2, 1]
    assert len({row["latent_rel_l2"] for row in single.values()}) == 3
    for pair, row in single.items():
        assert batched[pair]["latent_rel_l2"] == pytest.approx(row["latent_rel_l2"], rel=0.02)
        assert batched[pair]["psnr"] == pytest.approx(row["psnr"], abs=0.2)


def test_fallback_is_no_row(refused, pca_folder, monkeypatch):
    attention = vcattn.integrations.diffusers.attention

    def fall_back(*arguments, **options):
        vcattn._stats.count("fallback", "sdpa: test")
        return attention(*arguments, **options)

    monkeypatch.setattr(vcattn.integrations.diffusers, "attention", fall_back)
    refused("sdpa: test", compare, pca_folder, "--recipes", "fp8", "--pairs", 1, "--noise-floor", "none")


def test_emulated_recipes_get_self_attention_alone(pca_folder, monkeypatch):
    seen = []

    def emulated_attention(q, k, v, recipe, permutation=None, sm_scale=None, *, state=None):
        seen.append((recipe, q.shape[1], k.shape[1], state.step))
        return torch.zeros_like(q)

    monkeypatch.setitem(sys.modules, "emulation", types.SimpleNamespace(emulated_attention=emulated_attention))
    monkeypatch.setattr(comparison, "choose", lambda *_: [variants.Variant("vsmooth4", "first_quarter", "emulated")])
    (row,) = compare(pca_folder, "--pairs", 1, "--noise-floor", "none").rows
    assert seen == [("vsmooth4", 12, 12, step) for step in (0, 0, 1, 1)]  # with CFG
    assert row["variant"] == "vsmooth4 first_quarter, emulated" and row["latent_rel_l2"] > 0
    assert "**emulated**" in fidelity_table.means([row])


def test_pca_decode_inverts_the_projection(pca_folder):
    model = models.load(pca_folder, torch.device("cpu"), [], PCA_SIZE, 2, None)
    assert model.prompts == ["cat", "dog"] and model.tokens() == 12 and isinstance(model.pipe.scheduler, FlowMatchEulerDiscreteScheduler)
    with models.safe_open(pca_folder / models.PCA_FILE, "pt") as file:
        basis, mu, scale = (file.get_tensor(name) for name in ("pca_basis", "pca_mu", "pca_scale"))
    latents = 0.3 * torch.randn(1, 6, 2, 4, 6)
    frames = model.decode(latents)
    assert frames.shape == (1, 8, 3, 32, 48)
    for t, y, x in ((0, 0, 0), (1, 3, 2), (1, 1, 5)):
        patch = frames[0, 4 * t : 4 * t + 4, :, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] * 2 - 1
        projected = (patch.permute(0, 2, 3, 1).flatten() - mu) @ basis / scale
        assert torch.allclose(projected, latents[0, :, t, y, x], atol=1e-5)
    with pytest.raises(ValueError, match="multiples of 4,16,16; got 8,32,40"):
        models.load(pca_folder, torch.device("cpu"), [], (8, 32, 40), 2, None)
    with pytest.raises(ValueError, match="cat, dog; got bird"):
        models.load(pca_folder, torch.device("cpu"), ["bird"], PCA_SIZE, 2, None)


def test_metrics_of_equal_and_of_different_videos():
    torch.manual_seed(1)
    frames = torch.rand(18, 3, 176, 180)  # more than one portion
    with metrics.Flip(1) as flip:
        same, other = flip.submit(frames, frames), flip.submit(1 - frames, frames)
        assert metrics.flip_mean(same) == 0 < metrics.flip_mean(other) and len(same) == metrics.FLIP_FRAMES
    got = metrics.quality(frames, frames)
    assert got["psnr"].item() == math.inf and got["ssim"].item() == pytest.approx(1) and got["ms_ssim"].item() == pytest.approx(1)
    off = metrics.quality(frames * 0.5 + 0.25, frames * 0.5 + 0.26)
    assert off["psnr"].item() == pytest.approx(40, abs=1e-3) and off["ssim"].item() < 1
    assert metrics.quality(frames[..., :100], frames[..., :100])["ms_ssim"] is None
    assert metrics.relative_l2(frames * 1.5, frames).item() == pytest.approx(0.5)


def test_lpips_needs_local_weights(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    refused("nothing is downloaded", compare_recipes.main, ["--lpips"])


def table_row(variant, pair, psnr, policy="first_quarter"):
    return {"prompt": "a", "seed": pair, "variant": f"{variant} {policy}", "recipe": variant, "policy": policy, "kind": "recipe", "psnr": psnr,
            "ssim": None, "ms_ssim": None, "flip": None, "lpips": None, "latent_rel_l2": None}  # fmt: skip


def test_statistics_are_paired_and_over_complete_pairs():
    rows = [table_row("vc8s", i, 20 + 5 * i) for i in range(3)] + [table_row("vc8", i, 20 + 5 * i - 1 - 0.1 * i) for i in range(3)]
    difference = records.difference(rows, "vc8 first_quarter", "vc8s first_quarter", "psnr")
    assert difference.mean == pytest.approx(-1.1) and difference.error == pytest.approx(0.1 / math.sqrt(3)) and difference.beyond_two_errors
    assert records.statistic(rows, "vc8s first_quarter", "psnr") == pytest.approx((25, 5, 3))
    assert len(records.complete([*rows, table_row("vc8", 3, 1)])) == 6
    assert records.statistic([table_row("exact", 0, None)], "exact first_quarter", "psnr").mean == math.inf


def test_table_is_written_and_checked(refused, tmp_path):
    record, document = tmp_path / "record.json", tmp_path / "fidelity.md"
    empty = "a\n<!-- fidelity:begin -->\n<!-- fidelity:end -->\nb\n"
    document.write_text(empty)
    options = ["--record", str(record), "--document", str(document)]
    refused("record.json: No such file or directory", fidelity_table.main, options)
    for text in ("no JSON", "[1]", '{"rows": []}', '{"conditions": {}, "rows": [{"prompt": "a"}]}', '{"conditions": {}, "rows": [1]}'):
        record.write_text(text)
        refused("record.json, which holds something else", fidelity_table.main, options)
    record.write_text('{"conditions": {}, "rows": []}')
    refused("needs at least one (prompt, seed) pair with every variant", fidelity_table.main, options)
    names = ("model", "tokens", "steps", "guidance", "device", "driver", "torch", "diffusers", "vcattn", "reference")
    rows = [table_row(recipe, i, 20 + i + shift + i * shift / 9) for i in range(3) for recipe, shift in (("vc8s", 0), ("vc8", -1))]
    rows += [table_row("vc8s", i, 22 - i % 2, "never") for i in range(3)]
    record.write_text(json.dumps({"conditions": {**dict.fromkeys(names, "x"), "tokens": 6, "commit": None, "size": [1, 2, 3]}, "rows": rows}))
    refused("must show record.json", fidelity_table.main, [*options, "--check"])
    assert document.read_text() == empty
    fidelity_table.main(options)
    fidelity_table.main([*options, "--check"])
    text = document.read_text()
    assert "| `vc8`, grouped in the first quarter | **-1.11 ± 0.06** worse |" in text and text.startswith("a\n") and text.endswith("b\n")
    assert "### Between grouping policies" in text
    document.write_text("a\n")
    refused("must contain <!-- fidelity:begin -->", fidelity_table.main, options)
    refused("No such file or directory", fidelity_table.main, [*options[:2], "--document", str(tmp_path / "none.md")])
