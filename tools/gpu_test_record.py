#!/usr/bin/env python3
"""Record of GPU tests from their logs: what passed, the largest errors, what the sanitizers said.

python3 tools/gpu_test_record.py --commit SHA --driver VERSION --cuda VERSION --log LOG --exit NAME=STATUS ... --sanitizer TOOL=LOG ... > FILE
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

WORST = re.compile(r"([^;]+?) ([0-9.e+-]+|inf|nan) \((.*?)\)(?:; |$)")
SUMS = re.compile(r"^\s+(\S+), (flat|random) scores, (.+): rms error / sigma (\S+) against the codes, (\S+) against exact$", re.M)


def count(text: str, what: str) -> int:
    found = re.search(rf"\[  {what}\s*\] (\d+) tests?", text)
    return int(found.group(1)) if found else 0


def found(pattern: str, text: str, path: Path) -> re.Match[str]:
    match = re.search(pattern, text, re.M)
    if match is None:
        sys.exit(f"gpu_test_record: {path} has no line like {pattern}: the tests did not run to their end")
    return match


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        sys.exit(f"gpu_test_record: {error}")


def sanitizer(argument: str) -> dict[str, object]:
    tool, _, path = argument.partition("=")
    text = read(Path(path))
    summary = re.findall(r"^========= (.*SUMMARY.*)$", text, re.M)
    filters = re.findall(r"^Note: Google Test filter = (.*)$", text, re.M)
    if not summary:
        sys.exit(f"gpu_test_record: {path} has no summary of {tool}: it did not run to its end")
    return {"tool": tool, "filter": filters[0] if filters else "", "passed": count(text, "PASSED"), "summary": summary[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--cuda", required=True)
    parser.add_argument("--log", type=Path, required=True, help="output of vcattn_gpu_attention_test")
    parser.add_argument("--exit", action="append", default=[], metavar="NAME=STATUS", help="exit status of another test program")
    parser.add_argument("--sanitizer", action="append", default=[], metavar="TOOL=LOG")
    arguments = parser.parse_args()
    text = read(arguments.log)
    device, seed = found(r"^(.+?) \(.*inputs of --seed (\d+)$", text, arguments.log).groups()
    worst = found(r"^worst errors: (.*)$", text, arguments.log).group(1)
    record = {
        "kind": "gpu-tests",
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit,
        "device": device,
        "driver": arguments.driver,
        "cuda": arguments.cuda,
        "command": f"vcattn_gpu_attention_test --seed {seed}",
        "passed": count(text, "PASSED"),
        "failed": count(text, "FAILED"),
        "worst": {what.strip(): {"value": float(value), "case": case} for what, value, case in WORST.findall(worst)},
        "accumulators": [{"recipe": recipe, "scores": scores, "v": v, "rms_error_against_codes": float(codes), "rms_error_against_exact": float(exact)}
                         for recipe, scores, v, codes, exact in SUMS.findall(text)],
        "sanitizers": [sanitizer(argument) for argument in arguments.sanitizer],
        "other_tests": [{"command": name, "exit_status": int(status)} for name, _, status in (argument.partition("=") for argument in arguments.exit)],
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
