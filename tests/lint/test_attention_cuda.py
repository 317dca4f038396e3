#!/usr/bin/env python3
"""Tests of bench/attention_cuda.py that need neither a GPU nor PyTorch: its view of the C ABI, its arguments, its figures.

    test_attention_cuda.py LIBVCATTN_SO [unittest arguments]
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
import attention_cuda as bench

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
        for name, kind in bench.STRUCTS.items():
            with self.subTest(name):
                members = [member for member, _ in kind._fields_]
                expressions = [f"sizeof({name})", *(f"offsetof({name}, {member})" for member in members),
                               *(f"sizeof({name}::{member})" for member in members)]
                ours = [ctypes.sizeof(kind), *(getattr(kind, member).offset for member in members),
                        *(getattr(kind, member).size for member in members)]
                self.assertEqual(ours, self.header_says(expressions))

    def test_constants_are_those_of_the_header(self):
        self.assertEqual([bench.ABI_VERSION, bench.F32, bench.BF16, bench.CUDA],
                         self.header_says(["VCATTN_ABI_VERSION", "VCATTN_F32", "VCATTN_BF16", "VCATTN_CUDA"]))


class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.library = bench.Library(library_path)

    def test_prepares_and_attends(self):
        """Zero queries weigh all keys alike, so that the output is the mean of V and the log-sum-exp ln(seqlen_kv)."""
        case = bench.parse_case("129x257x2")
        half = struct.pack("<f", 0.5)[2:]  # BF16
        q, k, v = bytearray(2 * 129 * 2 * 128), bytearray(half * (257 * 2 * 128)), bytearray(half * (257 * 2 * 128))
        address = lambda data: ctypes.addressof(ctypes.c_char.from_buffer(data))
        o, lse = (ctypes.c_float * (129 * 2 * 128))(), (ctypes.c_float * (2 * 129))()
        for text in bench.RECIPES.split(","):
            with self.subTest(text):
                options = self.library.options(bench.parse_recipe(text), bench.SETTINGS, 1)
                handle = self.library.prepare(case, address(q), address(k), address(v), options)
                output = bench.output_struct(ctypes.addressof(o), bench.F32, ctypes.addressof(lse), 129, 2)
                self.library.call("vcattn_attention", handle, ctypes.byref(output), None, 0, None)
                self.assertGreater(self.library.prepared_bytes(handle), 0)
                self.library.destroy(handle)
                self.assertLess(max(abs(value - 0.5) for value in o), 0.02)  # E4M3 probabilities of a row, without means
                self.assertLess(max(abs(value - math.log(257)) for value in lse), 0.02)

    def test_failures_have_the_text_of_the_library(self):
        with self.assertRaisesRegex(bench.BenchError, "vc8s"):
            self.library.options(bench.parse_recipe("no-such-recipe"), (), 0)
        with self.assertRaisesRegex(bench.BenchError, "v_mean"):
            self.library.options(bench.parse_recipe("vc8:v_mean=perhaps"), (), 0)

    def test_other_files_are_refused(self):
        with self.assertRaisesRegex(bench.BenchError, "--lib"):
            bench.Library(Path(__file__))


class ArgumentsTest(unittest.TestCase):
    def test_cases(self):
        self.assertEqual(bench.parse_case("75600x8")[1:], (75600, 75600, 8))
        self.assertEqual(bench.parse_case("512x75600x8")[1:], (512, 75600, 8))
        for text in ("", "8", "x8", "75600x", "0x8", "axb", "1x2x3x4", "-1x8"):
            with self.subTest(text), self.assertRaisesRegex(bench.BenchError, "--cases"):
                bench.parse_case(text)

    def test_recipes(self):
        self.assertEqual(bench.parse_recipe("vc8"), ("vc8", "vc8", ()))
        self.assertEqual(bench.parse_recipe("vc8:v_mean=off:top=100"), ("vc8:v_mean=off:top=100", "vc8", ("v_mean=off", "top=100")))
        for text in ("", ":a=b", "vc8:", "vc8:v_mean", "vc8:=off"):
            with self.subTest(text), self.assertRaisesRegex(bench.BenchError, "--recipes"):
                bench.parse_recipe(text)

    def test_peers(self):
        self.assertEqual(bench.parse_peer("fa3=a/b.py"), ("fa3", Path("a/b.py"), None))
        self.assertEqual(bench.parse_peer("fa3=a/b.py:c.so"), ("fa3", Path("a/b.py"), "c.so"))
        for text in ("fa3", "=b.py", "fa3=", "fa3=b.so"):
            with self.subTest(text), self.assertRaisesRegex(bench.BenchError, "--peer"):
                bench.parse_peer(text)

    def test_what_is_refused(self):
        for arguments, expected in ((["--repeats", "9"], "--repeats"), (["--latest", "a.json"], "--json"), (["--cases", "1x1,1x1"], "1x1"),
                                    (["--set", "order"], "--set"), (["--threads", "-1"], "--threads"),
                                    (["--seconds-per-kernel", "-1"], "--seconds-per-kernel")):
            with self.subTest(expected), self.assertRaisesRegex(bench.BenchError, expected):
                bench.parse_arguments(arguments)

    def test_errors_reach_the_user_as_one_line(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(bench.main(["--lib", "no/such/libvcattn.so"]), 2)
        self.assertIn("no/such/libvcattn.so", errors.getvalue())
        self.assertEqual(errors.getvalue().count("\n"), 1)


class FiguresTest(unittest.TestCase):
    def test_evenly_spaced(self):
        self.assertEqual(bench.evenly_spaced(3, 128), [0, 1, 2])
        rows = bench.evenly_spaced(75600, 128)
        self.assertEqual((rows[0], rows[-1], len(set(rows))), (0, 75599, 128))

    def test_calls_per_sample(self):
        self.assertEqual([bench.calls_per_sample(seconds) for seconds in (1.0, 0.5e-3, 0.45e-3, 3e-6)], [1, 1, 5, 667])

    def test_ratios(self):
        seconds = {"vc8": 2.0, "vc8:v_mean=off": 1.6, "fa3_bf16": 3.0, "cudnn_bf16": 4.0, "cublas_fp8": 1.0}
        tflops = {"vc8": 10.0, "vc8:v_mean=off": 12.5, "cublas_fp8": 20.0}
        ratios = bench.case_ratios("75600x8", ["vc8", "vc8s", "vc8:v_mean=off"], seconds, tflops)
        self.assertEqual({name: value for name, value in ratios.items() if name.startswith(HEAD)},
                         {HEAD + "vs_fa3_bf16": 1.5, HEAD + "vs_cudnn_bf16": 2.0, HEAD + "vs_cublas_fp8": 0.5, HEAD + "cost_of_means": 25.0})
        self.assertFalse([name for name in ratios if "vc8s" in name])
        self.assertNotIn(HEAD + "vs_fa3_bf16", bench.case_ratios("75600x8", ["vc8"], {"vc8": 2.0, "cudnn_bf16": 4.0}, {"vc8": 1.0}))

    def test_latest_keeps_other_names(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "latest.json"
            self.assertEqual(bench.merge_latest(path, "a.json", {"not/a/headline": 1.0}), list(bench.HEADLINES))
            self.assertFalse(path.exists())
            path.write_text(json.dumps({"other": {"value": 1}, HEAD + "vs_fa3_bf16": {"value": 0, "record": "old.json"}}))
            left = bench.merge_latest(path, "new.json", {HEAD + "vs_fa3_bf16": 1.25, "not/a/headline": 1.0})
            self.assertNotIn(HEAD + "vs_fa3_bf16", left)
            self.assertEqual(json.loads(path.read_text()), {"other": {"value": 1}, HEAD + "vs_fa3_bf16": {"value": 1.25, "record": "new.json"}})

    def test_record_text_is_the_record(self):
        record = {"samples_ms": [1.5, 2e-05, -3], "names": ["a", "b [ 1, 2 ]"], "empty": [], "nested": [{"x": [1]}]}
        text = bench.record_text(record)
        self.assertEqual(json.loads(text), record)
        self.assertIn('"samples_ms": [1.5, 2e-05, -3]', text)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_attention_cuda.py LIBVCATTN_SO; build the target vcattn")
    library_path = Path(sys.argv.pop(1)).resolve()
    unittest.main()
