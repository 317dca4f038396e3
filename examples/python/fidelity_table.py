#!/usr/bin/env python3
"""Writes the tables of docs/fidelity.md from records of compare_recipes.py. Standard library only.

    fidelity_table.py           # writes
    fidelity_table.py --check   # writes nothing; fails where the document is not that of the records
"""

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import records

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/fidelity.md"
RECORDS = [ROOT / "bench/records/fidelity_h200.json", ROOT / "bench/records/fidelity_32k_h200.json"]
BASELINE = "vc8s first_quarter"
POLICIES = {"never": "sequence order", "first_quarter": "grouped in the first quarter", "every_step": "grouped at every step"}
NAMES = {"psnr": "PSNR dB", "ssim": "SSIM", "ms_ssim": "MS-SSIM", "flip": "FLIP", "lpips": "LPIPS", "latent_rel_l2": "latent rel. L2"}
DIGITS = {"psnr": 2, "seconds": 2, "latent_rel_l2": 4}
Rows = list[dict[str, Any]]


def name_of(rows: Rows, variant: str) -> str:
    row = next(row for row in rows if row["variant"] == variant)
    if row["kind"] == "bf16":
        return f"second BF16 kernel (`{row['recipe']}`)"
    return f"`{row['recipe']}`, {POLICIES[row['policy']]}{', **emulated**' if row['kind'] == 'emulated' else ''}"


def computed(rows: Rows) -> list[str]:
    """Metrics that the rows have."""
    return [metric for metric in records.METRICS if any(row[metric] is not None for row in rows)]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def number(value: float, metric: str, sign: str = "") -> str:
    return f"{value:{sign}.{DIGITS.get(metric, 4)}f}"


def means(rows: Rows, extra: Iterable[str] = ()) -> str:
    """Mean and standard deviation over pairs. extra: further columns."""
    columns = [*computed(rows), *extra]

    def cell(variant: str, metric: str) -> str:
        found = records.statistic(rows, variant, metric)
        if found is None:
            return "-"
        return number(found.mean, metric) + (f" ({number(found.deviation, metric)})" if found.count > 1 else "")

    head = ["mean (standard deviation over pairs)", *(NAMES.get(column, column) for column in columns)]
    return markdown(head, [[name_of(rows, variant), *(cell(variant, column) for column in columns)] for variant in records.variants(rows)])


def differences(rows: Rows, pairs: list[tuple[str, str]]) -> str:
    """(variant, baseline): mean difference and its standard error, bold beyond two of them."""

    def cell(variant: str, baseline: str, metric: str) -> str:
        found = records.difference(rows, variant, baseline, metric)
        if found is None:
            return "-"
        if found.count == 1:
            return number(found.mean, metric, "+")
        text = f"{number(found.mean, metric, '+')} ± {number(found.error, metric)}"
        if not found.beyond_two_errors:
            return text
        return f"**{text}** {'better' if (found.mean > 0) == (metric in records.HIGHER_IS_BETTER) else 'worse'}"

    metrics = computed(rows)
    one_baseline = len({baseline for _, baseline in pairs}) == 1
    lines = [[name_of(rows, variant) + ("" if one_baseline else f" − {name_of(rows, baseline)}"),
              *(cell(variant, baseline, metric) for metric in metrics)] for variant, baseline in pairs]  # fmt: skip
    return markdown(["difference ± standard error", *(NAMES[metric] for metric in metrics)], lines)


def policy_pairs(rows: Rows) -> list[tuple[str, str]]:
    """Pairs of policies of one recipe, each against those before it."""
    labels = {(row["recipe"], row["policy"]): row["variant"] for row in rows}
    return [(labels[recipe, policy], labels[recipe, base]) for recipe in dict.fromkeys(recipe for recipe, _ in labels)
            for base, policy in itertools.combinations(POLICIES, 2)
            if {(recipe, policy), (recipe, base)} <= labels.keys()]  # fmt: skip


def conditions(record: dict[str, Any], pairs: int) -> str:
    c = record["conditions"]
    return (f"{c['model']}, {c['tokens']} tokens ({' x '.join(map(str, c['size']))}), {c['steps']} steps, CFG {c['guidance']}; "
            f"{c['device']}, driver {c['driver']}, torch {c['torch']}, diffusers {c['diffusers']}, vcattn {c['vcattn']}, commit "
            f"{(c['commit'] or 'unknown')[:7]}; reference `{c['reference']}`. {pairs} (prompt, seed) pairs, all with every variant.")


def content(path: Path) -> str:
    record = records.read(path)
    rows = records.complete(record["rows"])
    if not rows:
        raise ValueError(f"{path} needs at least one (prompt, seed) pair with every variant; got none; run compare_recipes.py on with it")
    others = [(variant, BASELINE) for variant in records.variants(rows) if variant != BASELINE]
    sections = [f"### {record['conditions']['tokens']:,} tokens", conditions(record, len({(row["prompt"], row["seed"]) for row in rows})),
                "#### Distance from the reference", means(rows)]  # fmt: skip
    if BASELINE in records.variants(rows):
        sections += [f"#### Against {name_of(rows, BASELINE)}, pair by pair", differences(rows, others)]
    if policy_pairs(rows):
        sections += ["#### Between grouping policies, pair by pair", differences(rows, policy_pairs(rows))]
    return "\n\n".join(sections)


def replaced(document: Path, text: str) -> str:
    begin, end = "<!-- fidelity:begin -->", "<!-- fidelity:end -->"
    before, found, rest = document.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{document} must contain {begin} and, after it, {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--record", type=Path, nargs="+", default=RECORDS, help="default: those of the repository")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="default: that of the repository")
    options = parser.parse_args(arguments)
    try:
        text = replaced(options.document, "\n\n".join(map(content, options.record)))
        if not options.check:
            options.document.write_text(text)
        elif text != options.document.read_text():
            raise ValueError(f"{options.document} must show {', '.join(path.name for path in options.record)}; it shows something else; run "
                             "fidelity_table.py without --check")  # fmt: skip
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
