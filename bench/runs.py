"""What the benchmarks on a CUDA device share around the measurements: arguments, conditions, records, the run."""

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

from kernels import SEED, Case, ClockSampler, Kernel, gpu_id, nvidia_smi, reason, say, time_kernels
from peers import CUDNN, FA3, Peers, parse_peer
from vcattn_abi import HEAD_DIM, BenchError, Library, Recipe

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("build/cuda/src/libvcattn.so", "build/release/src/libvcattn.so")

FEWEST_REPEATS = 10


# --- Arguments ------------------------------------------------------------------------------------------------------------------------


def parse_case(option: str, text: str) -> Case:
    parts = text.split("x")
    if len(parts) not in (2, 3) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BenchError(f"{option}: SQxH or SQxSKxH with numbers above 0 required, got '{text}'; for example 75600x8 or 512x75600x8")
    numbers = [int(part) for part in parts]
    return Case(text, numbers[0], numbers[-2], numbers[-1])


def parse_setting(option: str, text: str) -> str:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise BenchError(f"{option}: KEY=VALUE required, got '{text}'; `vcattn info --json` lists keys and values")
    return text


def parse_recipe(option: str, text: str) -> Recipe:
    base, *settings = text.split(":")
    if not base:
        raise BenchError(f"{option}: NAME or NAME:KEY=VALUE required, got '{text}'; for example vc8 or vc8:v_mean=off")
    return Recipe(text, base, tuple(parse_setting(option, setting) for setting in settings))


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


def argument_parser(description: str) -> argparse.ArgumentParser:
    """With what every benchmark can be told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FILE.py[:ARG]", help="kernels of another project; may be repeated")
    parser.add_argument("--repeats", type=int, default=20, metavar="N",
                        help=f"samples per kernel and pass, at least {FEWEST_REPEATS}; default %(default)s")
    parser.add_argument("--seconds-per-kernel", type=float, default=0.3, metavar="S",
                        help="back-to-back calls of a kernel before its samples; default %(default)s")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of work on the CPU; default: all cores")
    parser.add_argument("--lib", type=Path, metavar="PATH", help=f"libvcattn.so; default: the first of {', '.join(LIBRARIES)}")
    parser.add_argument("--commit", help="for the record; default: git rev-parse HEAD")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole record")
    parser.add_argument("--latest", type=Path, metavar="FILE", help="merge the headline ratios into this file; needs --json")
    return parser


def require_files(option: str, paths: list[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise BenchError(f"{option}: an existing file required, {path} is none; write it, or leave it out")


def check_arguments(parsed: argparse.Namespace) -> None:
    """What argument_parser() has added; texts become what they stand for."""
    if parsed.repeats < FEWEST_REPEATS:
        raise BenchError(f"--repeats: at least {FEWEST_REPEATS} required, got {parsed.repeats}")
    if not 0 <= parsed.seconds_per_kernel <= 60:
        raise BenchError(f"--seconds-per-kernel: 0 to 60 required, got {parsed.seconds_per_kernel}")
    if parsed.threads < 0:
        raise BenchError(f"--threads: 0 (all cores) or more required, got {parsed.threads}")
    if parsed.latest and not parsed.json:
        raise BenchError("--latest: --json FILE required beside it, got none; the ratios name the record that they come from")
    for path in (parsed.json, parsed.latest):
        if path and path.is_dir():
            raise BenchError(f"{path}: a file required, this is a folder; name a file in it")
        if path and not path.parent.is_dir():
            raise BenchError(f"{path}: an existing folder required, {path.parent} is none; create it")
    parsed.peers = unique("--peer", [parse_peer(text) for text in parsed.peer])
    require_files("--peer", [peer.path for peer in parsed.peers])


def parse_cases(option: str, text: str) -> list[Case]:
    return unique(option, [parse_case(option, part) for part in text.split(",")])


def parse_recipes(option: str, text: str) -> list[Recipe]:
    return unique(option, [parse_recipe(option, part) for part in text.split(",")])


# --- Conditions -----------------------------------------------------------------------------------------------------------------------


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


def conditions(torch: Any, library: Library, arguments: argparse.Namespace) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    limits = nvidia_smi(gpu_id(torch), "driver_version,power.limit,clocks.max.sm,persistence_mode") or [None] * 4
    status = git("status", "--porcelain", "--untracked-files=no")
    return {
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
            "head_dim": HEAD_DIM,
            "batch": 1,
            "causal": False,
            "seed": SEED,
        },
    }


# --- Results --------------------------------------------------------------------------------------------------------------------------


def merge_latest(path: Path, record_name: str, headlines: tuple[str, ...], ratios: dict[str, float]) -> list[str]:
    """Replaces the headline ratios that were measured, keeps every other name, and returns those that were not measured."""
    merged = json.loads(path.read_text()) if path.exists() else {}
    measured = {name: {"value": ratios[name], "record": record_name} for name in headlines if name in ratios}
    if measured:
        path.write_text(json.dumps(dict(sorted((merged | measured).items())), indent=2) + "\n")
    return [name for name in headlines if name not in ratios]


def record_text(record: dict[str, Any]) -> str:
    """JSON with every list of numbers on one line."""
    return re.sub(r"\[\n\s+([-+.\deE,\s]+?)\n\s*\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", json.dumps(record, indent=2)) + "\n"


def kernel_record(kernel: Kernel) -> dict[str, Any]:
    return {"name": kernel.name, "median_ms": kernel.median_seconds * 1e3,
            "min_ms": min(sample for one in kernel.passes for sample in one["samples_ms"]),
            "max_ms": max(sample for one in kernel.passes for sample in one["samples_ms"]),
            **({"tflops": kernel.tflops} if kernel.operations else {}),
            **({"terabytes_per_second": kernel.terabytes_per_second, "bytes_moved": kernel.bytes_moved} if kernel.bytes_moved else {}),
            "calls_per_sample": kernel.calls_per_sample, **kernel.record, "passes": kernel.passes}


def clocks_text(kernel: dict[str, Any]) -> str:
    """SM clock and power of a kernel's record, of its last pass."""
    clocks = kernel["passes"][-1]["clocks"] or {}
    mhz, watts = (f"{clocks[key]:.0f}" if clocks.get(key) is not None else "-" for key in ("sm_clock_mhz", "power_w"))
    return f"{mhz:>7} {watts:>5}"


def vs_peers(prefix: str, name: str, seconds: dict[str, float]) -> dict[str, float]:
    """Times of the BF16 kernels over that of `name`. seconds: by kernel, of those that were measured."""
    return {f"{prefix}/vs_{peer}": seconds[peer] / seconds[name] for peer in (FA3, CUDNN) if peer in seconds}


def attention_lines(case_record: dict[str, Any]) -> list[str]:
    seconds = {kernel["name"]: kernel["median_ms"] for kernel in case_record["kernels"]}
    against, title = (FA3, "vs FA3") if FA3 in seconds else (CUDNN, "vs cuDNN")
    width = max([12, *(len(name) for name in seconds)])
    lines = [case_record["case"], f"  {'kernel':<{width}} {'ms':>9} {'TFLOP/s':>9} {title:>9} {'rel L2':>9} {'SM MHz':>7} {'W':>5}"]
    for kernel in case_record["kernels"]:
        ratio = f"{seconds[against] / kernel['median_ms']:.3f}" if against in seconds and "accuracy" in kernel else "-"
        rel_l2 = f"{100.0 * kernel['accuracy']['rel_l2']:.3f} %" if "accuracy" in kernel else "-"
        lines.append(f"  {kernel['name']:<{width}} {kernel['median_ms']:>9.4f} {kernel['tflops']:>9.1f} {ratio:>9} {rel_l2:>9} "
                     f"{clocks_text(kernel)}")
    return lines


# --- The run --------------------------------------------------------------------------------------------------------------------------


class Run:
    """One process and one record. A benchmark says what it measures (measure), and how a case's record reads (lines)."""

    kind = ""
    notes: dict[str, str] = {}
    headlines: tuple[str, ...] = ()
    peer_kernels: tuple[str, ...] | None = None  # None: all

    def __init__(self, torch: Any, library: Library, arguments: argparse.Namespace, clocks: ClockSampler):
        self.torch, self.library, self.arguments, self.clocks = torch, library, arguments, clocks
        self.peers = Peers(torch, arguments.peers, self.peer_kernels)
        self.record = {"kind": self.kind, **conditions(torch, library, arguments), "notes": self.notes, "peers": self.peers.descriptions,
                       "missing": self.peers.missing, "cases": [], "ratios": {}}
        self.failures = 0

    def measure(self) -> None:
        raise NotImplementedError

    def time(self, kernels: list[Kernel]) -> None:
        """And closes them."""
        try:
            time_kernels(self.torch, kernels, self.arguments, self.clocks)
        finally:
            for kernel in kernels:
                kernel.close()

    def lines(self, case_record: dict[str, Any]) -> list[str]:
        raise NotImplementedError

    def add(self, case_record: dict[str, Any]) -> None:
        """Written after each case, so that a later one cannot lose it."""
        self.failures += len(case_record["failed"])
        self.record["cases"].append(case_record)
        self.record["ratios"] |= case_record["ratios"]
        if self.arguments.json:
            self.arguments.json.write_text(record_text(self.record))

    def report(self) -> None:
        record = self.record
        say(f"\n{record['device']}, driver {record['driver']}, CUDA {record['cuda']}, torch {record['torch']}, vcattn {record['vcattn']}; "
            f"medians of {2 * self.arguments.repeats} samples")
        for case_record in record["cases"]:
            say("\n".join(self.lines(case_record)))
            for name, why in {**case_record["failed"], **case_record["missing"]}.items():
                say(f"  {name}: {why}")
        for name, why in record["missing"].items():
            say(f"not measured: {name}: {why}")
        for name, value in record["ratios"].items():
            if name in self.headlines:
                say(f"{name} = {value:.3f}")
        if self.arguments.latest:
            for name in merge_latest(self.arguments.latest, self.arguments.json.name, self.headlines, record["ratios"]):
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


def run_benchmark(kind: type[Run], library: Library, arguments: argparse.Namespace) -> int:
    """Exit status: 1 where something of this library failed."""
    torch = import_torch(library)
    clocks = ClockSampler(gpu_id(torch))
    try:
        with torch.no_grad():
            run = kind(torch, library, arguments, clocks)
            for name, why in run.peers.missing.items():
                say(f"missing: {name}: {why}")
            run.measure()
    finally:
        clocks.close()
    run.report()
    return 1 if run.failures else 0


def main(name: str, measure: Callable[[], int]) -> int:
    try:
        return measure()
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
