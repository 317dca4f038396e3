"""What is measured on a CUDA device, and how: inputs, exact attention, kernels, clocks, timing."""

import argparse
import ctypes
import math
import os
import pty
import statistics
import subprocess
import threading
import time
from typing import Any, Callable, NamedTuple

from vcattn_abi import BF16, CUDA, F32, HEAD_DIM, BenchError, Call, Library, Output, output_struct, versioned

DISTINCT_HEADS = 8  # head h of a case has the data of head h % 8
CHANNEL_MEAN = 0.5  # of V and K, with a random sign per head and channel
SEED = 20260915

SHORT_SECONDS = 0.5e-3   # a call below this is timed together with further ones
SAMPLE_SECONDS = 2.0e-3  # that fill about this long
CLOCK_PERIOD_MS = 50
ACCURACY_ROWS = 128

TIMED_NOTE = ("Every kernel is called back to back for warm_seconds, then `repeats` samples follow without a pause, by CUDA events around each; "
              f"samples of calls below {SHORT_SECONDS * 1e3} ms are means over calls_per_sample calls. All kernels of a case take turns, in two "
              "passes of opposite order; medians are over the samples of both")
ACCURACY_NOTE = (f"against exact attention in FP64 of the same BF16 inputs, {ACCURACY_ROWS} evenly spaced query rows of every head, buffers "
                 "filled with NaN before. With these inputs an output is the channel mean and little else, so that rounding it to BF16 is a "
                 "large part of rel_l2; rel_l2_f32_output is the same kernel with FP32 output")
CLOCKS_NOTE = "as nvidia-smi reported them during the samples of the kernel and half of warm_seconds before; information only"


def say(text: str = "") -> None:
    print(text, flush=True)


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, BenchError) else f"{type(error).__name__}: {text[:300]}"


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


# --- Clocks ---------------------------------------------------------------------------------------------------------------------------


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


def gpu_id(torch: Any) -> str:
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}" if uuid else "0"


# --- Kernels --------------------------------------------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """BF16 on the device, contiguous [1, S, H, HEAD_DIM]."""
    q: Any
    k: Any
    v: Any


class Kernel:
    """`call()` enqueues the kernel on the current stream."""

    ours = False

    def __init__(self, name: str, call: Callable[[], Any], operations: float = 0.0, bytes_moved: int = 0, attention: bool = True):
        """operations, bytes_moved: what a rate counts; 0: no such rate. attention: call() gives O [1, Sq, H, HEAD_DIM]."""
        self.name, self.call, self.operations, self.bytes_moved, self.attention = name, call, operations, bytes_moved, attention
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

    @property
    def terabytes_per_second(self) -> float:
        return self.bytes_moved / self.median_seconds * 1e-12


def cuda_call(torch: Any) -> Call:
    where = versioned(Call)
    where.device, where.stream = CUDA, torch.cuda.current_stream().cuda_stream
    return where


class VcattnKernel(Kernel):
    """Attention of this library. Timed calls write BF16 and no log-sum-exp."""

    ours = True

    def __init__(self, torch: Any, library: Library, name: str, case: Case):
        super().__init__(name, self._timed, case.operations)
        self._library, self._case, self._where = library, case, cuda_call(torch)
        self._o = torch.empty(1, case.seqlen_q, case.num_heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        self._output = output_struct(self._o.data_ptr(), BF16, None, case.seqlen_q, case.num_heads)

    def enqueue(self, output: Output) -> None:
        raise NotImplementedError

    def _timed(self) -> Any:
        self.enqueue(self._output)
        return self._o

    def accuracy(self, torch: Any, reference: "Reference") -> dict[str, Any]:
        """Also with FP32 output and log-sum-exp, which the timed calls do not write."""
        errors = super().accuracy(torch, reference)
        o = torch.full(self._o.shape, math.nan, dtype=torch.float32, device="cuda")
        lse = torch.full((1, self._case.num_heads, self._case.seqlen_q), math.nan, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        self.enqueue(output_struct(o.data_ptr(), F32, lse.data_ptr(), self._case.seqlen_q, self._case.num_heads))
        torch.cuda.synchronize()
        in_f32 = reference.errors(o)
        return {**errors, "rel_l2_f32_output": in_f32["rel_l2"], "lse_max_error": reference.lse_error(lse),
                "finite": errors["finite"] and in_f32["finite"] and bool(torch.isfinite(lse).all())}


class PreparedAttention(VcattnKernel):
    """On a prepared problem, which it destroys in the end."""

    def __init__(self, torch: Any, library: Library, name: str, on_device: ctypes.c_void_p, case: Case):
        super().__init__(torch, library, name, case)
        self._on_device = on_device

    def enqueue(self, output: Output) -> None:
        self._library.call("vcattn_attention", self._on_device, ctypes.byref(output), None, 0, ctypes.byref(self._where))

    def close(self) -> None:
        self._library.destroy(self._on_device)


def check_kernels(torch: Any, kernels: list[Kernel], reference: "Reference | None", failed: dict[str, str],
                  missing: dict[str, str]) -> list[Kernel]:
    """reference: None where none is attention. Those that run and, as attention, give finite values, with their accuracy. One that does not is named and closed."""
    good = []
    for kernel in kernels:
        try:
            if kernel.attention:
                kernel.record["accuracy"] = kernel.accuracy(torch, reference)
                if not kernel.record["accuracy"]["finite"]:
                    raise BenchError("output: finite values everywhere required, got NaN or infinity")
            else:
                kernel.call()
                torch.cuda.synchronize()
            good.append(kernel)
        except Exception as error:  # whatever another project's code raises
            (failed if kernel.ours else missing)[kernel.name] = reason(error)
            kernel.close()
    return good


# --- Inputs and exact attention -------------------------------------------------------------------------------------------------------


def make_inputs(torch: Any, case: Case, value_structure: Callable[[Any], Any] | None = None) -> Inputs:
    """value_structure: gets the generator, gives what is added to V, [seqlen_kv, distinct_heads, HEAD_DIM]."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    heads = torch.arange(case.num_heads, device="cuda") % DISTINCT_HEADS

    def normal(seqlen: int, mean: float, structure: Callable[[Any], Any] | None = None) -> Any:
        x = torch.randn(seqlen, case.distinct_heads, HEAD_DIM, device="cuda", generator=generator)
        signs = torch.randint(0, 2, (case.distinct_heads, HEAD_DIM), device="cuda", generator=generator) * 2 - 1
        x = x + mean * signs
        if structure is not None:
            x = x + structure(generator)
        x = x.to(torch.bfloat16)
        return (x if case.num_heads == case.distinct_heads else x[:, heads]).unsqueeze(0).contiguous()

    return Inputs(normal(case.seqlen_q, 0.0), normal(case.seqlen_kv, CHANNEL_MEAN), normal(case.seqlen_kv, CHANNEL_MEAN, value_structure))


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
