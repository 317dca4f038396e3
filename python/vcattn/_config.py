"""What is installed here, and whether it works."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np

from vcattn import _abi
from vcattn._attention import attention, supports


def config() -> dict[str, str]:
    """Versions, library, what each device serves, and the recipe that "auto" stands for. Imports torch only where it is imported already."""
    available, reason = _abi.answer("cuda_available")
    if available:
        cuda = f"preparation and attention of {', '.join(_cuda_recipes())}" if _torch_with_cuda() else "available; import torch to use it"
    else:
        cuda = f"not available: {reason}"
    torch = sys.modules.get("torch")
    return {
        "vcattn": f"{_abi.version()} (C ABI {_abi.library().vcattn_abi_version()})",
        "library": str(_abi.library_path()),
        "python": f"{platform.python_version()} on {platform.machine()}",
        "numpy": np.__version__,
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})" if torch else "not imported",
        "cpu": "preparation and attention of every recipe",
        "cuda": cuda,
        "recipe auto": "vc8s",
        "recipes": ", ".join(_abi.RECIPES),
    }


def show_config() -> None:
    """Prints `config`.

    Examples
    --------
    >>> import vcattn
    >>> vcattn.show_config()  # doctest: +ELLIPSIS
    vcattn       0.1.0 (C ABI 1)
    library      ...
    """
    for name, value in config().items():
        print(f"{name:<12} {value}")


def _torch_with_cuda() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch and torch.cuda.is_available() and _abi.answer("cuda_available")[0] else None


def _cuda_recipes() -> list[str]:
    """Recipes that the current device serves with the usual head_dim."""
    q = _torch_with_cuda().empty(1, 1, 1, 128, device="cuda")
    return [recipe for recipe in _abi.RECIPES if supports(q, q, q, recipe=recipe)[0]]


def self_check() -> list[tuple[str, str, float, float]]:
    """Runs 8-bit recipes on small random tensors, on each device: (device, recipe, relative error against exact attention, bound)."""
    rng = np.random.default_rng(0)
    tensors: Any = [rng.standard_normal((1, 2, 300, 64), dtype=np.float32) for _ in range(3)]
    exact: Any = attention(*tensors, recipe="exact")
    results = []

    def check(device: str, recipe: str, out: Any) -> None:
        results.append((device, recipe, float(np.linalg.norm(out - exact) / np.linalg.norm(exact)), 0.01 if recipe == "bf16" else 0.1))

    for recipe in ("bf16", "vc8", "vc8s", "vsmooth8", "vsmooth8s"):
        check("cpu", recipe, attention(*tensors, recipe=recipe))
    if torch := _torch_with_cuda():
        on_device = [torch.from_numpy(x).cuda() for x in tensors]
        for recipe in _cuda_recipes():
            check("cuda", recipe, attention(*on_device, recipe=recipe).cpu().numpy())
    return results
