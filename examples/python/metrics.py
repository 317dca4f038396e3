"""How far a video is from its reference. Frames are [T, 3, H, W], float32 in 0..1."""

from __future__ import annotations

import os
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import flip_evaluator
import torch
from torchmetrics.functional import image


FLIP_FRAMES = 8
FRAMES_AT_ONCE = 16  # bounds memory
MS_SSIM_MIN_SIZE = 176  # pixels that five scales of a window of 11 need
LPIPS_BACKBONE = "alexnet-owt-7be5be79.pth"


def lpips_backbone() -> Path:
    """Path of the weights that LPIPS needs and torch would download. Errors: ValueError where they are missing."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / LPIPS_BACKBONE
    if not path.exists():
        raise ValueError(f"--lpips needs torchvision's AlexNet weights in {path}; got no such file; nothing is downloaded: put it there, "
                         "or leave out --lpips")  # fmt: skip
    return path


def quality(frames: torch.Tensor, reference: torch.Tensor, lpips: bool = False) -> dict[str, torch.Tensor | None]:
    """Metrics on the device of the frames, without waiting for it.

    Returns
    -------
    dict
        psnr: dB, from the squared error of all frames together; ssim, ms_ssim, lpips: means over frames; None: not computed,
        ms_ssim where a side of the frames is below 176 pixels.
    """

    def mean(function, **options) -> torch.Tensor:
        pairs = zip(frames.split(FRAMES_AT_ONCE), reference.split(FRAMES_AT_ONCE), strict=True)
        return torch.stack([function(a, b, reduction="sum", **options) for a, b in pairs]).sum() / len(frames)

    large_enough = min(frames.shape[-2:]) >= MS_SSIM_MIN_SIZE
    return {
        "psnr": image.peak_signal_noise_ratio(frames, reference, data_range=1.0),
        "ssim": mean(image.structural_similarity_index_measure, data_range=1.0),
        "ms_ssim": mean(image.multiscale_structural_similarity_index_measure, data_range=1.0) if large_enough else None,
        "lpips": mean(image.learned_perceptual_image_patch_similarity, net_type="alex", normalize=True) if lpips else None,
    }  # fmt: skip


def relative_l2(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (value.float() - reference.float()).norm() / reference.float().norm()


class Flip:
    """Mean FLIP of some frames, in other processes: the package holds the interpreter lock while it computes."""

    def __init__(self, workers: int | None = None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the workers; torch has read it already
        self._pool = ProcessPoolExecutor(workers or max(1, (os.cpu_count() or 2) - 2), mp_context=get_context("spawn"))

    def __enter__(self) -> Flip:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, frames: torch.Tensor, reference: torch.Tensor) -> list[Future]:
        """Futures whose results `flip_mean` takes, one for each of at most 8 evenly spaced frames."""
        chosen = torch.linspace(0, len(frames) - 1, min(FLIP_FRAMES, len(frames))).round().long().tolist()
        images, references = (x[chosen].permute(0, 2, 3, 1).contiguous().cpu().numpy() for x in (frames, reference))
        return [self._pool.submit(flip_evaluator.evaluate, b, a, "LDR", True, False) for a, b in zip(images, references, strict=True)]


def flip_mean(futures: list[Future]) -> float:
    return sum(future.result()[1] for future in futures) / len(futures)
