"""Generates the videos of a comparison, measures them, and keeps the rows."""

from __future__ import annotations

import argparse
import dataclasses
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import diffusers
import metrics
import models
import records
import torch
import torchmetrics
from diffusers.utils import export_to_video
from PIL import Image, ImageDraw
from variants import BACKEND, BF16_KERNELS, Variant, attention_of, choose, noise_floor

import vcattn

SHEET_FRAMES, SHEET_WIDTH, LABEL_WIDTH = 5, 256, 230
Pair = tuple[str, int]  # prompt, seed


def conditions(model: models.Model, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """What all rows of a record have in common."""
    name = driver = None
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
    return {
        "model": model.name, "tokens": model.tokens(), "size": list(model.size), "steps": model.arguments["num_inference_steps"],
        "guidance": model.arguments.get("guidance_scale"), "device": name or "CPU", "driver": driver, "torch": torch.__version__,
        "diffusers": diffusers.__version__, "torchmetrics": torchmetrics.__version__, "vcattn": vcattn.__version__,
        "commit": options.commit, "reference": BF16_KERNELS[device.type][0], "flip_frames": metrics.FLIP_FRAMES,
    }  # fmt: skip


@dataclasses.dataclass
class Video:
    latents: torch.Tensor  # [C, T, H, W]
    frames: torch.Tensor  # [F, 3, H, W], float32 in 0..1
    seconds: float  # of the denoising loop, share of one video in its batch


@dataclasses.dataclass
class Comparison:
    """What `prepare` made, and rows that wait for their FLIP."""

    options: argparse.Namespace
    deadline: float  # of time.monotonic()
    device: torch.device
    model: models.Model
    variants: list[Variant]
    record: records.Record
    waiting: list[tuple[dict[str, Any], list[Any]]] = dataclasses.field(default_factory=list)
    sheets: dict[Pair, list[tuple[str, Image.Image]]] = dataclasses.field(default_factory=dict)

    def generate(self, pairs: list[Pair], variant: Variant | None) -> tuple[dict[Pair, Video], dict[str, Any]]:
        """Videos of the pairs in one call of the pipeline, and what vcattn counted; variant None: the reference."""
        start = time.perf_counter()
        with attention_of(variant, self.model.pipe, self.model.arguments["num_inference_steps"], self.device):
            latents = self.model.generate([prompt for prompt, _ in pairs], [seed for _, seed in pairs])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = (time.perf_counter() - start) / len(pairs)
        videos = {pair: Video(one, self.model.decode(one[None])[0], seconds) for pair, one in zip(pairs, latents, strict=True)}
        for pair, video in videos.items():
            self.show(pair, variant, video)
        return videos, vcattn.stats()

    def compare(self, variant: Variant, videos: dict[Pair, Video], stats: dict[str, Any], references: dict[Pair, Video],
                flip: metrics.Flip) -> None:  # fmt: skip
        """Starts the metrics of the videos that the record lacks; `settle` ends them."""
        for (prompt, seed), video in videos.items():
            if self.record.has(prompt, seed, str(variant)):
                continue
            reference = references[prompt, seed]
            row = {
                "prompt": prompt, "seed": seed, "variant": str(variant), **dataclasses.asdict(variant),
                **metrics.quality(video.frames, reference.frames, self.options.lpips),
                "latent_rel_l2": metrics.relative_l2(video.latents, reference.latents),
                "seconds": video.seconds, "reference_seconds": reference.seconds, "batch": len(videos), "stats": stats,
            }  # fmt: skip
            self.waiting.append((row, flip.submit(video.frames, reference.frames)))

    def settle(self, wait: bool = False) -> None:
        """Puts rows whose metrics are there into the record, and writes it."""
        ready, waiting = [], []
        for entry in self.waiting:
            (ready if wait or all(future.done() for future in entry[1]) else waiting).append(entry)
        self.waiting = waiting
        for row, futures in ready:
            row |= {key: value.item() for key, value in row.items() if isinstance(value, torch.Tensor)}
            row["flip"] = metrics.flip_mean(futures)
            if row["psnr"] == math.inf:
                row["psnr"] = None  # JSON has no infinity
            self.record.add(row)
        if ready:
            self.record.write()

    @torch.inference_mode()
    def run(self) -> records.Record:
        """Generates what the record lacks. Errors: UnsupportedError for a recipe that passed on a call."""
        model, record, batch = self.model, self.record, self.options.batch
        pairs = [(model.prompts[seed % len(model.prompts)], seed) for seed in range(self.options.pairs or len(model.prompts))]
        with attention_of(None, model.pipe, 1, self.device):  # so that the name is known
            for transformer in model.transformers():
                transformer.set_attention_backend(BACKEND)
        with metrics.Flip() as flip:
            # All variants of some pairs before the next pairs, so that a run that stops early is balanced. Every variant with the batch of
            # its reference, since the kernels of other layers may depend on the batch.
            for i in range(0, len(pairs), batch):
                group, references = pairs[i : i + batch], None
                for variant in self.variants:
                    if all(record.has(*pair, str(variant)) for pair in group):
                        continue
                    if time.monotonic() > self.deadline:
                        break
                    if references is None:
                        references, _ = self.generate(group, None)
                    self.compare(variant, *self.generate(group, variant), references, flip)
                    self.settle()
                self.write_sheets()
            self.settle(wait=True)
        wanted = {(*pair, str(variant)) for pair in pairs for variant in self.variants}
        missing = sum(not record.has(*key) for key in wanted)
        if missing:
            print(f"stopped at the time limit; {missing} of {len(wanted)} videos are missing: run again with this --record", file=sys.stderr)
        return record

    def show(self, pair: Pair, variant: Variant | None, video: Video) -> None:
        if self.options.videos is None:
            return
        frames = video.frames.permute(0, 2, 3, 1).cpu().numpy()
        name = str(variant or "reference").replace(", ", "_").replace(" ", "_")
        export_to_video(list(frames), str(self.options.videos / f"{_file_name(pair)}_{name}.mp4"), fps=16)
        chosen = torch.linspace(0, len(frames) - 1, min(SHEET_FRAMES, len(frames))).round().long()
        height = SHEET_WIDTH * frames.shape[1] // frames.shape[2]
        strip = Image.new("RGB", (SHEET_WIDTH * len(chosen), height))
        for i, frame in enumerate((frames[chosen] * 255).round().astype("uint8")):
            strip.paste(Image.fromarray(frame).resize((SHEET_WIDTH, height)), (i * SHEET_WIDTH, 0))
        self.sheets.setdefault(pair, []).append((str(variant or "BF16 reference"), strip))

    def write_sheets(self) -> None:
        """Contact sheets of the pairs since the last call: a row for each variant, a column for each of some frames."""
        for pair, strips in self.sheets.items():
            width, height = strips[0][1].size
            sheet = Image.new("RGB", (LABEL_WIDTH + width, height * len(strips)), "white")
            for i, (label, strip) in enumerate(strips):
                sheet.paste(strip, (LABEL_WIDTH, i * height))
                ImageDraw.Draw(sheet).text((8, i * height + height // 2), label, fill="black", font_size=15)
            sheet.save(self.options.videos / f"{_file_name(pair)}.png")
        self.sheets.clear()


def _file_name(pair: Pair) -> str:
    """Of a (prompt, seed), short and without what file systems refuse."""
    return f"{''.join(c if c.isalnum() or c in '.-' else '_' for c in pair[0])[:40]}_{pair[1]}"


def prepare(options: argparse.Namespace) -> Comparison:
    """What the command line asks for, up to the first video. Errors: ValueError, OSError for what cannot be."""
    deadline = time.monotonic() + options.time_limit
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that torch can use; got none; use --device cpu")
    # First what is cheap: loading a model takes minutes.
    if options.record is not None:
        _check_writable("--record", options.record.parent)
        if options.record.exists():
            records.read(options.record)
    if options.videos is not None:
        _check_writable("--videos", options.videos)
    if options.lpips:
        metrics.lpips_backbone()
    floor = noise_floor(device, options.noise_floor)
    model = models.load(options.model, device, options.prompt, options.size, options.steps, options.guidance)
    head_dim = model.pipe.transformer.config.attention_head_dim
    variants = [*floor, *choose(device, head_dim, options.recipes, options.policies, options.policy_recipes)]
    return Comparison(options, deadline, device, model, variants, records.Record(options.record, conditions(model, device, options)))


def _check_writable(option: str, folder: Path) -> None:
    """Creates the folder where it is missing. Errors: ValueError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{option} needs a folder that can be written to; got {folder}: {error.strerror}; name another one") from error
