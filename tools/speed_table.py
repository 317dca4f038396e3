#!/usr/bin/env python3
"""Writes the speed table of docs/kernels/sm90a.md and README.md from bench/records/attention_h200.json. Standard library only.

    tools/speed_table.py           # writes
    tools/speed_table.py --check   # writes nothing; fails where a table is not that of the record
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench/records/attention_h200.json"
BASELINE = "fa3_bf16"
README_CASES = ("75600x8", "32760x12", "16384x16")
NAMES = {
    "fa3_bf16": "FlashAttention-3 BF16", "fa3_fp8": "FlashAttention-3 FP8", "cudnn_bf16": "cuDNN BF16",
    "sage2_kernel": "SageAttention2, kernel", "sage2_with_quantisation": "SageAttention2, complete call",
}


def name_of(kernel: str) -> str:
    return NAMES.get(kernel, f"`{kernel.replace(':', ' ')}`")


def conditions(record: dict) -> str:
    peers = "; ".join(record["peers"].values())
    return (f"{record['device']}, driver {record['driver']}, CUDA {record['cuda']}, cuDNN {record['cudnn']}, {record['date'][:10]}, commit {record['commit'][:7]}, sustained clocks. {peers}.")


def table(record: dict, cases: list[dict], detailed: bool) -> str:
    """Rows: kernels. Columns: TFLOP/s and the ratio to the baseline, per case; detailed: also the error."""
    head = "".join(f" {case['case']} |" for case in cases)
    lines = [f"| TFLOP/s (against {NAMES[BASELINE]}){'; rel. L2' if detailed else ''} |{head}", "|---" * (len(cases) + 1) + "|"]
    for kernel in [k["name"] for k in cases[0]["kernels"] if k["name"] != "cublas_fp8"]:
        cells = []
        for case in cases:
            found = {k["name"]: k for k in case["kernels"]}
            if kernel not in found:
                cells.append("-")
                continue
            ratio = found[BASELINE]["median_ms"] / found[kernel]["median_ms"]
            error = f"; {100 * found[kernel]['accuracy']['rel_l2']:.2f} %" if detailed else ""
            cells.append(f"{found[kernel]['tflops']:.0f} ({ratio:.2f}){error}")
        lines.append(f"| {name_of(kernel)} | " + " | ".join(cells) + " |")
    return conditions(record) + "\n\n" + "\n".join(lines)


def replaced(path: Path, content: str) -> str:
    begin, end = "<!-- speed:begin -->", "<!-- speed:end -->"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"speed_table: {path} must contain {begin} and, after it, {end}")
    return f"{before}{begin}\n{content.strip()}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text())
    tables = {
        ROOT / "docs/kernels/sm90a.md": table(record, record["cases"], True),
        ROOT / "README.md": table(record, [case for case in record["cases"] if case["case"] in README_CASES], False),
    }
    for path, content in tables.items():
        text = replaced(path, content)
        if not options.check:
            path.write_text(text)
        elif text != path.read_text():
            sys.exit(f"speed_table: {path} must show {RECORD.name}; it shows something else; run tools/speed_table.py")


if __name__ == "__main__":
    main()
