#!/usr/bin/env python3
"""Speed and accuracy of vcattn's attention on a CUDA device, beside other kernels, in one process and one run.

    bench/attention_cuda.py                                              # every case, every recipe
    bench/attention_cuda.py --cases 75600x8,32760x12 --json attention_h200.json --latest bench/records/latest.json
    bench/attention_cuda.py --peer fa3=my_fa3.py:my_fa3.so               # a kernel of another project, see bench/README.md

Needs libvcattn.so built with CUDA, and PyTorch with CUDA. Cases are SQxH or SQxSKxH (seqlen_q, seqlen_kv, heads); head_dim 128, batch 1, not
causal. Recipes are NAME or NAME:KEY=VALUE[:KEY=VALUE...]. bench/README.md says what is timed, and how.
"""

import argparse
import ctypes
import datetime
import importlib
import importlib.util
import json
import math
import os
import platform
import pty
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("build/cuda/src/libvcattn.so", "build/release/src/libvcattn.so")

HEAD_DIM = 128
CASES = "75600x8,32760x12,16384x16,49290x16,73397x14,75600x40,75600x512x8,512x75600x8"
RECIPES = "vc8,vc8s,vsmooth8,vsmooth8s,vc8:v_mean=off"
SETTINGS = ("order=sequence", "rounding=nearest")
DISTINCT_HEADS = 8  # head h of a case has the data of head h % 8
CHANNEL_MEAN = 0.5  # of V and K, with a random sign per head and channel
SEED = 20260915

FEWEST_REPEATS = 10
SHORT_SECONDS = 0.5e-3   # a call below this is timed together with further ones
SAMPLE_SECONDS = 2.0e-3  # that fill about this long
CLOCK_PERIOD_MS = 50
ACCURACY_ROWS = 128
GEMM_EXTENT = 8192

GEMM = "cublas_fp8"
CUDNN = "cudnn_bf16"
FA3 = "fa3_bf16"

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
    "timed": "the kernel alone on prepared inputs, without log-sum-exp where that is an option; BF16 output. Every kernel is called back to "
             "back for warm_seconds, then `repeats` samples follow without a pause, by CUDA events around each; samples of calls below "
             f"{SHORT_SECONDS * 1e3} ms are means over calls_per_sample calls. All kernels of a case take turns, in two passes of opposite "
             "order; medians are over the samples of both",
    "rates": "TFLOP/s = 4 Sq Sk H D / t; of the matrix product 2 N^3 / t",
    "ratios": "vs_X of two attentions: time of X / time of the recipe; vs_cublas_fp8: TFLOP/s of the recipe / TFLOP/s of the product of "
              f"{GEMM_EXTENT} x {GEMM_EXTENT} matrices; cost_of_means: time(vc8) / time(vc8 with v_mean=off) - 1 in per cent, where v_mean=off "
              "adds its accumulators up more often, as whole values need",
    "accuracy": f"against exact attention in FP64 of the same BF16 inputs, {ACCURACY_ROWS} evenly spaced query rows of every head, buffers "
                "filled with NaN before. With these inputs an output is the channel mean and little else, so that rounding it to BF16 is a "
                "large part of rel_l2; rel_l2_f32_output is the same kernel with FP32 output",
    "clocks": "as nvidia-smi reported them during the samples of the kernel and half of warm_seconds before; information only",
}


class BenchError(Exception):
    """Says what was required, what was got, and what to do."""


def say(text: str = "") -> None:
    print(text, flush=True)


# --- C ABI: the structs of include/vcattn/vcattn.h, member by member ------------------------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("shape", ctypes.c_int64 * 4),
                ("stride", ctypes.c_int64 * 4)]


class MutableTensor(ctypes.Structure):
    _fields_ = Tensor._fields_


class Problem(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("causal", ctypes.c_uint32), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("has_softmax_scale", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("softmax_scale", ctypes.c_double),
                ("seqused_k", ctypes.c_void_p), ("seqused_k_count", ctypes.c_int64), ("cu_seqlens_q", ctypes.c_void_p),
                ("cu_seqlens_q_count", ctypes.c_int64), ("cu_seqlens_k", ctypes.c_void_p), ("cu_seqlens_k_count", ctypes.c_int64),
                ("permutation", ctypes.c_void_p), ("permutation_count", ctypes.c_int64), ("rope", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("recipe", ctypes.c_uint32), ("qk", ctypes.c_uint32), ("qk_scaling", ctypes.c_uint32),
                ("q_block", ctypes.c_int32), ("k_block", ctypes.c_int32), ("qk_rounding", ctypes.c_uint32), ("k_mean", ctypes.c_uint32),
                ("q_mean", ctypes.c_uint32), ("hadamard", ctypes.c_uint32), ("scores", ctypes.c_uint32), ("v", ctypes.c_uint32),
                ("v_per_channel", ctypes.c_uint32), ("v_mean", ctypes.c_uint32), ("v_block", ctypes.c_int32), ("emc", ctypes.c_uint32),
                ("prob", ctypes.c_uint32), ("exp_form", ctypes.c_uint32), ("top_code", ctypes.c_int32), ("order", ctypes.c_uint32),
                ("clusters", ctypes.c_int32), ("iterations", ctypes.c_int32), ("warm_iterations", ctypes.c_int32),
                ("check_finite", ctypes.c_uint32), ("exact_f64", ctypes.c_uint32), ("num_threads", ctypes.c_int32)]


class Call(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("device", ctypes.c_uint32), ("stream", ctypes.c_void_p)]


class Output(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("o", MutableTensor), ("lse", ctypes.c_void_p),
                ("lse_count", ctypes.c_int64)]


STRUCTS = {"vcattn_tensor": Tensor, "vcattn_mutable_tensor": MutableTensor, "vcattn_problem": Problem, "vcattn_options": Options,
           "vcattn_call": Call, "vcattn_output": Output}
ABI_VERSION = 1
F32, BF16 = 0, 2
CUDA = 1

FUNCTIONS = {  # name: argument types; all return a status
    "vcattn_options_init": [ctypes.POINTER(Options), ctypes.c_char_p],
    "vcattn_options_set": [ctypes.POINTER(Options), ctypes.c_char_p, ctypes.c_char_p],
    "vcattn_cuda_available": [ctypes.POINTER(ctypes.c_uint32), ctypes.c_char_p, ctypes.c_size_t],
    "vcattn_prepare": [ctypes.POINTER(Problem), ctypes.POINTER(Options), ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(Call),
                       ctypes.POINTER(ctypes.c_void_p)],
    "vcattn_prepared_to_cuda": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)],
    "vcattn_prepared_destroy": [ctypes.c_void_p],
    "vcattn_prepared_bytes": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)],
    "vcattn_attention": [ctypes.c_void_p, ctypes.POINTER(Output), ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(Call)],
}


def versioned(kind: type) -> Any:
    return kind(struct_size=ctypes.sizeof(kind))


def tensor(kind: type, address: int, dtype: int, seqlen: int, num_heads: int) -> Any:
    """Contiguous [1, seqlen, num_heads, HEAD_DIM]."""
    shape = (1, seqlen, num_heads, HEAD_DIM)
    stride = (seqlen * num_heads * HEAD_DIM, num_heads * HEAD_DIM, HEAD_DIM, 1)
    return kind(data=address, dtype=dtype, shape=(ctypes.c_int64 * 4)(*shape), stride=(ctypes.c_int64 * 4)(*stride))


class Library:
    """libvcattn.so; failures become BenchError with the library's text."""

    def __init__(self, path: Path):
        try:
            self._library = ctypes.CDLL(str(path))
            self._library.vcattn_last_error.restype = ctypes.c_char_p
            self._library.vcattn_version.restype = ctypes.c_char_p
            self._library.vcattn_abi_version.restype = ctypes.c_uint32
            for name, arguments in FUNCTIONS.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, ctypes.c_uint32
        except (OSError, AttributeError) as error:
            raise BenchError(f"--lib: libvcattn.so of this version required, got {path}: {error}; build the target vcattn") from error
        if self._library.vcattn_abi_version() != ABI_VERSION:
            raise BenchError(f"--lib: ABI version {ABI_VERSION} required, got {self._library.vcattn_abi_version()}; "
                             "build the library of this checkout")
        self.version = self._library.vcattn_version().decode()
        self.attention_function = self._library.vcattn_attention

    def require(self, status: int) -> None:
        if status != 0:
            raise BenchError(self._library.vcattn_last_error().decode())

    def call(self, name: str, *arguments: Any) -> None:
        self.require(getattr(self._library, name)(*arguments))

    def cuda_unavailable_reason(self) -> str:
        available, reason = ctypes.c_uint32(), ctypes.create_string_buffer(1024)
        self.call("vcattn_cuda_available", ctypes.byref(available), reason, len(reason))
        return "" if available.value else reason.value.decode() or "no reason given"

    def options(self, recipe: "Recipe", settings: tuple[str, ...], threads: int) -> Options:
        options = versioned(Options)
        self.call("vcattn_options_init", ctypes.byref(options), recipe.base.encode())
        for setting in (*settings, *recipe.settings):
            key, value = setting.split("=", 1)
            self.call("vcattn_options_set", ctypes.byref(options), key.encode(), value.encode())
        options.num_threads = threads
        options.check_finite = 0
        return options

    def prepare(self, case: "Case", q: int, k: int, v: int, options: Options) -> ctypes.c_void_p:
        """q, k, v: host addresses of contiguous BF16 [1, S, H, HEAD_DIM]."""
        problem = versioned(Problem)
        problem.q = tensor(Tensor, q, BF16, case.seqlen_q, case.num_heads)
        problem.k = tensor(Tensor, k, BF16, case.seqlen_kv, case.num_heads)
        problem.v = tensor(Tensor, v, BF16, case.seqlen_kv, case.num_heads)
        handle = ctypes.c_void_p()
        self.call("vcattn_prepare", ctypes.byref(problem), ctypes.byref(options), None, 0, None, ctypes.byref(handle))
        return handle

    def prepared_bytes(self, handle: ctypes.c_void_p) -> int:
        size = ctypes.c_size_t()
        self.call("vcattn_prepared_bytes", handle, ctypes.byref(size))
        return size.value

    def to_cuda(self, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        on_device = ctypes.c_void_p()
        self.call("vcattn_prepared_to_cuda", handle, None, 0, ctypes.byref(on_device))
        return on_device

    def destroy(self, handle: ctypes.c_void_p) -> None:
        self.call("vcattn_prepared_destroy", handle)


def output_struct(o: int, dtype: int, lse: int | None, seqlen_q: int, num_heads: int) -> Output:
    output = versioned(Output)
    output.o = tensor(MutableTensor, o, dtype, seqlen_q, num_heads)
    if lse is not None:
        output.lse, output.lse_count = lse, num_heads * seqlen_q
    return output


# --- Arguments ------------------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    seqlen_q: int
    seqlen_kv: int
    num_heads: int

    @property
    def operations(self) -> float:
        return 4.0 * self.seqlen_q * self.seqlen_kv * self.num_heads * HEAD_DIM

    @property
    def distinct_heads(self) -> int:
        return min(self.num_heads, DISTINCT_HEADS)


class Recipe(NamedTuple):
    name: str
    base: str
    settings: tuple[str, ...]


class PeerFile(NamedTuple):
    name: str
    path: Path
    argument: str | None


def parse_case(text: str) -> Case:
    parts = text.split("x")
    if len(parts) not in (2, 3) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BenchError(f"--cases: SQxH or SQxSKxH with numbers above 0 required, got '{text}'; for example 75600x8 or 512x75600x8")
    numbers = [int(part) for part in parts]
    return Case(text, numbers[0], numbers[-2], numbers[-1])


def parse_setting(option: str, text: str) -> str:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise BenchError(f"{option}: KEY=VALUE required, got '{text}'; `vcattn info --json` lists keys and values")
    return text


def parse_recipe(text: str) -> Recipe:
    base, *settings = text.split(":")
    if not base:
        raise BenchError(f"--recipes: NAME or NAME:KEY=VALUE required, got '{text}'; for example vc8 or vc8:v_mean=off")
    return Recipe(text, base, tuple(parse_setting("--recipes", setting) for setting in settings))


def parse_peer(text: str) -> PeerFile:
    name, equals, location = text.partition("=")
    path, colon, argument = location.partition(".py:")
    if not (name and equals and location) or not (colon or path.endswith(".py")):
        raise BenchError(f"--peer: NAME=FILE.py or NAME=FILE.py:ARGUMENT required, got '{text}'; for example fa3=my_fa3.py:my_fa3.so")
    return PeerFile(name, Path(path + ".py" if colon else path), argument if colon else None)


def unique(option: str, items: list[Any]) -> list[Any]:
    names = [item.name for item in items]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BenchError(f"{option}: each name once required, got {', '.join(repeated)} again; leave the second one out")
    return items


def find_library(given: Path | None) -> Path:
    candidates = [given] if given else [ROOT / path for path in LIBRARIES]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise BenchError(f"--lib: libvcattn.so required, not found at {' or '.join(str(path) for path in candidates)}; "
                     "cmake --preset cuda && cmake --build --preset cuda --target vcattn, or pass --lib PATH")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, metavar="A,B,...", help="SQxH or SQxSKxH; default %(default)s")
    parser.add_argument("--recipes", default=RECIPES, metavar="A,B,...", help="NAME or NAME:KEY=VALUE; default %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help=f"option of every recipe, before its own; may be repeated; on top of {', '.join(SETTINGS)}")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE.py[:ARG]", help="kernels of another project; may be repeated")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help=f"samples per kernel and pass, at least {FEWEST_REPEATS}; default %(default)s")
    parser.add_argument("--seconds-per-kernel", type=float, default=0.3, metavar="S",
                        help="back-to-back calls of a kernel before its samples; default %(default)s")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of the preparation on the CPU; default: all cores")
    parser.add_argument("--lib", type=Path, metavar="PATH", help=f"libvcattn.so; default: the first of {', '.join(LIBRARIES)}")
    parser.add_argument("--commit", help="for the record; default: git rev-parse HEAD")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole record")
    parser.add_argument("--latest", type=Path, metavar="FILE", help="merge the headline ratios into this file; needs --json")
    parsed = parser.parse_args(arguments)
    if parsed.repeats < FEWEST_REPEATS:
        raise BenchError(f"--repeats: at least {FEWEST_REPEATS} required, got {parsed.repeats}")
    if not 0 <= parsed.seconds_per_kernel <= 60:
        raise BenchError(f"--seconds-per-kernel: 0 to 60 required, got {parsed.seconds_per_kernel}")
    if parsed.threads < 0:
        raise BenchError(f"--threads: 0 (all cores) or more required, got {parsed.threads}")
    if parsed.latest and not parsed.json:
        raise BenchError("--latest: --json FILE required beside it, got none; the ratios name the record that they come from")
    parsed.cases = unique("--cases", [parse_case(text) for text in parsed.cases.split(",")])
    parsed.recipes = unique("--recipes", [parse_recipe(text) for text in parsed.recipes.split(",")])
    parsed.peers = unique("--peer", [parse_peer(text) for text in parsed.peer])
    for path in (parsed.json, parsed.latest):
        if path and path.is_dir():
            raise BenchError(f"{path}: a file required, this is a folder; name a file in it")
        if path and not path.parent.is_dir():
            raise BenchError(f"{path}: an existing folder required, {path.parent} is none; create it")
    for peer in parsed.peers:
        if not peer.path.is_file():
            raise BenchError(f"--peer: an existing file required, {peer.path} is none; write it, or leave the peer out")
    parsed.settings = (*SETTINGS, *(parse_setting("--set", text) for text in parsed.set))
    return parsed


# --- Clocks and conditions ------------------------------------------------------------------------------------------------------------


def nvidia_smi(gpu: str, fields: str) -> list[str] | None:
    """Values of one query, None without nvidia-smi."""
    try:
        result = subprocess.run(["nvidia-smi", "-i", gpu, f"--query-gpu={fields}", "--format=csv,noheader,nounits"], text=True,
                                capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return [value.strip() for value in result.stdout.splitlines()[0].split(",")] if result.returncode == 0 and result.stdout else None


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class ClockSampler:
    """SM clock, power and temperature all along, by one nvidia-smi that keeps running."""

    FIELDS = {"sm_clock_mhz": "clocks.sm", "power_w": "power.draw.instant", "temperature_c": "temperature.gpu"}

    def __init__(self, gpu: str):
        self._samples: list[tuple[float, list[float | None]]] = []
        self._process = None
        fields = ",".join(self.FIELDS.values())
        if nvidia_smi(gpu, fields) is None:
            return
        command = ["nvidia-smi", "-i", gpu, f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", str(CLOCK_PERIOD_MS)]
        terminal, its_end = pty.openpty()  # so that no reading waits in a buffer
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its_end, stderr=subprocess.DEVNULL)
        os.close(its_end)
        threading.Thread(target=self._read, args=(terminal,), daemon=True).start()

    def _read(self, terminal: int) -> None:
        with open(terminal, encoding="ascii", errors="replace") as lines:
            try:
                for line in lines:
                    self._samples.append((time.perf_counter(), [number(value) for value in line.split(",")]))
            except OSError:  # how a terminal says that the program at its other end is gone
                pass

    def between(self, begin: float, end: float) -> dict[str, Any] | None:
        """Medians of one interval of time.perf_counter()."""
        rows = [values for at, values in self._samples if begin <= at <= end and len(values) == len(self.FIELDS)]
        if not rows:
            return None
        columns = {name: [row[i] for row in rows if row[i] is not None] for i, name in enumerate(self.FIELDS)}
        return {"readings": len(rows), **{name: statistics.median(values) if values else None for name, values in columns.items()}}

    def close(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(ROOT), *arguments], text=True, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def gpu_id(torch: Any) -> str:
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}" if uuid else "0"


def conditions(torch: Any, library: Library, arguments: argparse.Namespace) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    limits = nvidia_smi(gpu_id(torch), "driver_version,power.limit,clocks.max.sm,persistence_mode") or [None] * 4
    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "kind": "attention-cuda",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": arguments.commit or git("rev-parse", "HEAD"),
        "modified": None if arguments.commit or status is None else status != "",
        "vcattn": library.version,
        "device": properties.name,
        "driver": limits[0],
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "conditions": {
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "power_limit_w": limits[1],
            "max_sm_clock_mhz": limits[2],
            "persistence_mode": limits[3],
            "cpu": cpu_model(),
            "cpu_count": os.cpu_count(),
            "load_average_1min": os.getloadavg()[0],
            "python": platform.python_version(),
            "repeats": arguments.repeats,
            "passes": 2,
            "warm_seconds": arguments.seconds_per_kernel,
            "settings": list(arguments.settings),
            "head_dim": HEAD_DIM,
            "batch": 1,
            "causal": False,
            "seed": SEED,
        },
        "notes": NOTES,
    }


# --- Kernels --------------------------------------------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """BF16 on the device, contiguous [1, S, H, HEAD_DIM]."""
    q: Any
    k: Any
    v: Any


class Kernel:
    """`call()` enqueues the kernel on the current stream; `output()` gives what the last call wrote, [1, Sq, H, HEAD_DIM]."""

    def __init__(self, name: str, call: Callable[[], Any], operations: float, attention: bool = True):
        self.name, self.call, self.operations, self.attention = name, call, operations, attention
        self.seconds_estimate = 0.0
        self.calls_per_sample = 1
        self.passes: list[dict[str, Any]] = []
        self.record: dict[str, Any] = {}

    def fresh_output(self, torch: Any) -> Any:
        """Output of one call after the output of an earlier one was overwritten with NaN. A kernel that allocates its output is
        usually given the same block again."""
        self.call().fill_(math.nan)
        torch.cuda.synchronize()
        output = self.call()
        torch.cuda.synchronize()
        return output

    def accuracy(self, torch: Any, reference: "Reference") -> dict[str, Any]:
        return reference.errors(self.fresh_output(torch))

    def close(self) -> None:
        pass

    @property
    def median_seconds(self) -> float:
        return statistics.median(sample for one in self.passes for sample in one["samples_ms"]) * 1e-3

    @property
    def tflops(self) -> float:
        return self.operations / self.median_seconds * 1e-12


class VcattnKernel(Kernel):
    """A recipe on the device."""

    def __init__(self, torch: Any, library: Library, name: str, on_device: ctypes.c_void_p, case: Case):
        super().__init__(name, self._attention, case.operations)
        self._library, self._on_device, self._case = library, on_device, case
        self._o = torch.empty(1, case.seqlen_q, case.num_heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        self._output = output_struct(self._o.data_ptr(), BF16, None, case.seqlen_q, case.num_heads)
        self._where = versioned(Call)
        self._where.device, self._where.stream = CUDA, torch.cuda.current_stream().cuda_stream
        self._arguments = (on_device, ctypes.byref(self._output), None, 0, ctypes.byref(self._where))

    def _attention(self) -> Any:
        status = self._library.attention_function(*self._arguments)
        if status != 0:
            self._library.require(status)
        return self._o

    def accuracy(self, torch: Any, reference: "Reference") -> dict[str, Any]:
        """Also with FP32 output and log-sum-exp, which the timed calls do not write."""
        errors = super().accuracy(torch, reference)
        o = torch.full(self._o.shape, math.nan, dtype=torch.float32, device="cuda")
        lse = torch.full((1, self._case.num_heads, self._case.seqlen_q), math.nan, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        output = output_struct(o.data_ptr(), F32, lse.data_ptr(), self._case.seqlen_q, self._case.num_heads)
        self._library.call("vcattn_attention", self._on_device, ctypes.byref(output), None, 0, ctypes.byref(self._where))
        torch.cuda.synchronize()
        in_f32 = reference.errors(o)
        return {**errors, "rel_l2_f32_output": in_f32["rel_l2"], "lse_max_error": reference.lse_error(lse),
                "finite": errors["finite"] and in_f32["finite"] and bool(torch.isfinite(lse).all())}

    def close(self) -> None:
        self._library.destroy(self._on_device)


def quantise_per_head(torch: Any, x: Any) -> tuple[Any, Any]:
    """E4M3 codes and the descale [1, H]."""
    descale = x.abs().amax(dim=(1, 3)).float().clamp(min=1e-12) / 448.0
    return (x.float() / descale[:, None, :, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), descale.contiguous()


def first(result: Any) -> Any:
    """Functions that can give the log-sum-exp too return a tuple in some versions."""
    return result[0] if isinstance(result, (tuple, list)) else result


Bind = Callable[[Any, Any, Any], Callable[[], Any]]


def cudnn_kernels(torch: Any) -> dict[str, Bind]:
    attention = importlib.import_module("torch.nn.attention")

    def bind(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]

        def call() -> Any:
            with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)

        return call

    return {"bf16": bind}


def fa3_kernels(torch: Any) -> dict[str, Bind]:
    module = importlib.import_module("flash_attn_interface")

    def bind_bf16(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        return lambda: first(module.flash_attn_func(q, k, v, causal=False))

    def bind_fp8(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        (q8, qd), (k8, kd), (v8, vd) = (quantise_per_head(torch, x) for x in (q, k, v))
        return lambda: first(module.flash_attn_func(q8, k8, v8, causal=False, q_descale=qd, k_descale=kd, v_descale=vd))

    return {"bf16": bind_bf16, "fp8": bind_fp8}


def fa4_kernels(torch: Any) -> dict[str, Bind]:
    module = importlib.import_module("flash_attn.cute")
    return {"bf16": lambda q, k, v: lambda: first(module.flash_attn_func(q, k, v, causal=False))}


def sage2_kernels(torch: Any) -> dict[str, Bind]:
    """The package gives its kernels only together with the quantisation before them."""
    module = importlib.import_module("sageattention")
    return {"with_quantisation": lambda q, k, v: lambda: first(module.sageattn(q, k, v, tensor_layout="NHD", is_causal=False))}


BUILT_IN_PEERS: dict[str, Callable[[Any], dict[str, Bind]]] = {"cudnn": cudnn_kernels, "fa3": fa3_kernels, "sage2": sage2_kernels, "fa4": fa4_kernels}


def load_peer_file(peer: PeerFile) -> tuple[dict[str, Bind], str | None]:
    """KERNELS of the file and what its load() says about itself."""
    if not peer.path.is_file():
        raise BenchError(f"--peer {peer.name}: a file required, got {peer.path}, which does not exist")
    spec = importlib.util.spec_from_file_location(f"peer_{peer.name}", peer.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    description = module.load(peer.argument)
    return dict(module.KERNELS), None if description is None else str(description)


class Peers:
    """What can be measured beside vcattn; `missing` says why something cannot."""

    def __init__(self, torch: Any, files: list[PeerFile]):
        self.binds: dict[str, Bind] = {}
        self.descriptions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        given = {peer.name: peer for peer in files}
        for name in (*BUILT_IN_PEERS, *(name for name in given if name not in BUILT_IN_PEERS)):
            try:
                if name in given:
                    kernels, description = load_peer_file(given[name])
                    if description:
                        self.descriptions[name] = description
                else:
                    kernels = BUILT_IN_PEERS[name](torch)
            except Exception as error:  # whatever another project's code raises
                self.missing[name] = reason(error)
                continue
            for suffix, bind in kernels.items():
                self.binds[f"{name}_{suffix}" if suffix else name] = bind


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, BenchError) else f"{type(error).__name__}: {text[:300]}"


def gemm_kernel(torch: Any) -> Kernel:
    """The product of two E4M3 matrices, BF16 output, by cuBLAS."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)

    def matrix() -> Any:
        return torch.randn(GEMM_EXTENT, GEMM_EXTENT, device="cuda", generator=generator).to(torch.float8_e4m3fn)

    a, b, one = matrix(), matrix().t(), torch.ones((), device="cuda")
    return Kernel(GEMM, lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True),
                  2.0 * GEMM_EXTENT**3, attention=False)


# --- Inputs and exact attention -------------------------------------------------------------------------------------------------------


def make_inputs(torch: Any, case: Case) -> Inputs:
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    heads = torch.arange(case.num_heads, device="cuda") % DISTINCT_HEADS

    def normal(seqlen: int, mean: float) -> Any:
        x = torch.randn(seqlen, case.distinct_heads, HEAD_DIM, device="cuda", generator=generator)
        signs = torch.randint(0, 2, (case.distinct_heads, HEAD_DIM), device="cuda", generator=generator) * 2 - 1
        x = (x + mean * signs).to(torch.bfloat16)
        return (x if case.num_heads == case.distinct_heads else x[:, heads]).unsqueeze(0).contiguous()

    return Inputs(normal(case.seqlen_q, 0.0), normal(case.seqlen_kv, CHANNEL_MEAN), normal(case.seqlen_kv, CHANNEL_MEAN))


def evenly_spaced(extent: int, count: int) -> list[int]:
    """At most `count` of 0 .. extent - 1, both ends included."""
    if extent <= count:
        return list(range(extent))
    return [round(i * (extent - 1) / (count - 1)) for i in range(count)]


class Reference:
    """Exact attention in FP64 on some query rows of each distinct head."""

    def __init__(self, torch: Any, inputs: Inputs, case: Case):
        self._torch, self._case = torch, case
        self._rows = torch.tensor(evenly_spaced(case.seqlen_q, ACCURACY_ROWS), device="cuda")
        self._o, self._lse = [], []
        for head in range(case.distinct_heads):
            scores = inputs.q[0, self._rows, head].double() @ inputs.k[0, :, head].double().T / math.sqrt(HEAD_DIM)
            self._lse.append(scores.logsumexp(dim=-1))
            self._o.append(scores.softmax(dim=-1) @ inputs.v[0, :, head].double())

    def errors(self, o: Any) -> dict[str, Any]:
        """Relative L2 over all heads, and of the worst one."""
        expected_shape = (1, self._case.seqlen_q, self._case.num_heads, HEAD_DIM)
        if tuple(o.shape) != expected_shape:
            raise BenchError(f"output: shape {expected_shape} required, got {tuple(o.shape)}")
        wrong, exact = [], []
        for head in range(self._case.num_heads):
            expected = self._o[head % DISTINCT_HEADS]
            wrong.append((o[0, self._rows, head].double() - expected).square().sum())
            exact.append(expected.square().sum())
        wrong, exact = self._torch.stack(wrong), self._torch.stack(exact)
        return {"rel_l2": (wrong.sum() / exact.sum()).sqrt().item(), "rel_l2_worst_head": (wrong / exact).sqrt().max().item(),
                "finite": bool(self._torch.isfinite(o).all())}

    def lse_error(self, lse: Any) -> float:
        """Largest absolute error; lse [1, H, Sq]."""
        expected = self._torch.stack([self._lse[head % DISTINCT_HEADS] for head in range(self._case.num_heads)])
        return (lse[0, :, self._rows].double() - expected).abs().max().item()


# --- Timing ---------------------------------------------------------------------------------------------------------------------------


def samples_ms(torch: Any, kernel: Kernel, count: int, calls: int) -> list[float]:
    """Milliseconds per call. Nothing waits in between, so that the device always has the next call before it."""
    begins = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for begin, end in zip(begins, ends):
        begin.record()
        for _ in range(calls):
            kernel.call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / calls for begin, end in zip(begins, ends)]


def calibrate(torch: Any, kernel: Kernel) -> None:
    """How long a call takes, and how many make a sample. The first call loads the kernel."""
    kernel.call()
    torch.cuda.synchronize()
    kernel.seconds_estimate = max(min(samples_ms(torch, kernel, 3, 1)) * 1e-3, 1e-6)
    kernel.calls_per_sample = calls_per_sample(kernel.seconds_estimate)


def calls_per_sample(seconds: float) -> int:
    return 1 if seconds >= SHORT_SECONDS else math.ceil(SAMPLE_SECONDS / seconds)


def timed_block(torch: Any, kernel: Kernel, arguments: argparse.Namespace, clocks: ClockSampler, position: int) -> None:
    """Heats the device with the kernel itself, then takes its samples."""
    begin = time.perf_counter()
    for _ in range(math.ceil(arguments.seconds_per_kernel / kernel.seconds_estimate)):
        kernel.call()
    samples = samples_ms(torch, kernel, arguments.repeats, kernel.calls_per_sample)
    end = time.perf_counter()
    sampled_seconds = sum(samples) * kernel.calls_per_sample * 1e-3
    hot = max(begin, end - sampled_seconds - 0.5 * arguments.seconds_per_kernel)
    kernel.passes.append({"position": position, "median_ms": statistics.median(samples), "samples_ms": [round(sample, 6) for sample in samples],
                          "clocks": clocks.between(hot, end)})


def time_kernels(torch: Any, kernels: list[Kernel], arguments: argparse.Namespace, clocks: ClockSampler) -> None:
    for kernel in kernels:
        calibrate(torch, kernel)
    for number_of_pass, order in enumerate((kernels, kernels[::-1]), 1):
        begin = time.perf_counter()
        for position, kernel in enumerate(order):
            timed_block(torch, kernel, arguments, clocks, position)
        say(f"  pass {number_of_pass}: {len(order)} kernels in {time.perf_counter() - begin:.1f} s")


# --- Results --------------------------------------------------------------------------------------------------------------------------


def case_ratios(case_name: str, recipes: list[str], seconds: dict[str, float], tflops: dict[str, float]) -> dict[str, float]:
    """By name, as in HEADLINES. seconds and tflops: by kernel, of those that were measured."""
    ratios = {}
    for recipe in recipes:
        if recipe not in seconds:
            continue
        prefix = f"attention/{recipe}/{case_name}"
        for peer in (FA3, CUDNN):
            if peer in seconds:
                ratios[f"{prefix}/vs_{peer}"] = seconds[peer] / seconds[recipe]
        if GEMM in tflops:
            ratios[f"{prefix}/vs_{GEMM}"] = tflops[recipe] / tflops[GEMM]
        without_means = f"{recipe}:v_mean=off"
        if without_means in seconds:
            ratios[f"{prefix}/cost_of_means"] = 100.0 * (seconds[recipe] / seconds[without_means] - 1.0)
    return ratios


def merge_latest(path: Path, record_name: str, ratios: dict[str, float]) -> list[str]:
    """Replaces the headline ratios that were measured, keeps every other name, and returns those that were not measured."""
    merged = json.loads(path.read_text()) if path.exists() else {}
    measured = {name: {"value": ratios[name], "record": record_name} for name in HEADLINES if name in ratios}
    if measured:
        path.write_text(json.dumps(dict(sorted((merged | measured).items())), indent=2) + "\n")
    return [name for name in HEADLINES if name not in ratios]


def record_text(record: dict[str, Any]) -> str:
    """JSON with every list of numbers on one line."""
    return re.sub(r"\[\n\s+([-+.\deE,\s]+?)\n\s*\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", json.dumps(record, indent=2)) + "\n"


def kernel_record(kernel: Kernel) -> dict[str, Any]:
    return {"name": kernel.name, "median_ms": kernel.median_seconds * 1e3,
            "min_ms": min(sample for one in kernel.passes for sample in one["samples_ms"]),
            "max_ms": max(sample for one in kernel.passes for sample in one["samples_ms"]),
            "tflops": kernel.tflops, "calls_per_sample": kernel.calls_per_sample, **kernel.record, "passes": kernel.passes}


def table_lines(case_record: dict[str, Any]) -> list[str]:
    seconds = {kernel["name"]: kernel["median_ms"] for kernel in case_record["kernels"]}
    against, title = (FA3, "vs FA3") if FA3 in seconds else (CUDNN, "vs cuDNN")
    width = max([12, *(len(name) for name in seconds)])
    lines = [f"{case_record['case']}", f"  {'kernel':<{width}} {'ms':>9} {'TFLOP/s':>9} {title:>9} {'rel L2':>9} {'SM MHz':>7} {'W':>5}"]
    for kernel in case_record["kernels"]:
        ratio = f"{seconds[against] / kernel['median_ms']:.3f}" if against in seconds and "accuracy" in kernel else "-"
        rel_l2 = f"{100.0 * kernel['accuracy']['rel_l2']:.3f} %" if "accuracy" in kernel else "-"
        clocks = kernel["passes"][-1]["clocks"] or {}
        mhz, watts = (f"{clocks[key]:.0f}" if clocks.get(key) is not None else "-" for key in ("sm_clock_mhz", "power_w"))
        lines.append(f"  {kernel['name']:<{width}} {kernel['median_ms']:>9.4f} {kernel['tflops']:>9.1f} {ratio:>9} {rel_l2:>9} {mhz:>7} {watts:>5}")
    lines += [f"  {name}: {why}" for name, why in {**case_record["failed"], **case_record["missing"]}.items()]
    return lines


# --- The run --------------------------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, torch: Any, library: Library, arguments: argparse.Namespace, clocks: ClockSampler):
        self.torch, self.library, self.arguments, self.clocks = torch, library, arguments, clocks
        self.peers = Peers(torch, arguments.peers)
        self.record = conditions(torch, library, arguments)
        self.record |= {"peers": self.peers.descriptions, "missing": self.peers.missing, "cases": [], "ratios": {}}
        self.failures = 0

    def vcattn_kernels(self, case: Case, inputs: Inputs, failed: dict[str, str]) -> list[Kernel]:
        """Prepares on the CPU and copies; what cannot be served goes to `failed`."""
        host = [x.cpu() for x in inputs]
        kernels: list[Kernel] = []
        for recipe in self.arguments.recipes:
            begin = time.perf_counter()
            try:
                options = self.library.options(recipe, self.arguments.settings, self.arguments.threads)
                prepared = self.library.prepare(case, *(x.data_ptr() for x in host), options)
                try:
                    prepared_bytes = self.library.prepared_bytes(prepared)
                    on_device = self.library.to_cuda(prepared)
                finally:
                    self.library.destroy(prepared)
            except BenchError as error:
                failed[recipe.name] = reason(error)
                continue
            seconds = time.perf_counter() - begin
            kernel = VcattnKernel(self.torch, self.library, recipe.name, on_device, case)
            kernel.record = {"prepared_bytes": prepared_bytes, "prepare_and_copy_seconds": seconds,
                             "options": {name: getattr(options, name) for name, _ in Options._fields_ if name != "struct_size"}}
            kernels.append(kernel)
            say(f"  prepared {recipe.name} in {seconds:.1f} s")
        return kernels

    def peer_kernels(self, case: Case, inputs: Inputs, missing: dict[str, str]) -> list[Kernel]:
        kernels = []
        for name, bind in self.peers.binds.items():
            try:
                kernels.append(Kernel(name, bind(*inputs), case.operations))
            except Exception as error:  # whatever another project's code raises
                missing[name] = reason(error)
        try:
            kernels.append(gemm_kernel(self.torch))
        except (AttributeError, RuntimeError) as error:
            missing[GEMM] = reason(error)
        return kernels

    def check_kernels(self, kernels: list[Kernel], reference: Reference, failed: dict[str, str], missing: dict[str, str]) -> list[Kernel]:
        """Accuracy of each kernel. One that fails is named and not timed."""
        good = []
        for kernel in kernels:
            ours = isinstance(kernel, VcattnKernel)
            try:
                if kernel.attention:
                    kernel.record["accuracy"] = kernel.accuracy(self.torch, reference)
                    if not kernel.record["accuracy"]["finite"]:
                        raise BenchError("output: finite values everywhere required, got NaN or infinity")
                else:
                    kernel.call()
                    self.torch.cuda.synchronize()
                good.append(kernel)
            except Exception as error:
                (failed if ours else missing)[kernel.name] = reason(error)
                kernel.close()
        return good

    def case(self, case: Case) -> None:
        say(f"{case.name}: seqlen_q {case.seqlen_q}, seqlen_kv {case.seqlen_kv}, {case.num_heads} heads")
        failed: dict[str, str] = {}
        missing: dict[str, str] = {}
        inputs = make_inputs(self.torch, case)
        reference = Reference(self.torch, inputs, case)
        kernels = self.vcattn_kernels(case, inputs, failed) + self.peer_kernels(case, inputs, missing)
        kernels = self.check_kernels(kernels, reference, failed, missing)
        say(f"  {len(kernels)} kernels checked against exact attention")
        try:
            time_kernels(self.torch, kernels, self.arguments, self.clocks)
        finally:
            for kernel in kernels:
                kernel.close()
        ratios = case_ratios(case.name, [recipe.name for recipe in self.arguments.recipes], {k.name: k.median_seconds for k in kernels},
                             {k.name: k.tflops for k in kernels})
        self.failures += len(failed)
        self.record["cases"].append({"case": case.name, "seqlen_q": case.seqlen_q, "seqlen_kv": case.seqlen_kv, "num_heads": case.num_heads,
                                     "kernels": [kernel_record(kernel) for kernel in kernels], "failed": failed, "missing": missing,
                                     "ratios": ratios})
        self.record["ratios"] |= ratios
        self.write()

    def write(self) -> None:
        """After each case, so that a later one cannot lose it."""
        if self.arguments.json:
            self.arguments.json.write_text(record_text(self.record))

    def report(self) -> None:
        record = self.record
        say(f"\n{record['device']}, driver {record['driver']}, CUDA {record['cuda']}, torch {record['torch']}, vcattn {record['vcattn']}; "
            f"medians of {2 * self.arguments.repeats} samples")
        for case_record in record["cases"]:
            say("\n".join(table_lines(case_record)))
        for name, why in record["missing"].items():
            say(f"not measured: {name}: {why}")
        for name, value in record["ratios"].items():
            if name in HEADLINES:
                say(f"{name} = {value:.3f}")
        if self.arguments.latest:
            for name in merge_latest(self.arguments.latest, self.arguments.json.name, record["ratios"]):
                say(f"{self.arguments.latest}: {name} was not measured and stays as it is")


def import_torch(library: Library) -> Any:
    """PyTorch with a usable device, which the library can use too."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken installation raises OSError and others
        raise BenchError(f"PyTorch with CUDA required, got {reason(error)}; install the package torch") from error
    if not torch.cuda.is_available():
        raise BenchError(f"a CUDA device required, PyTorch {torch.__version__} finds none; run on a machine with a GPU and its driver")
    torch.cuda.init()
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    why_not = library.cuda_unavailable_reason()
    if why_not:
        raise BenchError(f"a device that vcattn has kernels for required: {why_not}")
    return torch


def measure(arguments: argparse.Namespace) -> int:
    library = Library(find_library(arguments.lib))
    for recipe in arguments.recipes:  # misspelt names, before the long work
        library.options(recipe, arguments.settings, arguments.threads)
    torch = import_torch(library)
    clocks = ClockSampler(gpu_id(torch))
    try:
        with torch.no_grad():
            run = Run(torch, library, arguments, clocks)
            for name, why in run.peers.missing.items():
                say(f"missing: {name}: {why}")
            for case in arguments.cases:
                run.case(case)
                torch.cuda.empty_cache()
    finally:
        clocks.close()
    run.report()
    return 1 if run.failures else 0


def main(arguments: list[str] | None = None) -> int:
    try:
        return measure(parse_arguments(arguments))
    except BenchError as error:
        print(f"attention_cuda: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
