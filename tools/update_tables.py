#!/usr/bin/env python3
"""Writes measured figures into the documentation, between markers. Every number comes from a run of `vcattn compare` made here. Standard library only.

    tools/update_tables.py --cli VCATTN alignment FILE...   # docs/alignment.md: rel. L2 of every recipe on every capture, and pooled; one choice at a time
    tools/update_tables.py --cli VCATTN readme FILE         # README.md: what the command prints
    tools/update_tables.py --cli VCATTN order FILE...       # writes nothing; fails unless the recipes rank as documented (several files: also pooled)
"""

import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What V-Smooth, INT8 scores and the two-line ExpCast are for: pooled over files, the left recipe has at most FACTOR times the error of the right one.
# In a single file the neighbours may come out the other way round, by 3 % at most.
RANKING = [
    ("vc8s", "vc8", 1.0), ("vc8", "vc8-paper", 1.0), ("vc8-paper", "fp8", 1.0), ("vc8s", "sage2", 1.0),
    ("vsmooth4", "sage3", 1.0), ("sage3", "nvfp4", 1.0), ("vc8", "vsmooth8", 1.05),
]
SLACK_OF_ONE_FILE = 1.03

# One choice at a time, against the defaults of its recipe: what the defaults rest on.
ABLATIONS = {
    "vc8": ["rounding=nearest", "rounding=shaped", "scores=f32", "hadamard=off", "expcast=offset126", "expcast=affine", "expcast=exp", "top=112", "order=sequence", "order=label",
            "order=chain", "block=64", "block=32", "emc=off"],
    "vc8s": ["rounding=shaped_k", "rounding=shaped", "hadamard=off", "expcast=offset126", "expcast=affine", "expcast=exp", "top=112", "order=sequence", "block=64", "emc=off"],
    "vsmooth4": ["rounding=nearest", "rounding=shaped_k", "hadamard=off", "rounding=nearest,hadamard=off", "q_mean=off", "order=sequence", "emc=off"],
}


def run(command: list[str]) -> str:
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        sys.exit(f"update_tables: {' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout


def compare(cli: Path, capture: str, *options: str) -> tuple[str, dict]:
    """Printed text and JSON record of `vcattn compare`, with all recipes unless the options say otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        text = run([str(cli), "compare", capture, "--json", str(record), *options])
        return text, json.loads(record.read_text())


def pooled(values: list[float]) -> float:
    """Root mean square: as if all files were one, each with the same norm of the exact output."""
    return math.sqrt(sum(value * value for value in values) / len(values))


def replace_between_markers(path: Path, name: str, content: str) -> None:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"update_tables: {path} must contain {begin} and, after it, {end}")
    path.write_text(f"{before}{begin}\n{content.strip()}\n{end}{after}")


def rel_l2_by_recipe(record: dict) -> dict[str, float]:
    refused = [f"{result['recipe']}: {result['error']}" for result in record["results"] if result.get("error")]
    if refused:
        sys.exit(f"update_tables: every recipe must serve {record['input']}; " + "; ".join(refused))
    return {result["recipe"]: result["rel_l2"] for result in record["results"]}


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def provenance(capture: str) -> list[str]:
    """Cells "step", "layer", "grid" from the metadata of a safetensors file, "-" where it has none."""
    with open(capture, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(length)).get("__metadata__", {})
    return [metadata.get("step", "-"), metadata.get("layer", "-"), metadata.get("grid", "-").replace(",", " x ")]


def alignment(cli: Path, captures: list[str]) -> None:
    records = [compare(cli, capture)[1] for capture in captures]
    figures = [rel_l2_by_recipe(record) for record in records]
    recipes = list(figures[0])
    head = ["capture", "step", "layer", "grid", "heads", *(f"`{recipe}`" for recipe in recipes)]
    rows = [row(head), "|---" * len(head) + "|"]
    for capture, record, values in zip(captures, records, figures):
        heads = record["shape"]["batch"] * record["shape"]["num_heads"]
        rows.append(row([Path(capture).stem, *provenance(capture), str(heads), *(f"{100 * values[recipe]:#.3g}" for recipe in recipes)]))
    pool = [f"{100 * pooled([values[recipe] for values in figures]):#.3g}" for recipe in recipes]
    rows.append(row(["**pooled** (rms)", "", "", "", "", *(f"**{value}**" for value in pool)]))
    version = run([str(cli), "--version"]).strip()
    devices = ", ".join(sorted({result["device"] for record in records for result in record["results"]}))
    conditions = (f"rel. L2 in percent over all heads and rows of a file, against `exact` in FP64; vcattn {version}, device {devices}, each recipe with its default options.\n"
                  "Written by `tools/update_tables.py` from runs of `vcattn compare`.")
    replace_between_markers(ROOT / "docs/alignment.md", "measured", conditions + "\n\n" + "\n".join(rows))
    ablations(cli, captures)


def ablations(cli: Path, captures: list[str]) -> None:
    """One choice at a time; the change is of the pooled error."""
    rows = [row(["recipe", "`--set`", *(Path(capture).stem for capture in captures), "pooled", "change"]), "|---" * (len(captures) + 4) + "|"]
    for recipe, choices in ABLATIONS.items():
        default = 0.0
        for choice in ["", *choices]:
            options = ["--recipes", recipe, *(["--set", choice] if choice else [])]
            values = [rel_l2_by_recipe(compare(cli, capture, *options)[1])[recipe] for capture in captures]
            default = default or pooled(values)
            change = f"{100 * (pooled(values) / default - 1):+.1f} %" if choice else ""
            rows.append(row([f"`{recipe}`", f"`{choice}`" if choice else "default", *(f"{100 * value:#.3g}" for value in values), f"{100 * pooled(values):#.3g}", change]))
    replace_between_markers(ROOT / "docs/alignment.md", "ablations", "\n".join(rows))


def readme(cli: Path, captures: list[str]) -> None:
    text = compare(cli, captures[0])[0]
    replace_between_markers(ROOT / "README.md", "sample", f"```text\n{text.strip()}\n```")


def violations(name: str, values: dict[str, float], slack: float) -> list[str]:
    return [f"{name}: {better} {values[better]:.5f} must be at most {factor * slack:.3g} x {worse} {values[worse]:.5f}"
            for better, worse, factor in RANKING if values[better] > factor * slack * values[worse]]


def order(cli: Path, captures: list[str]) -> None:
    figures = [rel_l2_by_recipe(compare(cli, capture)[1]) for capture in captures]
    found = [text for capture, values in zip(captures, figures) for text in violations(capture, values, SLACK_OF_ONE_FILE)]
    if len(captures) > 1:
        found += violations("pooled", {recipe: pooled([values[recipe] for values in figures]) for recipe in figures[0]}, 1.0)
    if found:
        sys.exit("\n".join(found))
    print(f"{len(RANKING)} inequalities hold on {len(captures)} files" + (" and pooled" if len(captures) > 1 else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", type=Path, required=True, help="built vcattn")
    parser.add_argument("what", choices=["alignment", "readme", "order"])
    parser.add_argument("captures", nargs="+", metavar="FILE", help="safetensors with q, k, v")
    options = parser.parse_args()
    if not os.access(options.cli, os.X_OK):
        parser.error(f"--cli: {options.cli} is no executable; build the target vcattn_cli")
    captures = [str(Path(capture).resolve()) for capture in options.captures]
    {"alignment": alignment, "readme": readme, "order": order}[options.what](options.cli.resolve(), captures)


if __name__ == "__main__":
    main()
