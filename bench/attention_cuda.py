#!/usr/bin/env python3
"""Speed and accuracy of vcattn's attention on a CUDA device, beside other kernels, in one process and one run.

    bench/attention_cuda.py                                              # every case, every recipe
    bench/attention_cuda.py --cases 75600x8,32760x12 --json attention_h200.json --latest bench/records/latest.json
    bench/attention_cuda.py --peer fa3=my_fa3.py:my_fa3.so               # a kernel of another project, see bench/README.md

Needs libvcattn.so built with CUDA, and PyTorch with CUDA. Cases are SQxH or SQxSKxH (seqlen_q, seqlen_kv, heads); head_dim 128, batch 1,
not causal. Recipes are NAME or NAME:KEY=VALUE[:KEY=VALUE...]. bench/README.md says what is timed, and how.
"""

import argparse
import sys
import time
from typing import Any

import runs
from kernels import (ACCURACY_NOTE, CHANNEL_MEAN, CLOCKS_NOTE, DISTINCT_HEADS, TIMED_NOTE, Case, Inputs, Kernel, PreparedAttention,
                     Reference, check_kernels, make_inputs, reason, say)
from peers import GEMM, GEMM_EXTENT, gemm_kernel
from runs import attention_lines, find_library, kernel_record, parse_cases, parse_recipes, parse_setting, vs_peers
from vcattn_abi import BenchError, Library, Options, problem_struct

CASES = "75600x8,32760x12,16384x16,49290x16,73397x14,75600x40,75600x512x8,512x75600x8"
RECIPES = "vc8,vc8s,vsmooth8,vsmooth8s,vc8:v_mean=off"
SETTINGS = ("order=sequence", "rounding=nearest")

# Ratios that --latest writes.
HEADLINES = (
    "attention/vc8/75600x8/vs_fa3_bf16", "attention/vc8/75600x8/vs_cublas_fp8", "attention/vc8/32760x12/vs_fa3_bf16",
    "attention/vc8/16384x16/vs_fa3_bf16", "attention/vc8s/75600x8/vs_fa3_bf16", "attention/vsmooth8/75600x8/vs_fa3_bf16",
    "attention/vc8/75600x8/cost_of_means",
)

NOTES = {
    "inputs": f"independent N(0, 1) in BF16, K and V with a mean of +-{CHANNEL_MEAN} per head and channel; at most {DISTINCT_HEADS} distinct "
              f"heads, head h holds the data of head h % {DISTINCT_HEADS}; all kernels get the same q, k, v",
    "settings": "order and rounding are choices of the preparation on the CPU, which is not timed; they change values of the prepared tensors, "
                "but neither the instructions nor the bytes of the attention kernel",
    "timed": f"the kernel alone on prepared inputs, without log-sum-exp where that is an option; BF16 output. {TIMED_NOTE}",
    "rates": "TFLOP/s = 4 Sq Sk H D / t; of the matrix product 2 N^3 / t",
    "ratios": "vs_X of two attentions: time of X / time of the recipe; vs_cublas_fp8: TFLOP/s of the recipe / TFLOP/s of the product of "
              f"{GEMM_EXTENT} x {GEMM_EXTENT} matrices; cost_of_means: time(vc8) / time(vc8 with v_mean=off) - 1 in per cent, where v_mean=off "
              "adds its accumulators up more often, as whole values need",
    "accuracy": ACCURACY_NOTE,
    "clocks": CLOCKS_NOTE,
}


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = runs.argument_parser(__doc__)
    parser.add_argument("--cases", default=CASES, metavar="A,B,...", help="SQxH or SQxSKxH; default %(default)s")
    parser.add_argument("--recipes", default=RECIPES, metavar="A,B,...", help="NAME or NAME:KEY=VALUE; default %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help=f"option of every recipe, before its own; may be repeated; on top of {', '.join(SETTINGS)}")
    parsed = parser.parse_args(arguments)
    runs.check_arguments(parsed)
    parsed.cases = parse_cases("--cases", parsed.cases)
    parsed.recipes = parse_recipes("--recipes", parsed.recipes)
    parsed.settings = (*SETTINGS, *(parse_setting("--set", text) for text in parsed.set))
    return parsed


def case_ratios(case_name: str, recipes: list[str], seconds: dict[str, float], tflops: dict[str, float]) -> dict[str, float]:
    """By name, as in HEADLINES. seconds and tflops: by kernel, of those that were measured."""
    ratios = {}
    for recipe in recipes:
        if recipe not in seconds:
            continue
        prefix = f"attention/{recipe}/{case_name}"
        ratios |= vs_peers(prefix, recipe, seconds)
        if GEMM in tflops:
            ratios[f"{prefix}/vs_{GEMM}"] = tflops[recipe] / tflops[GEMM]
        without_means = f"{recipe}:v_mean=off"
        if without_means in seconds:
            ratios[f"{prefix}/cost_of_means"] = 100.0 * (seconds[recipe] / seconds[without_means] - 1.0)
    return ratios


class Run(runs.Run):
    kind = "attention-cuda"
    notes = NOTES
    headlines = HEADLINES

    def measure(self) -> None:
        self.record["conditions"]["settings"] = list(self.arguments.settings)
        for case in self.arguments.cases:
            self.case(case)
            self.torch.cuda.empty_cache()

    def vcattn_kernels(self, case: Case, inputs: Inputs, failed: dict[str, str]) -> list[Kernel]:
        """Prepares on the CPU and copies; what cannot be served goes to `failed`."""
        host = [x.cpu() for x in inputs]
        kernels: list[Kernel] = []
        for recipe in self.arguments.recipes:
            begin = time.perf_counter()
            try:
                options = self.library.options(recipe, self.arguments.settings, self.arguments.threads)
                problem = problem_struct(*(x.data_ptr() for x in host), case.seqlen_q, case.seqlen_kv, case.num_heads)
                prepared = self.library.prepare(problem, options)
                try:
                    prepared_bytes = self.library.prepared_bytes(prepared)
                    on_device = self.library.to_cuda(prepared)
                finally:
                    self.library.destroy(prepared)
            except BenchError as error:
                failed[recipe.name] = reason(error)
                continue
            seconds = time.perf_counter() - begin
            kernel = PreparedAttention(self.torch, self.library, recipe.name, on_device, case)
            kernel.record = {"prepared_bytes": prepared_bytes, "prepare_and_copy_seconds": seconds,
                             "options": {name: getattr(options, name) for name, _ in Options._fields_ if name != "struct_size"}}
            kernels.append(kernel)
            say(f"  prepared {recipe.name} in {seconds:.1f} s")
        return kernels

    def case(self, case: Case) -> None:
        say(f"{case.name}: seqlen_q {case.seqlen_q}, seqlen_kv {case.seqlen_kv}, {case.num_heads} heads")
        failed: dict[str, str] = {}
        missing: dict[str, str] = {}
        inputs = make_inputs(self.torch, case)
        reference = Reference(self.torch, inputs, case)
        kernels = self.vcattn_kernels(case, inputs, failed) + self.peers.kernels(inputs, case.operations, missing)
        try:
            kernels.append(gemm_kernel(self.torch))
        except (AttributeError, RuntimeError) as error:
            missing[GEMM] = reason(error)
        kernels = check_kernels(self.torch, kernels, reference, failed, missing)
        say(f"  {len(kernels)} kernels checked against exact attention")
        self.time(kernels)
        ratios = case_ratios(case.name, [recipe.name for recipe in self.arguments.recipes], {k.name: k.median_seconds for k in kernels},
                             {k.name: k.tflops for k in kernels})
        self.add({"case": case.name, "seqlen_q": case.seqlen_q, "seqlen_kv": case.seqlen_kv, "num_heads": case.num_heads,
                  "kernels": [kernel_record(kernel) for kernel in kernels], "failed": failed, "missing": missing, "ratios": ratios})

    def lines(self, case_record: dict[str, Any]) -> list[str]:
        return attention_lines(case_record)


def measure(arguments: argparse.Namespace) -> int:
    library = Library(find_library(arguments.lib))
    for recipe in arguments.recipes:  # misspelt names, before the long work
        library.options(recipe, arguments.settings, arguments.threads)
    return runs.run_benchmark(Run, library, arguments)


def main(arguments: list[str] | None = None) -> int:
    return runs.main("attention_cuda", lambda: measure(parse_arguments(arguments)))


if __name__ == "__main__":
    sys.exit(main())
