"""Video models to compare attention on: a pipeline of diffusers, what it is called with, and how its latents become frames."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, DiffusionPipeline, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from diffusers.models.attention_dispatch import attention_backend
from safetensors import safe_open

PCA_FILE = "prompts_pca.safetensors"
PCA_PATCH = (4, 8, 8)  # frames, rows and columns of pixels in one latent position


@dataclass
class Model:
    """A pipeline and the way to use it.

    Attributes
    ----------
    prompts
        Texts, or names of learned prompts.
    size
        Frames, height and width of a video in pixels.
    prompt_arguments
        Prompts -> arguments of the pipeline.
    decode
        Latents [B, C, T, H, W] -> frames [B, T, 3, H, W], float32 in 0..1.
    arguments
        Further arguments of the pipeline.
    """

    name: str
    pipe: Any
    prompts: list[str]
    size: tuple[int, int, int]
    prompt_arguments: Callable[[list[str]], dict[str, Any]]
    decode: Callable[[torch.Tensor], torch.Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)

    def transformers(self) -> list[torch.nn.Module]:
        return [model for model in (self.pipe.transformer, getattr(self.pipe, "transformer_2", None)) if model is not None]

    def patch(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of one token."""
        config = self.pipe.transformer.config
        return config.patch_size if not isinstance(config.patch_size, int) else (config.patch_size_t, config.patch_size, config.patch_size)

    def check_size(self) -> None:
        """Errors: ValueError for a size that does not divide into tokens, which pipelines refuse late, or round."""
        temporal, spatial = self.pipe.vae_scale_factor_temporal, self.pipe.vae_scale_factor_spatial
        rows, columns = (spatial * step for step in self.patch()[1:])
        if (self.arguments["num_frames"] - 1) % temporal or self.size[1] % rows or self.size[2] % columns:
            raise ValueError(f"--size of {self.name} must be 1 more than a multiple of {temporal} (frames), and multiples of {rows},{columns} "
                             f"(height, width); got {','.join(map(str, self.size))}")  # fmt: skip

    def tokens(self) -> int:
        """Length of the sequence that self-attention sees, without tokens of text."""
        frames = (self.arguments["num_frames"] - 1) // self.pipe.vae_scale_factor_temporal + 1
        latents = frames, *(x // self.pipe.vae_scale_factor_spatial for x in self.size[1:])
        return math.prod(length // step for length, step in zip(latents, self.patch(), strict=True))

    def generate(self, prompts: list[str], seeds: list[int]) -> torch.Tensor:
        """Latents of one video for each prompt. Noise comes from the CPU, so that a seed means the same everywhere and in every batch."""
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        return self.pipe(**self.prompt_arguments(prompts), **self.arguments, generator=generators, output_type="latent").frames


def load(folder: Path | None, device: torch.device, prompts: list[str], size: tuple[int, int, int] | None, steps: int | None,
         guidance: float | None) -> Model:  # fmt: skip
    """A small random model (no folder), a checkpoint in diffusers format, or a transformer with learned prompts and a PCA latent."""
    if folder is None:
        model = random_model(size or (5, 176, 176), steps or 4, 5.0 if guidance is None else guidance)
    elif (folder / PCA_FILE).exists():
        model = pca_model(folder, device, size or (64, 256, 512), steps or 50, 5.0 if guidance is None else guidance)
    elif (folder / "model_index.json").exists():
        model = checkpoint(folder, prompts, size or (81, 480, 832), steps or 50, guidance)
    else:
        raise ValueError(f"--model needs a folder with model_index.json (a pipeline of diffusers) or {PCA_FILE}; got {folder}")
    unknown = set(prompts) - set(model.prompts)
    if unknown:
        raise ValueError(f"--prompt must name prompts of {model.name}: {', '.join(model.prompts)}; got {', '.join(sorted(unknown))}")
    model.check_size()
    model.prompts = prompts or model.prompts
    model.pipe.to(device)
    model.pipe.set_progress_bar_config(disable=True)
    return model


def random_model(size: tuple[int, int, int], steps: int, guidance: float) -> Model:
    """Wan in small, with random weights: shows that everything runs, says nothing about quality."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = WanTransformer3DModel(num_attention_heads=1, attention_head_dim=128, in_channels=16, out_channels=16, text_dim=32,
                                            freq_dim=32, ffn_dim=256, num_layers=2)  # fmt: skip
        vae = AutoencoderKLWan(base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True])
        embeds = {name: torch.randn(1, 16, 32) for name in ("", "a")}
        with torch.no_grad():  # larger than the initial weights, so that attention is far from uniform and matters
            for name, parameter in transformer.named_parameters():
                if ".attn1.to_" in name:
                    parameter.mul_(4)
    with tempfile.TemporaryDirectory() as folder:  # loading knows which modules stay in float32
        transformer.save_pretrained(folder)
        transformer = WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.bfloat16)
    pipe = WanPipeline(tokenizer=None, text_encoder=None, vae=vae.eval(), scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
                       transformer=transformer)  # fmt: skip
    return Model("random Wan", pipe, ["a"], size, _learned(embeds, ""), _vae_decoder(pipe),
                 _arguments(*size, steps) | {"guidance_scale": guidance})  # fmt: skip


def checkpoint(folder: Path, prompts: list[str], size: tuple[int, int, int], steps: int, guidance: float | None) -> Model:
    """A text-to-video pipeline with its VAE; guidance None: as the pipeline has it."""
    if not prompts:
        raise ValueError(f"{folder} takes texts; pass --prompt TEXT, as often as you like")
    pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True, torch_dtype=torch.bfloat16)
    arguments = _arguments(*size, steps) | ({} if guidance is None else {"guidance_scale": guidance})
    return Model(folder.resolve().name, pipe, prompts, size, lambda texts: {"prompt": texts}, _vae_decoder(pipe), arguments)


def pca_model(folder: Path, device: torch.device, size: tuple[int, int, int], steps: int, guidance: float) -> Model:
    """A transformer with learned prompt embeddings, and a PCA of pixel patches instead of a VAE."""
    pixels = [latent * 2 for latent in PCA_PATCH[1:]]  # a token is 2 x 2 latent positions
    if size[0] % PCA_PATCH[0] or size[1] % pixels[0] or size[2] % pixels[1]:
        raise ValueError(f"--size of {folder} must be multiples of {PCA_PATCH[0]},{pixels[0]},{pixels[1]}; got {','.join(map(str, size))}")
    with safe_open(folder / PCA_FILE, "pt") as file:
        names = json.loads(file.metadata()["prompt_names"])
        tensors = {name: file.get_tensor(name) for name in ("prompts", "pca_basis", "pca_mu", "pca_scale")}
    embeds = {name: embed[None].to(device) for name, embed in zip(names, tensors.pop("prompts"), strict=True)}
    transformer = WanTransformer3DModel.from_pretrained(folder, local_files_only=True, torch_dtype=torch.bfloat16)
    pipe = WanPipeline(tokenizer=None, text_encoder=None, vae=None, scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
                       transformer=transformer)  # fmt: skip
    decode = pca_decoder(*(tensor.to(device) for tensor in tensors.values()))
    # The pipeline counts frames as a causal VAE does, whose first latent frame is one frame of pixels.
    arguments = _arguments(size[0] - PCA_PATCH[0] + 1, *size[1:], steps) | {"guidance_scale": guidance}
    return Model(folder.resolve().name, pipe, [name for name in names if name != "null"], size, _learned(embeds, "null"), decode, arguments)


def pca_decoder(basis: torch.Tensor, mu: torch.Tensor, scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """basis [P, C], mu [P], scale [C], where P runs over frames, rows, columns and RGB of a patch of pixels in -1..1."""
    weight = (basis * scale).float()

    def decode(latents: torch.Tensor) -> torch.Tensor:
        batch, _, frames, height, width = latents.shape
        pixels = torch.einsum("bcthw,pc->bthwp", latents.float(), weight) + mu
        patches = pixels.unflatten(-1, (*PCA_PATCH, 3)).permute(0, 1, 4, 7, 2, 5, 3, 6)  # [B, T, 4, RGB, H, 8, W, 8]
        t, y, x = PCA_PATCH
        return patches.reshape(batch, frames * t, 3, height * y, width * x).add(1).div(2).clamp(0, 1)

    return decode


def _arguments(frames: int, height: int, width: int, steps: int) -> dict[str, Any]:
    return {"num_frames": frames, "height": height, "width": width, "num_inference_steps": steps}


def _learned(embeds: dict[str, torch.Tensor], negative: str) -> Callable[[list[str]], dict[str, Any]]:
    """embeds: [1, L, C] by name."""

    def arguments(names: list[str]) -> dict[str, Any]:
        return {"prompt_embeds": torch.cat([embeds[name] for name in names]),
                "negative_prompt_embeds": embeds[negative].expand(len(names), -1, -1)}  # fmt: skip

    return arguments


def _vae_decoder(pipe: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def decode(latents: torch.Tensor) -> torch.Tensor:
        vae = pipe.vae
        latents = latents.to(vae.dtype)
        if hasattr(vae.config, "latents_mean"):  # Wan
            mean, std = (torch.tensor(x, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1, 1)
                         for x in (vae.config.latents_mean, vae.config.latents_std))  # fmt: skip
            latents = latents * std + mean
        else:  # HunyuanVideo
            latents = latents / vae.config.scaling_factor
        # A backend that is set for the transformer is the default of other models too.
        with attention_backend("native"):
            video = vae.decode(latents, return_dict=False)[0]
        return pipe.video_processor.postprocess_video(video, output_type="pt").float()

    return decode
