#!/usr/bin/env python3
"""Tests of bench/attention_cuda.py and bench/call_cuda.py that need neither a GPU nor PyTorch: the C ABI, arguments, figures.

    test_bench_cuda.py LIBVCATTN_SO [unittest arguments]
"""

import contextlib
import ctypes
import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import attention_cuda
import call_cuda
import kernels
import peers
import runs
import vcattn_abi as abi

HEAD = "attention/vc8/75600x8/"


class AbiTest(unittest.TestCase):
    def header_says(self, expressions: list[str]) -> list[int]:
        """Values of constant expressions, by a compiler and include/vcattn/vcattn.h."""
        prints = "".join(f'  std::printf("%lld\\n", static_cast<long long>({expression}));\n' for expression in expressions)
        program = f"#include <cstddef>\n#include <cstdio>\n#include <vcattn/vcattn.h>\nint main() {{\n{prints}}}\n"
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "layout"
            command = [os.environ.get("CXX", "g++"), "-x", "c++", "-std=c++20", f"-I{ROOT / 'include'}", "-", "-o", str(binary)]
            subprocess.run(command, input=program, text=True, check=True)
            return [int(line) for line in subprocess.run([binary], text=True, capture_output=True, check=True).stdout.split()]

    def test_structs_are_those_of_the_header(self):
        for name, kind in abi.STRUCTS.items():
            with self.subTest(name):
                members = [member for member, _ in kind._fields_]
                expressions = [f"sizeof({name})", *(f"offsetof({name}, {member})" for member in members),
                               *(f"sizeof({name}::{member})" for member in members)]
                ours = [ctypes.sizeof(kind), *(getattr(kind, member).offset for member in members),
                        *(getattr(kind, member).size for member in members)]
                self.assertEqual(ours, self.header_says(expressions))

    def test_constants_are_those_of_the_header(self):
        self.assertEqual([abi.ABI_VERSION, abi.F32, abi.BF16, abi.CUDA, abi.ROPE_INTERLEAVED],
                         self.header_says(["VCATTN_ABI_VERSION", "VCATTN_F32", "VCATTN_BF16", "VCATTN_CUDA", "VCATTN_ROPE_INTERLEAVED"]))


class Constant:
    """Zero queries weigh all keys alike, so that the output is the mean of V, 0.5, and the log-sum-exp ln(seqlen_kv)."""

    def __init__(self, seqlen_q: int, seqlen_kv: int, num_heads: int):
        half = struct.pack("<f", 0.5)[2:]  # BF16
        rows_q, rows_kv = seqlen_q * num_heads, seqlen_kv * num_heads
        self._tensors = bytearray(2 * rows_q * 128), bytearray(half * (rows_kv * 128)), bytearray(half * (rows_kv * 128))
        addresses = (ctypes.addressof(ctypes.c_char.from_buffer(data)) for data in self._tensors)
        self._o, self._lse, self._lse_expected = (ctypes.c_float * (rows_q * 128))(), (ctypes.c_float * rows_q)(), math.log(seqlen_kv)
        self.problem = abi.problem_struct(*addresses, seqlen_q, seqlen_kv, num_heads)
        self.output = abi.output_struct(ctypes.addressof(self._o), abi.F32, ctypes.addressof(self._lse), seqlen_q, num_heads)

    def check(self, test: unittest.TestCase) -> None:
        test.assertLess(max(abs(value - 0.5) for value in self._o), 0.02)  # E4M3 probabilities of a row, without means
        test.assertLess(max(abs(value - self._lse_expected) for value in self._lse), 0.02)


class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.library = abi.Library(library_path)

    def options(self, text: str) -> abi.Options:
        return self.library.options(runs.parse_recipe("--recipes", text), attention_cuda.SETTINGS, 1)

    def test_prepares_and_attends(self):
        for text in attention_cuda.RECIPES.split(","):
            with self.subTest(text):
                data = Constant(129, 257, 2)
                handle = self.library.prepare(data.problem, self.options(text))
                self.library.call("vcattn_attention", handle, ctypes.byref(data.output), None, 0, None)
                self.assertGreater(self.library.prepared_bytes(handle), 0)
                self.library.destroy(handle)
                data.check(self)

    def test_groups_and_attends_in_one_call(self):
        data = Constant(129, 257, 2)
        permutation, centroids = (ctypes.c_int32 * (2 * 257))(), (ctypes.c_float * (2 * 8 * 128))()
        grouping = abi.versioned(abi.Grouping)
        grouping.v = data.problem.v
        grouping.permutation, grouping.permutation_count = ctypes.addressof(permutation), len(permutation)
        grouping.centroids, grouping.centroids_count = ctypes.addressof(centroids), len(centroids)
        options = self.library.options(runs.parse_recipe("", "vc8s:clusters=8"), (), 1)
        self.library.call("vcattn_group", ctypes.byref(grouping), ctypes.byref(options), None)
        self.assertEqual([sorted(permutation[:257]), sorted(permutation[257:])], [list(range(257))] * 2)
        self.assertTrue(all(value == 0.5 for value in centroids))
        data.problem.permutation, data.problem.permutation_count = grouping.permutation, grouping.permutation_count
        self.library.call("vcattn_attend", ctypes.byref(data.problem), ctypes.byref(options), ctypes.byref(data.output), None)
        data.check(self)

    def test_sections_are_those_of_a_prepared_problem(self):
        for seqlen_q, seqlen_kv, num_heads in ((1, 1, 1), (129, 257, 3), (75600, 75600, 40)):
            with self.subTest((seqlen_q, seqlen_kv, num_heads)):
                options = self.options(call_cuda.UNFUSED_RECIPE)
                problem = abi.problem_struct(256, 256, 256, seqlen_q, seqlen_kv, num_heads)  # addresses that nothing looks at
                size = self.library.size("vcattn_prepared_size", ctypes.byref(problem), ctypes.byref(options))
                ranges, end = call_cuda.section_ranges(call_cuda.vc8s_sections(kernels.Case("", seqlen_q, seqlen_kv, num_heads)))
                self.assertEqual((end, ranges["sequences"].start, ranges["q_codes"].start), (size, 0, 256))

    def test_failures_have_the_text_of_the_library(self):
        with self.assertRaisesRegex(abi.BenchError, "vc8s"):
            self.library.options(runs.parse_recipe("--recipes", "no-such-recipe"), (), 0)
        with self.assertRaisesRegex(abi.BenchError, "v_mean"):
            self.library.options(runs.parse_recipe("--recipes", "vc8:v_mean=perhaps"), (), 0)
        handle = ctypes.c_void_p()
        with self.assertRaisesRegex(abi.BenchError, "problem"):
            self.library.call("vcattn_prepare", None, None, None, 0, None, ctypes.byref(handle))

    def test_other_files_are_refused(self):
        with self.assertRaisesRegex(abi.BenchError, "--lib"):
            abi.Library(Path(__file__))


class ArgumentsTest(unittest.TestCase):
    def test_cases(self):
        self.assertEqual(runs.parse_case("--cases", "75600x8")[1:], (75600, 75600, 8))
        self.assertEqual(runs.parse_case("--cases", "512x75600x8")[1:], (512, 75600, 8))
        for text in ("", "8", "x8", "75600x", "0x8", "axb", "1x2x3x4", "-1x8"):
            with self.subTest(text), self.assertRaisesRegex(abi.BenchError, "--cases"):
                runs.parse_case("--cases", text)

    def test_recipes(self):
        self.assertEqual(runs.parse_recipe("--recipes", "vc8"), ("vc8", "vc8", ()))
        self.assertEqual(runs.parse_recipe("--recipes", "vc8:v_mean=off:top=100"), ("vc8:v_mean=off:top=100", "vc8", ("v_mean=off", "top=100")))
        for text in ("", ":a=b", "vc8:", "vc8:v_mean", "vc8:=off"):
            with self.subTest(text), self.assertRaisesRegex(abi.BenchError, "--recipes"):
                runs.parse_recipe("--recipes", text)

    def test_peers(self):
        self.assertEqual(peers.parse_peer("fa3=a/b.py"), ("fa3", Path("a/b.py"), None))
        self.assertEqual(peers.parse_peer("fa3=a/b.py:c.so"), ("fa3", Path("a/b.py"), "c.so"))
        for text in ("fa3", "=b.py", "fa3=", "fa3=b.so"):
            with self.subTest(text), self.assertRaisesRegex(abi.BenchError, "--peer"):
                peers.parse_peer(text)

    def test_what_is_refused(self):
        shared = ((["--repeats", "9"], "--repeats"), (["--latest", "a.json"], "--json"), (["--cases", "1x1,1x1"], "1x1"),
                  (["--threads", "-1"], "--threads"), (["--seconds-per-kernel", "-1"], "--seconds-per-kernel"),
                  (["--peer", "fa3=no/such/file.py"], "no/such/file.py"))
        of_attention = ((["--set", "order"], "--set"),)
        of_calls = ((["--stage-case", "8"], "--stage-case"), (["--stage-recipes", "vc8"], "--stage-recipes: vc8s"),
                    (["--capture", "no/such/file"], "--capture"), (["--compile-seconds", "-1"], "--compile-seconds"))
        for bench, refused in ((attention_cuda, shared + of_attention), (call_cuda, shared + of_calls)):
            for arguments, expected in refused:
                with self.subTest((bench.__name__, expected)), self.assertRaisesRegex(abi.BenchError, expected):
                    bench.parse_arguments(arguments)

    def test_errors_reach_the_user_as_one_line(self):
        for bench in (attention_cuda, call_cuda):
            with self.subTest(bench.__name__):
                errors = io.StringIO()
                with contextlib.redirect_stderr(errors):
                    self.assertEqual(bench.main(["--lib", "no/such/libvcattn.so"]), 2)
                self.assertIn("no/such/libvcattn.so", errors.getvalue())
                self.assertEqual(errors.getvalue().count("\n"), 1)

    def test_a_peer_that_is_not_measured_is_refused(self):
        with self.assertRaisesRegex(abi.BenchError, "fa3_bf16.*sage2"):
            peers.Peers(None, [peers.PeerFile("sage2", Path("sage2.py"), None)], ("fa3_bf16",))


class FiguresTest(unittest.TestCase):
    def test_evenly_spaced(self):
        self.assertEqual(kernels.evenly_spaced(3, 128), [0, 1, 2])
        rows = kernels.evenly_spaced(75600, 128)
        self.assertEqual((rows[0], rows[-1], len(set(rows))), (0, 75599, 128))

    def test_calls_per_sample(self):
        self.assertEqual([kernels.calls_per_sample(seconds) for seconds in (1.0, 0.5e-3, 0.45e-3, 3e-6)], [1, 1, 5, 667])

    def test_ratios(self):
        seconds = {"vc8": 2.0, "vc8:v_mean=off": 1.6, "fa3_bf16": 3.0, "cudnn_bf16": 4.0, "cublas_fp8": 1.0}
        tflops = {"vc8": 10.0, "vc8:v_mean=off": 12.5, "cublas_fp8": 20.0}
        ratios = attention_cuda.case_ratios("75600x8", ["vc8", "vc8s", "vc8:v_mean=off"], seconds, tflops)
        self.assertEqual({name: value for name, value in ratios.items() if name.startswith(HEAD)},
                         {HEAD + "vs_fa3_bf16": 1.5, HEAD + "vs_cudnn_bf16": 2.0, HEAD + "vs_cublas_fp8": 0.5, HEAD + "cost_of_means": 25.0})
        self.assertFalse([name for name in ratios if "vc8s" in name])
        self.assertNotIn(HEAD + "vs_fa3_bf16", attention_cuda.case_ratios("75600x8", ["vc8"], {"vc8": 2.0, "cudnn_bf16": 4.0}, {"vc8": 1.0}))

    def test_ratios_of_stages(self):
        seconds = {"copy": 1.0, "prepare vc8s": 2.0, "prepare vc8s rope": 4.0, "prepare vc8": 2.5, "unfused matmul": 40.0,
                   "unfused butterflies": 70.0, "unfused compiled": 10.0, "group": 3.0, "group automatic": 6.0, "attention vc8:rounding=nearest": 60.0}
        moved = {name: 9 for name in seconds}
        expected = {"prepare/vc8s/75600x40/vs_copy": 0.5, "prepare/vc8s/75600x40/rope_vs_copy": 0.25, "prepare/vc8/75600x40/vs_copy": 0.4,
                    "prepare/75600x40/vs_copy": 0.5, "prepare/75600x40/vs_unfused": 20.0, "prepare/75600x40/vs_compiled": 5.0,
                    "group/75600x40/share_of_attention": 0.05, "group_automatic/75600x40/share_of_attention": 0.1}
        self.assertEqual(call_cuda.stage_ratios("75600x40", ["vc8s", "vsmooth8s", "vc8"], seconds, moved), expected)
        for gone in ("copy", "prepare vc8s", "group", "group automatic"):
            rest = {name: value for name, value in seconds.items() if name != gone}
            ratios = call_cuda.stage_ratios("75600x40", ["vc8s", "vsmooth8s", "vc8"], rest, moved)
            self.assertLess(ratios.items(), expected.items())
        self.assertEqual(call_cuda.stage_ratios("75600x40", ["vc8s"], {}, {}), {})

    def test_ratios_of_calls(self):
        seconds = {"vc8": 2.0, "vc8 regrouped": 2.5, "fa3_bf16": 3.0, "cudnn_bf16": 4.0}
        expected = {"call/vc8/75600x8/vs_fa3_bf16": 1.5, "call/vc8/75600x8/vs_cudnn_bf16": 2.0, "call/vc8/75600x8/extra_memory": 1.1,
                    "call_regrouped/vc8/75600x8/vs_fa3_bf16": 1.2, "call_regrouped/vc8/75600x8/vs_cudnn_bf16": 1.6,
                    "call_regrouped/vc8/75600x8/extra_memory": 1.15}
        memory = {"vc8": 1.1, "vc8 regrouped": 1.15, "fa3_bf16": None, "cudnn_bf16": None}
        self.assertEqual(call_cuda.call_ratios("75600x8", ["vc8", "vc8s"], seconds, memory), expected)

    def test_headlines_are_measured_by_default(self):
        """The names of what a run without arguments measures."""
        measured = ("copy", "prepare vc8s", "unfused matmul", "group", f"attention {call_cuda.ATTENTION_RECIPE}", "vc8", "fa3_bf16")
        everything = dict.fromkeys(measured, 1)
        names = set(call_cuda.stage_ratios(call_cuda.STAGE_CASE, call_cuda.STAGE_RECIPES.split(","), everything, everything))
        for case in call_cuda.CALL_CASES.split(","):
            names |= set(call_cuda.call_ratios(case, call_cuda.CALL_RECIPES.split(","), everything, everything))
        self.assertEqual(set(call_cuda.HEADLINES) - names, set())
        self.assertFalse(set(call_cuda.HEADLINES) & set(attention_cuda.HEADLINES))

    def test_grids_have_the_tokens_of_their_videos(self):
        for seqlen in (*call_cuda.VIDEO_GRIDS, 1, 700):
            self.assertEqual(math.prod(call_cuda.video_grid(seqlen)), seqlen)

    def test_latest_keeps_other_names(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "latest.json"
            self.assertEqual(runs.merge_latest(path, "a.json", attention_cuda.HEADLINES, {"not/a/headline": 1.0}), list(attention_cuda.HEADLINES))
            self.assertFalse(path.exists())
            path.write_text(json.dumps({"other": {"value": 1}, HEAD + "vs_fa3_bf16": {"value": 0, "record": "old.json"}}))
            left = runs.merge_latest(path, "new.json", attention_cuda.HEADLINES, {HEAD + "vs_fa3_bf16": 1.25, "not/a/headline": 1.0})
            self.assertNotIn(HEAD + "vs_fa3_bf16", left)
            self.assertEqual(json.loads(path.read_text()), {"other": {"value": 1}, HEAD + "vs_fa3_bf16": {"value": 1.25, "record": "new.json"}})

    def test_record_text_is_the_record(self):
        record = {"samples_ms": [1.5, 2e-05, -3], "names": ["a", "b [ 1, 2 ]"], "empty": [], "nested": [{"x": [1]}]}
        text = runs.record_text(record)
        self.assertEqual(json.loads(text), record)
        self.assertIn('"samples_ms": [1.5, 2e-05, -3]', text)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_bench_cuda.py LIBVCATTN_SO; build the target vcattn")
    library_path = Path(sys.argv.pop(1)).resolve()
    unittest.main()
