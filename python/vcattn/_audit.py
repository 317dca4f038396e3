"""Errors of a recipe on the caller's own tensors."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from vcattn import _tensors
from vcattn._core import Request
from vcattn.grouping import check_whole


@dataclass(frozen=True)
class Audit:
    """Error of a recipe against exact attention, over sampled query rows.

    Attributes
    ----------
    recipe : str
    queries : int
        Sampled rows of each (batch, head).
    rel_l2 : float
        Norm of the error over the norm of exact attention.
    snr_db : float
        -20 log10(rel_l2).
    cosine : float
        Between the two outputs as vectors.
    max_abs : float
        Largest error of an element.
    rel_l2_of_heads : numpy.ndarray
        [B, H], rel_l2 of each head alone.
    """

    recipe: str
    queries: int
    rel_l2: float
    snr_db: float
    cosine: float
    max_abs: float
    rel_l2_of_heads: np.ndarray

    def __str__(self) -> str:
        return (f"{self.recipe}: rel_l2 {self.rel_l2:.3%}, SNR {self.snr_db:.2f} dB, cosine {self.cosine:.6f}, max abs {self.max_abs:.3g} "
                f"({self.queries} queries a head, worst head {self.rel_l2_of_heads.max():.3%})")  # fmt: skip


def _to_numpy(x: Any) -> np.ndarray:
    return x.detach().cpu().float().numpy() if _tensors.is_torch(x) else np.asarray(x, np.float32)


def audit(q: Any, k: Any, v: Any, recipe: str = "auto", queries: int = 256, *, tensor_layout: str = "HND", sm_scale: float | None = None,
          seqused_k: Any = None, seed: int = 0) -> Audit:  # fmt: skip
    """Error of `recipe` on these tensors against exact attention, on sampled query rows.

    Parameters
    ----------
    q, k, v, tensor_layout, sm_scale, seqused_k
        As for `attention`; the recipe runs on all of them, since neighbouring rows share descales.
    recipe
        As for `attention`.
    queries
        Rows that are compared, the same ones for every (batch, head); all where there are fewer. Drawn without repetition.
    seed
        Of the drawing.

    Returns
    -------
    Audit

    Notes
    -----
    Exact attention of the sampled rows is computed on the CPU in FP32, from copies of q's sampled rows and of k and v; with CUDA tensors
    the call waits. Figures are NaN where an output holds NaN. `stats()` does not count these calls.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 500, 64), dtype=np.float32)
    >>> vcattn.audit(q, k, v, "vc8s").rel_l2 < 0.05 < vcattn.audit(q, k, v, "nvfp4").rel_l2
    True
    """
    if check_whole(queries, "queries") < 1:
        raise ValueError(f"queries must be at least 1; got {queries}")

    def attend(q: Any, k: Any, v: Any, recipe: str) -> Any:
        """As `attention`, not counted in `stats()`."""
        out = _tensors.empty_like(q)
        Request(q, k, v, tensor_layout, sm_scale=sm_scale, recipe=recipe, seqused_k=seqused_k).attend(out, None)
        return out

    out = attend(q, k, v, recipe)
    axis = 2 if tensor_layout == "HND" else 1
    seqlen_q = q.shape[axis]
    rows = np.sort(np.random.default_rng(seed).choice(seqlen_q, size=min(queries, seqlen_q), replace=False))

    def sampled(x: Any) -> np.ndarray:
        if _tensors.is_torch(x):
            return _to_numpy(x.index_select(axis, sys.modules["torch"].as_tensor(rows, device=x.device)))
        return _to_numpy(np.take(x, rows, axis))

    exact = attend(sampled(q), _to_numpy(k), _to_numpy(v), "exact")
    if tensor_layout == "NHD":
        exact, got = exact.swapaxes(1, 2), sampled(out).swapaxes(1, 2)
    else:
        got = sampled(out)
    exact, error = exact.astype(np.float64), got.astype(np.float64) - exact

    def ratio(numerator: Any, denominator: Any) -> Any:
        return np.divide(numerator, denominator, out=np.where(numerator == 0, 0.0, np.inf), where=denominator != 0)

    def norm(x: np.ndarray, axes: Any = None) -> np.ndarray:
        return np.asarray(np.sqrt(np.square(x).sum(axis=axes)))

    rel_l2 = float(ratio(norm(error), norm(exact)))
    return Audit(
        recipe=recipe, queries=len(rows), rel_l2=rel_l2, snr_db=float("inf") if rel_l2 == 0 else float(-20 * np.log10(rel_l2)),
        cosine=float(ratio(np.asarray((exact * got).sum()), norm(exact) * norm(got))), max_abs=float(np.abs(error).max(initial=0.0)),
        rel_l2_of_heads=ratio(norm(error, (2, 3)), norm(exact, (2, 3))),
    )  # fmt: skip
