#!/usr/bin/env python3
"""Writes the speed tables of docs/kernels/ and README.md from the records of bench/. Standard library only.

    tools/speed_table.py           # writes
    tools/speed_table.py --check   # writes nothing; fails where a table is not that of the record
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ATTENTION_RECORD = ROOT / "bench/records/attention_h200.json"
CALL_RECORD = ROOT / "bench/records/call_h200.json"
BASELINE = "fa3_bf16"
README_CASES = ("75600x8", "32760x12", "16384x16")
NAMES = {
    "fa3_bf16": "FlashAttention-3 BF16", "fa3_fp8": "FlashAttention-3 FP8", "cudnn_bf16": "cuDNN BF16",
    "sage2_kernel": "SageAttention2, kernel", "sage2_with_quantisation": "SageAttention2, complete call",
}
STAGE_NAMES = {
    "copy": "copy, device to device", "group": "grouping, warm, 64 clusters", "group automatic": "grouping, warm, as many clusters as the library chooses",
    "unfused matmul": "unfused in PyTorch, eager, Hadamard by FP32 product",
    "unfused butterflies": "the same, Hadamard by butterflies", "unfused compiled": "the faster one by `torch.compile`",
}
PREPARE, ATTENTION, ROPE, REGROUPED = "prepare ", "attention ", " rope", " regrouped"


def name_of(kernel: str) -> str:
    recipe = kernel.removesuffix(REGROUPED)
    return NAMES.get(kernel, f"`{recipe.replace(':', ' ')}`{', regrouped' if recipe != kernel else ''}")


def stage_name(kernel: str) -> str:
    if kernel.startswith(ATTENTION):
        return f"attention of {name_of(kernel.removeprefix(ATTENTION))}, for comparison"
    if not kernel.startswith(PREPARE):
        return STAGE_NAMES.get(kernel, kernel)
    recipe = kernel.removeprefix(PREPARE).removesuffix(ROPE)
    return f"`{recipe.replace(':', ' ')}`{', with RoPE' if kernel.endswith(ROPE) else ''}"


def conditions(record: dict) -> str:
    peers = "; ".join(record["peers"].values())
    return (f"{record['device']}, driver {record['driver']}, CUDA {record['cuda']}, cuDNN {record['cudnn']}, {record['date'][:10]}, "
            f"commit {record['commit'][:7]}, sustained clocks. {peers}.")


def table(cases: list[dict], detailed: bool) -> str:
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
    return "\n".join(lines)


def stage_table(case: dict) -> str:
    """Rows: stages of a call. Columns: time, share of the bandwidth of a copy, time over that of the preparation that is compared."""
    found = {k["name"]: k for k in case["kernels"]}
    fused = found["prepare vc8s"]["median_ms"]
    lines = [f"| {case['case']} | ms | of a copy's bandwidth | time / `vc8s` |", "|---|---|---|---|"]
    for kernel, k in found.items():
        rate = k.get("terabytes_per_second")
        share = f"{rate:.2f} TB/s" if kernel == "copy" else f"{100 * rate / found['copy']['terabytes_per_second']:.0f} %" if rate else "-"
        lines.append(f"| {stage_name(kernel)} | {k['median_ms']:.2f} | {share} | {k['median_ms'] / fused:.1f} |")
    return "\n".join(lines)


def call_tables(record: dict) -> str:
    stages = [case for case in record["cases"] if case["stages"]]
    calls = [case for case in record["cases"] if not case["stages"]]
    memory = {f"{k['extra_memory']:.2f}" for case in calls for k in case["kernels"] if "extra_memory" in k}
    removed = "; ".join(f"{case['case']} {100 * case['energy_removed']['sequence']:.0f} % in sequence order, "
                        f"{100 * case['energy_removed']['grouped']:.0f} % grouped" for case in record["cases"])
    refused = sorted({recipe for case in record["cases"] for recipe in case["failed"]})
    return "\n\n".join([
        conditions(record), *(stage_table(case) for case in stages), table(calls, True),
        f"Memory of a call beside its inputs and output: {min(memory)} to {max(memory)} of Q, K and V at 8 bits. Energy of V removed by its "
        f"block means: {removed}.", *([f"Not served by this build: {', '.join(name_of(recipe) for recipe in refused)}."] if refused else [])])


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
    attention, call = (json.loads(path.read_text()) for path in (ATTENTION_RECORD, CALL_RECORD))
    readme = [case for case in attention["cases"] if case["case"] in README_CASES]
    tables = {
        ROOT / "docs/kernels/sm90a.md": (ATTENTION_RECORD, f"{conditions(attention)}\n\n{table(attention['cases'], True)}"),
        ROOT / "README.md": (ATTENTION_RECORD, f"{conditions(attention)}\n\n{table(readme, False)}"),
        ROOT / "docs/kernels/prepare.md": (CALL_RECORD, call_tables(call)),
    }
    for path, (record, content) in tables.items():
        text = replaced(path, content)
        if not options.check:
            path.write_text(text)
        elif text != path.read_text():
            sys.exit(f"speed_table: {path} must show {record.name}; it shows something else; run tools/speed_table.py")


if __name__ == "__main__":
    main()
