"""Prints microseconds of host time of calls on small CUDA tensors, in which the kernels are enqueued and not waited for.

    python tests/python/gpu/host_time.py [--json FILE --commit SHA --tests LOG]

FILE: a record of them; SHA: what the package was built from; LOG: output of `python -m pytest tests/python/gpu`, whose summary is recorded.
"""

import argparse
import datetime
import gc
import json
import platform
import re
import time
from pathlib import Path

import torch
from cuda_cases import tensors

import vcattn
from vcattn import _abi, _core, _torch

REPEATS, ROUNDS = 20, 50


def microseconds(calls):
    """{name: shortest mean of REPEATS calls}. The calls take turns, so that a slow moment of the machine meets all of them."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(REPEATS):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / REPEATS * 1e6)
    return best


def library_alone(request, output):
    """The call of the C ABI with everything in hand."""
    with request.device.current():
        request.group()
        call = request.device.call(request.scratch_bytes())
    return lambda: _abi.call("attend", request.problem, request.options, output, call)


def summary(log):
    """Numbers of tests by outcome, from pytest's last line."""
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", log.read_text().strip().splitlines()[-1])
    if not counts:
        raise SystemExit(f"host_time: {log} does not end with pytest's summary")
    return {outcome: int(count) for count, outcome in counts}


def record(figures, commit, tests):
    return {"kind": "python-host-time", "date": datetime.date.today().isoformat(), "commit": commit,
            "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], "torch": torch.__version__,
            "python": platform.python_version(), "vcattn": vcattn.__version__, "tests": tests,
            "microseconds": {name: round(figure, 1) for name, figure in figures.items()}}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", metavar="SHA")
    parser.add_argument("--tests", type=Path, metavar="LOG")
    arguments = parser.parse_args()
    if arguments.json and not (arguments.commit and arguments.tests):
        parser.error("--json needs --commit and --tests")
    tests = summary(arguments.tests) if arguments.json else None  # a log that does not do is refused before anything is measured
    gc.disable()
    q, k, v = tensors(batch=1, heads=1, heads_kv=1, seqlen_q=128, seqlen_kv=128)
    state, options = vcattn.GroupingState(8), ("HND", False, None, "vc8s", None, None, 0, "error", False)
    vcattn.attention(q, k, v, state=state.at(0, layer=0))
    place, prepared, operator = state.at(1, layer=0), vcattn.prepare(q, k, v), torch.ops.vcattn.attention
    request, output = _core.Request(q, k, v, "HND"), _core.output_struct(torch.empty_like(q), None, "HND")
    figures = microseconds({
        "library": library_alone(request, output),
        "attention()": lambda: vcattn.attention(q, k, v),
        "library, state reused": library_alone(_core.Request(q, k, v, "HND", state=place), output),
        "attention(), state reused": lambda: vcattn.attention(q, k, v, state=place),
        "the same, return_lse": lambda: vcattn.attention(q, k, v, state=place, return_lse=True),
        "the operator, no state": lambda: operator(q, k, v, *options),
        "prepare()": lambda: vcattn.prepare(q, k, v),
        "attention_prepared()": lambda: vcattn.attention_prepared(prepared),
        "part: request": lambda: _core.Request(q, k, v, "HND"),
        "part: size of scratch": request.scratch_bytes,
        "part: stream and scratch": lambda: request.device.call(1 << 20),
        "part: torch.empty_like": lambda: torch.empty_like(q),
        "part: must torch see it": lambda: _torch._torch_must_see(q, k, v),
        "torch's own attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    })  # fmt: skip
    for name, figure in figures.items():
        print(f"{name:<28} {figure:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record(figures, arguments.commit, tests), indent=2) + "\n")


if __name__ == "__main__":
    main()
