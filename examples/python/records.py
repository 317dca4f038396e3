"""A JSON record of comparisons that accumulates over runs, and its statistics. Standard library only."""

from __future__ import annotations

import json
import math
import os
import statistics
from pathlib import Path
from typing import Any, NamedTuple

METRICS = ("psnr", "ssim", "ms_ssim", "flip", "lpips", "latent_rel_l2")
ROW = {"prompt", "seed", "variant", "recipe", "policy", "kind", *METRICS}
HIGHER_IS_BETTER = ("psnr", "ssim", "ms_ssim")
MIN_PAIRS = 3  # for a statement about a difference


def read(path: Path) -> dict[str, Any]:
    """{"conditions": {...}, "rows": [...]}. Errors: ValueError for a file that is no record, or cannot be read."""
    try:
        record = json.loads(path.read_text())
        whole = isinstance(record["conditions"], dict) and all(row.keys() >= ROW for row in record["rows"])
    except OSError as error:
        raise ValueError(f"--record needs a file that can be read; got {path}: {error.strerror}; name another file") from error
    except (ValueError, TypeError, KeyError, AttributeError):  # no JSON, or another one
        whole = False
    if not whole:
        raise ValueError(f"--record needs a record of compare_recipes.py; got {path}, which holds something else; name another file")
    return record


class Record:
    """Rows, one for each (prompt, seed, variant), and the conditions under which all of them were computed.

    Parameters
    ----------
    path
        Rows of this file are kept, if it exists; None: nothing is written.
    conditions
        What rows must have in common. ValueError where those of the file differ, or it is no record.
    """

    def __init__(self, path: Path | None, conditions: dict[str, Any]):
        self.path, self.conditions, self.rows = path, conditions, []
        if path is not None and path.exists():
            kept = read(path)
            names = sorted(kept["conditions"].keys() | conditions.keys())
            differing = [f"{name} {kept['conditions'].get(name)!r} there, {conditions.get(name)!r} here" for name in names
                         if kept["conditions"].get(name) != conditions.get(name)]  # fmt: skip
            if differing:
                raise ValueError(f"--record needs a file of the same conditions; {path} differs: {'; '.join(differing)}; name another file")
            self.rows = kept["rows"]
        self._keys = {_key(row) for row in self.rows}

    def has(self, prompt: str, seed: int, variant: str) -> bool:
        return (prompt, seed, variant) in self._keys

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._keys.add(_key(row))

    def write(self) -> None:
        """Replaces the file at once, so that it is whole whenever the program ends."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps({"conditions": self.conditions, "rows": self.rows}, indent=1, allow_nan=False) + "\n")
        os.replace(part, self.path)


class Statistic(NamedTuple):
    mean: float
    deviation: float  # standard deviation; NaN for fewer than two values
    count: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.count)

    @property
    def beyond_two_errors(self) -> bool:
        """Whether the difference can be taken seriously; never with too few pairs to know the error."""
        return self.count >= MIN_PAIRS and abs(self.mean) > 2 * self.error


def variants(rows: list[dict[str, Any]]) -> list[str]:
    """In the order in which they ran."""
    return list(dict.fromkeys(row["variant"] for row in rows))


def complete(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the (prompt, seed) pairs that have every variant, so that all variants are judged by the same pairs."""
    wanted, found = set(variants(rows)), {}
    for row in rows:
        found.setdefault((row["prompt"], row["seed"]), set()).add(row["variant"])
    return [row for row in rows if found[row["prompt"], row["seed"]] == wanted]


def statistic(rows: list[dict[str, Any]], variant: str, metric: str) -> Statistic | None:
    """Over pairs; None where the metric was not computed."""
    return _statistic(list(_values(rows, variant, metric).values()))


def difference(rows: list[dict[str, Any]], variant: str, baseline: str, metric: str) -> Statistic | None:
    """Of variant - baseline, pair by pair."""
    values, base = _values(rows, variant, metric), _values(rows, baseline, metric)
    return _statistic([values[pair] - base[pair] for pair in values if pair in base])


def _values(rows: list[dict[str, Any]], variant: str, metric: str) -> dict[tuple[str, int], float]:
    values = {(row["prompt"], row["seed"]): row[metric] for row in rows if row["variant"] == variant}
    if metric == "psnr":  # null: not one pixel differs
        return {pair: math.inf if value is None else value for pair, value in values.items()}
    return {pair: value for pair, value in values.items() if value is not None}


def _statistic(values: list[float]) -> Statistic | None:
    if not values:
        return None
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return Statistic(sum(values) / len(values), statistics.stdev(values) if finite else math.nan, len(values))


def _key(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["prompt"], row["seed"], row["variant"]
