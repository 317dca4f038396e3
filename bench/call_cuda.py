#!/usr/bin/env python3
"""Speed of preparation, grouping and the complete call (BF16 tensors to BF16 output) on a CUDA device, in one process and one run.

    bench/call_cuda.py                                                   # everything
    bench/call_cuda.py --json call_h200.json --latest bench/records/latest.json
    bench/call_cuda.py --peer fa3=my_fa3.py:my_fa3.so                    # FlashAttention-3 from elsewhere, see bench/README.md

Needs libvcattn.so built with CUDA, and PyTorch with CUDA. Cases are SQxH or SQxSKxH (seqlen_q, seqlen_kv, heads); head_dim 128, batch 1,
not causal. Recipes are NAME or NAME:KEY=VALUE[:KEY=VALUE...]. bench/README.md says what is timed, and how.
"""

import argparse
import contextlib
import ctypes
import json
import math
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import runs
from kernels import (ACCURACY_NOTE, CHANNEL_MEAN, CLOCKS_NOTE, DISTINCT_HEADS, TIMED_NOTE, Case, Inputs, Kernel, PreparedAttention,
                     Reference, VcattnKernel, calibrate, check_kernels, cuda_call, make_inputs, reason, say)
from peers import CUDNN, FA3
from runs import (ROOT, attention_lines, clocks_text, find_library, kernel_record, parse_case, parse_cases, parse_recipe, parse_recipes,
                  vs_peers)
from vcattn_abi import (BF16, CUDA, HEAD_DIM, ROPE_INTERLEAVED, BenchError, Call, Grouping, Library, Options, Output, Problem, Recipe, Rope,
                        Tensor, problem_struct, tensor, versioned)

STAGE_CASE = "75600x40"
STAGE_RECIPES = "vc8s,vsmooth8s,vc8,vc8:rounding=nearest"
CALL_CASES = "75600x8,32760x12"
CALL_RECIPES = "vc8,vc8s"
CAPTURE = ROOT / "data/wan_nano_2k_s10_l5.safetensors"

UNFUSED_RECIPE = "vc8s"                     # what bench/unfused.py computes
ATTENTION_RECIPE = "vc8:rounding=nearest"   # rounding changes neither the instructions nor the bytes of the attention kernel
GROUPING_RECIPE = "vc8s"
CLUSTERS = 64
MEAN_BLOCK = 128
ENERGY_HEADS = 4
LEAST_EQUAL_CODES = 0.999
ROPE_BASE = 10000.0

# Values: SCENE_LABELS kinds of content, each with its own mean, in regions of a video of this latent size (frames, height, width).
VIDEO_GRIDS = {75600: (21, 45, 80), 32760: (21, 30, 52)}
SCENE_LABELS = 96
SCENE_SPREAD = 0.8  # standard deviation of the means of labels
REGION_EXTENT = 8   # of a region along each side, about

HEADLINES = (
    f"prepare/{STAGE_CASE}/vs_copy", f"prepare/{STAGE_CASE}/vs_unfused", f"group/{STAGE_CASE}/share_of_attention",
    "call/vc8/75600x8/vs_fa3_bf16", "call/vc8/32760x12/vs_fa3_bf16",
)

NOTES = {
    "inputs": f"independent N(0, 1) in BF16, K and V with a mean of +-{CHANNEL_MEAN} per head and channel; V in addition with a mean of "
              f"standard deviation {SCENE_SPREAD} per head, channel and label, {SCENE_LABELS} labels in irregular regions of a video "
              f"(75,600 tokens = 21 x 45 x 80, 32,760 = 21 x 30 x 52); at most {DISTINCT_HEADS} distinct heads, head h holds the data of"
              f" head h % {DISTINCT_HEADS}; all kernels get the same q, k, v",
    "permutation": f"by vcattn_group() on the device, {CLUSTERS} clusters, chain_sorted order, a cold start and a warm one; "
                   f"energy_removed is the share of V's energy that means of {MEAN_BLOCK} rows remove, over {ENERGY_HEADS} heads, and on"
                   " a capture of a video DiT",
    "timed": TIMED_NOTE,
    "copy": "PyTorch's copy_ of device memory, as many bytes read and written as a preparation must move",
    "prepare": "vcattn_prepare() with a permutation that is reused, storage and workspace of the caller; `rope`: with interleaved "
               "rotary tables over all channels. Bytes: each element of Q, K and V read once (2) and written once (1). vs_copy: their "
               "rate over that of the copy",
    "unfused": f"bench/unfused.py: the preparation of {UNFUSED_RECIPE} by PyTorch's operations, eager, Hadamard by FP32 product or "
               "butterflies, whichever is faster, without the score bounds that only FP16 scores need; compared only where "
               f"{LEAST_EQUAL_CODES:.1%} of its codes equal vcattn's; vs_unfused, vs_compiled: its time, eager and by torch.compile, "
               "over that of vcattn",
    "group": f"vcattn_group(), warm, 1 iteration, {CLUSTERS} clusters; `automatic`: as many as the library chooses; share_of_attention: "
             f"its time over that of the attention kernel of {ATTENTION_RECIPE.partition(':')[0]} on the same inputs",
    "call": "vcattn_attend() with a permutation that is reused, `regrouped`: after a warm vcattn_group(); no log-sum-exp. Everything "
            "from BF16 tensors to BF16 output; peers are attention kernels in BF16, which need no preparation. vs_X: time of X / time "
            "of the call",
    "extra_memory": "workspace of a complete call, which holds the prepared problem too, over the bytes of Q, K and V at 8 bits; the "
                    "state (permutation and centroids) is not part of it",
    "accuracy": ACCURACY_NOTE,
    "clocks": CLOCKS_NOTE,
}


# --- Arguments ------------------------------------------------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = runs.argument_parser(__doc__)
    parser.add_argument("--stage-case", default=STAGE_CASE, metavar="CASE", help="of copy, prepare, unfused, group; default %(default)s")
    parser.add_argument("--stage-recipes", default=STAGE_RECIPES, metavar="A,B,...",
                        help=f"that are prepared, {UNFUSED_RECIPE} among them; default %(default)s")
    parser.add_argument("--cases", default=CALL_CASES, metavar="A,B,...", help="of complete calls; default %(default)s")
    parser.add_argument("--recipes", default=CALL_RECIPES, metavar="A,B,...", help="of complete calls; default %(default)s")
    parser.add_argument("--capture", type=Path, default=CAPTURE, metavar="FILE",
                        help="safetensors with v [1, S, H, 128] in BF16; default %(default)s")
    parser.add_argument("--compile-seconds", type=int, default=60, metavar="S",
                        help="that torch.compile may take; 0: is not tried; default %(default)s")
    parsed = parser.parse_args(arguments)
    runs.check_arguments(parsed)
    if parsed.compile_seconds < 0:
        raise BenchError(f"--compile-seconds: 0 or more required, got {parsed.compile_seconds}")
    parsed.stage_case = parse_case("--stage-case", parsed.stage_case)
    parsed.stage_recipes = parse_recipes("--stage-recipes", parsed.stage_recipes)
    if UNFUSED_RECIPE not in [recipe.name for recipe in parsed.stage_recipes]:
        raise BenchError(f"--stage-recipes: {UNFUSED_RECIPE} among them required, got none; it is what unfused steps are compared with")
    parsed.cases = parse_cases("--cases", parsed.cases)
    parsed.recipes = parse_recipes("--recipes", parsed.recipes)
    runs.require_files("--capture", [parsed.capture])
    return parsed


# --- Inputs ---------------------------------------------------------------------------------------------------------------------------


def video_grid(seqlen: int) -> tuple[int, int, int]:
    return VIDEO_GRIDS.get(seqlen, (1, 1, seqlen))


def scene_values(torch: Any, case: Case, generator: Any) -> Any:
    """Mean of every token's label, [seqlen_kv, distinct_heads, HEAD_DIM]. The label says which of smooth random fields is largest."""
    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=generator.device, generator=generator)

    grid = video_grid(case.seqlen_kv)
    coarse = normal(1, SCENE_LABELS, *(math.ceil(extent / REGION_EXTENT) for extent in grid))
    labels = torch.nn.functional.interpolate(coarse, size=grid, mode="trilinear")[0].flatten(1).argmax(0)
    return SCENE_SPREAD * normal(SCENE_LABELS, case.distinct_heads, HEAD_DIM)[labels]


def captured_values(torch: Any, path: Path) -> Any:
    """Tensor `v` of a safetensors file."""
    data = path.read_bytes()
    header_bytes = struct.unpack_from("<Q", data)[0]
    entry = json.loads(data[8:8 + header_bytes]).get("v")
    if entry is None or entry["dtype"] != "BF16" or len(entry["shape"]) != 4 or entry["shape"][0] != 1 or entry["shape"][3] != HEAD_DIM:
        raise BenchError(f"--capture: v [1, S, H, {HEAD_DIM}] in BF16 required, got {entry} in {path}; pass another file")
    begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
    return torch.frombuffer(bytearray(data[begin:end]), dtype=torch.bfloat16).view(entry["shape"])


def rotary_tables(torch: Any, rows: int) -> tuple[Any, Any]:
    frequencies = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
    angles = torch.arange(rows, device="cuda")[:, None] * frequencies
    return angles.cos().contiguous(), angles.sin().contiguous()


# --- What is called -------------------------------------------------------------------------------------------------------------------


class State:
    """Permutation and centroids of V on the device."""

    def __init__(self, torch: Any, library: Library, v: Any, clusters: int):
        """clusters: 0 for as many as the library chooses."""
        _, seqlen, num_heads, _ = v.shape
        self._library, self._v = library, v
        self._options = library.options(Recipe(GROUPING_RECIPE, GROUPING_RECIPE, ()), (f"clusters={clusters}", "order=chain_sorted"), 0)
        self.permutation = torch.empty(num_heads, seqlen, dtype=torch.int32, device=v.device)
        self._grouping = versioned(Grouping)
        self._grouping.v = tensor(Tensor, v.data_ptr(), BF16, seqlen, num_heads)
        count = ctypes.c_int32()
        library.call("vcattn_group_clusters", ctypes.byref(self._grouping), ctypes.byref(self._options), CUDA, ctypes.byref(count))
        self.clusters = count.value
        self._centroids = torch.empty(num_heads, self.clusters, HEAD_DIM, device=v.device)
        self._grouping.permutation, self._grouping.permutation_count = self.permutation.data_ptr(), self.permutation.numel()
        self._grouping.centroids, self._grouping.centroids_count = self._centroids.data_ptr(), self._centroids.numel()
        self.workspace_bytes = library.size("vcattn_group_workspace_size", ctypes.byref(self._grouping), ctypes.byref(self._options), CUDA)

    def group(self, call: Call) -> None:
        """The first time cold, then warm, from its own centroids."""
        self._library.call("vcattn_group", ctypes.byref(self._grouping), ctypes.byref(self._options), ctypes.byref(call))
        self._grouping.warm_centroids, self._grouping.warm_centroids_count = self._grouping.centroids, self._grouping.centroids_count

    def energy_removed(self, heads: int, sorted_order: bool) -> float:
        """Of the first heads, by the CPU; mean over them."""
        v = self._v[:, :, :heads].contiguous().cpu()
        permutation = self.permutation[:heads].contiguous().cpu() if sorted_order else None
        energy = (ctypes.c_double * heads)()
        order = (permutation.data_ptr(), permutation.numel()) if sorted_order else (None, 0)
        on_host = tensor(Tensor, v.data_ptr(), BF16, v.shape[1], heads)
        self._library.call("vcattn_value_energy_removed", ctypes.byref(on_host), *order, MEAN_BLOCK, None, 0, energy, heads)
        return sum(energy) / heads

    def energies(self, heads: int) -> dict[str, float]:
        return {"sequence": self.energy_removed(heads, False), "grouped": self.energy_removed(heads, True)}


def grouped_state(torch: Any, library: Library, v: Any, clusters: int = CLUSTERS) -> State:
    """After a cold start and a warm one; every row must be there once."""
    state = State(torch, library, v, clusters)
    for _ in range(2):
        state.group(cuda_call(torch))
    if not bool((state.permutation.sort(dim=1).values == torch.arange(v.shape[1], device=v.device)).all()):
        raise BenchError("vcattn_group(): a permutation of the rows of every head required, got rows that are missing")
    return state


def rope_struct(tables: tuple[Any, Any]) -> Rope:
    """Of the tables, which must stay alive."""
    rope = versioned(Rope)
    rope.style, rope.rows, rope.rotary_dim = ROPE_INTERLEAVED, tables[0].shape[0], HEAD_DIM
    rope.cos, rope.sin = (table.data_ptr() for table in tables)
    return rope


def problem_of(case: Case, inputs: Inputs, permutation: Any, rope: Rope | None = None) -> Problem:
    """`rope` must stay alive."""
    problem = problem_struct(*(x.data_ptr() for x in inputs), case.seqlen_q, case.seqlen_kv, case.num_heads)
    problem.permutation, problem.permutation_count = permutation.data_ptr(), permutation.numel()
    if rope is not None:
        problem.rope = ctypes.addressof(rope)
    return problem


def options_record(options: Options) -> dict[str, int]:
    return {name: getattr(options, name) for name, _ in Options._fields_ if name != "struct_size"}


class Served(NamedTuple):
    """A recipe that preparation serves."""
    recipe: Recipe
    options: Options
    prepared_bytes: int
    workspace_bytes: int


def served(library: Library, recipes: list[Recipe], problem: Problem, threads: int, failed: dict[str, str]) -> list[Served]:
    """What is not served goes to `failed`."""
    good = []
    for recipe in recipes:
        options = library.options(recipe, (), threads)
        why_not = library.unsupported_call_reason(problem, options)
        if why_not:
            failed[recipe.name] = why_not
            continue
        arguments = (ctypes.byref(problem), ctypes.byref(options))
        good.append(Served(recipe, options, library.size("vcattn_prepared_size", *arguments),
                           library.size("vcattn_call_workspace_size", *arguments, CUDA)))
    return good


def device_bytes(torch: Any, size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def call_with(torch: Any, workspace: Any) -> Call:
    """The workspace, device_bytes(), must stay alive."""
    call = cuda_call(torch)
    call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
    return call


class Preparation(Kernel):
    ours = True

    def __init__(self, torch: Any, library: Library, name: str, problem: Problem, recipe: Served, storage: Any, workspace: Any,
                 bytes_moved: int):
        super().__init__(name, self._prepare, bytes_moved=bytes_moved, attention=False)
        self._library, self._problem, self._recipe, self._storage, self._workspace = library, problem, recipe, storage, workspace
        self._where = call_with(torch, workspace)
        self.record = {"options": options_record(recipe.options)}

    def _prepare(self) -> None:
        """The storage keeps what the handle, destroyed at once, stood for."""
        storage = (self._storage.data_ptr(), self._storage.numel())
        self._library.destroy(self._library.prepare(self._problem, self._recipe.options, storage, self._where))

    def slab(self) -> Any:
        self._prepare()
        return self._storage[:self._recipe.prepared_bytes].clone()


class Regrouping(Kernel):
    ours = True

    def __init__(self, torch: Any, name: str, state: State):
        super().__init__(name, lambda: state.group(self._where), attention=False)
        self.record = {"clusters": state.clusters}
        self._memory = device_bytes(torch, state.workspace_bytes)
        self._where = call_with(torch, self._memory)


class CompleteCall(VcattnKernel):
    """regroup: groups anew first."""

    def __init__(self, torch: Any, library: Library, name: str, case: Case, inputs: Inputs, state: State, recipe: Served, regroup: bool):
        super().__init__(torch, library, name, case)
        self._problem, self._options = problem_of(case, inputs, state.permutation), recipe.options
        self._state, self._regroup = state, regroup
        size = max(recipe.workspace_bytes, state.workspace_bytes if regroup else 0)
        self._memory = device_bytes(torch, size)
        self._where = call_with(torch, self._memory)
        self.record = {"options": options_record(recipe.options), "prepared_bytes": recipe.prepared_bytes, "workspace_bytes": size,
                       "extra_memory": size / sum(x.numel() for x in inputs)}

    def enqueue(self, output: Output) -> None:
        if self._regroup:
            self._state.group(self._where)
        self._library.call("vcattn_attend", ctypes.byref(self._problem), ctypes.byref(self._options), ctypes.byref(output),
                           ctypes.byref(self._where))


# --- Unfused steps --------------------------------------------------------------------------------------------------------------------


def vc8s_sections(case: Case) -> dict[str, int]:
    """Bytes of the sections of docs/formats.md, in their order, for INT8 Q and K and E4M3 V, all per 128 rows."""
    tiles_q, tiles_kv = (case.num_heads * math.ceil(rows / 128) for rows in (case.seqlen_q, case.seqlen_kv))
    tile_bytes, heads = 128 * HEAD_DIM, case.num_heads
    return {"sequences": 9 * 8, "q_codes": tiles_q * tile_bytes, "q_descale": 4 * tiles_q, "k_codes": tiles_kv * tile_bytes,
            "k_descale": 4 * tiles_kv, "score_multiplier": 4 * heads, "score_bound": 4 * heads, "score_variant": heads,
            "v_codes": tiles_kv * tile_bytes, "v_descale": 4 * heads * HEAD_DIM, "v_mean": 2 * tiles_kv * HEAD_DIM,
            "v_global_mean": 4 * heads * HEAD_DIM, "lse_correction": 4 * heads * case.seqlen_q, "permutation": 4 * heads * case.seqlen_kv}


def section_ranges(sections: dict[str, int], alignment: int = 256) -> tuple[dict[str, slice], int]:
    """And the bytes of all of them."""
    ranges, end = {}, 0
    for name, size in sections.items():
        ranges[name] = slice(end, end + size)
        end += math.ceil(size / alignment) * alignment
    return ranges, end


def equal_codes(case: Case, slab: Any, unfused: Any) -> dict[str, float]:
    """Share of equal bytes in each kind of code and in the block means of V."""
    ranges, size = section_ranges(vc8s_sections(case))
    if size != slab.numel():
        raise BenchError(f"{UNFUSED_RECIPE}: a prepared problem of {size} bytes required, got {slab.numel()}; correct vc8s_sections()")
    shares = {}
    for name in ("q_codes", "k_codes", "v_codes", "v_mean"):
        theirs = getattr(unfused, name).contiguous().flatten().view(slab.dtype)
        shares[name] = (slab[ranges[name]] == theirs).float().mean().item()
    return shares


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise BenchError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- The run --------------------------------------------------------------------------------------------------------------------------


class Run(runs.Run):
    kind = "call-cuda"
    notes = NOTES
    headlines = HEADLINES
    peer_kernels = (FA3, CUDNN)

    def measure(self) -> None:
        state = grouped_state(self.torch, self.library, captured_values(self.torch, self.arguments.capture).cuda())
        self.record["capture"] = {"file": self.arguments.capture.name, "energy_removed": state.energies(state.permutation.shape[0])}
        self.stages(self.arguments.stage_case)
        self.torch.cuda.empty_cache()
        for case in self.arguments.cases:
            self.calls(case)
            self.torch.cuda.empty_cache()

    def inputs(self, case: Case) -> tuple[Inputs, State]:
        say(f"{case.name}: seqlen_q {case.seqlen_q}, seqlen_kv {case.seqlen_kv}, {case.num_heads} heads")
        inputs = make_inputs(self.torch, case, lambda generator: scene_values(self.torch, case, generator))
        return inputs, grouped_state(self.torch, self.library, inputs.v)

    # Stages of a call, each on its own.

    def stages(self, case: Case) -> None:
        torch, library = self.torch, self.library
        failed: dict[str, str] = {}
        missing: dict[str, str] = {}
        inputs, state = self.inputs(case)
        bytes_moved = 3 * sum(x.numel() for x in inputs)  # 2 read and 1 written for each element
        tables = rotary_tables(torch, max(case.seqlen_q, case.seqlen_kv))
        rope = rope_struct(tables)
        plain, rotated = (problem_of(case, inputs, state.permutation, rotation) for rotation in (None, rope))
        recipes = served(library, self.arguments.stage_recipes, plain, self.arguments.threads, failed)
        storage = device_bytes(torch, max((one.prepared_bytes for one in recipes), default=0))
        workspace = device_bytes(torch, max((one.workspace_bytes for one in recipes), default=0))

        source, target = (device_bytes(torch, bytes_moved // 2) for _ in range(2))
        kernels = [Kernel("copy", lambda: target.copy_(source), bytes_moved=bytes_moved, attention=False)]
        chains: list[Kernel] = []
        for one in recipes:
            for suffix, problem in (("", plain), (" rope", rotated)):
                name = f"prepare {one.recipe.name}{suffix}"
                preparation = Preparation(torch, library, name, problem, one, storage, workspace, bytes_moved)
                kernels.append(preparation)
                if name == f"prepare {UNFUSED_RECIPE}":
                    chains = self.unfused(case, inputs, state, preparation.slab(), bytes_moved, failed, missing)
        kernels += chains
        for name, clusters in (("group", CLUSTERS), ("group automatic", 0)):  # `state` keeps its permutation
            kernels.append(Regrouping(torch, name, grouped_state(torch, library, inputs.v, clusters)))
        for one in served(library, [parse_recipe("", ATTENTION_RECIPE)], plain, self.arguments.threads, failed):
            prepared = library.prepare(plain, one.options, call=cuda_call(torch))
            kernels.append(PreparedAttention(torch, library, f"attention {one.recipe.name}", prepared, case))
            kernels[-1].attention = False  # its accuracy is that of the complete call
        kernels = check_kernels(torch, kernels, None, failed, missing)
        self.time(kernels)
        self.add({"case": case.name, "stages": True, "seqlen_q": case.seqlen_q, "seqlen_kv": case.seqlen_kv, "num_heads": case.num_heads,
                  "energy_removed": state.energies(min(ENERGY_HEADS, case.num_heads)),
                  "kernels": [kernel_record(kernel) for kernel in kernels], "failed": failed, "missing": missing,
                  "ratios": stage_ratios(case.name, [recipe.name for recipe in self.arguments.stage_recipes],
                                         {kernel.name: kernel.median_seconds for kernel in kernels},
                                         {kernel.name: kernel.bytes_moved for kernel in kernels})})

    def unfused(self, case: Case, inputs: Inputs, state: State, slab: Any, bytes_moved: int, failed: dict[str, str],
                missing: dict[str, str]) -> list[Kernel]:
        """Chains that give the codes of `slab`: the eager ones, and the faster of them compiled."""
        import unfused  # needs PyTorch

        torch = self.torch
        torch.set_float32_matmul_precision("highest")
        rows = unfused.rows_of(state.permutation)

        def chain(name: str, prepare: Any, hadamard: Any) -> Kernel:
            kernel = Kernel(name, lambda: prepare(*inputs, rows, hadamard), bytes_moved=bytes_moved, attention=False)
            kernel.record["equal_codes"] = shares = equal_codes(case, slab, kernel.call())
            say(f"  {name}: equal to {UNFUSED_RECIPE}: " + ", ".join(f"{what} {share:.4%}" for what, share in shares.items()))
            if min(share for what, share in shares.items() if what.endswith("_codes")) < LEAST_EQUAL_CODES:
                raise BenchError(f"{LEAST_EQUAL_CODES:.1%} of the codes of {UNFUSED_RECIPE} required, got {shares}; the steps differ")
            calibrate(torch, kernel)
            return kernel

        kernels: dict[str, Kernel] = {}
        for name, hadamard in unfused.HADAMARD.items():
            try:
                kernels[name] = chain(f"unfused {name}", unfused.prepare, hadamard)
            except (BenchError, RuntimeError) as error:
                failed[f"unfused {name}"] = reason(error)
        if not kernels or self.arguments.compile_seconds == 0:
            return list(kernels.values())
        fastest = min(kernels, key=lambda name: kernels[name].seconds_estimate)
        begin = time.perf_counter()
        try:
            with at_most(self.arguments.compile_seconds):
                kernels["compiled"] = chain("unfused compiled", torch.compile(unfused.prepare, dynamic=False), unfused.HADAMARD[fastest])
        except Exception as error:  # whatever a compiler raises, or the lack of one
            missing["unfused compiled"] = reason(error)
        say(f"  torch.compile, Hadamard by {fastest}: {time.perf_counter() - begin:.1f} s")
        return list(kernels.values())

    # Complete calls.

    def calls(self, case: Case) -> None:
        torch, library = self.torch, self.library
        failed: dict[str, str] = {}
        missing: dict[str, str] = {}
        inputs, state = self.inputs(case)
        reference = Reference(torch, inputs, case)
        kernels: list[Kernel] = []
        regrouped = grouped_state(torch, library, inputs.v)
        for one in served(library, self.arguments.recipes, problem_of(case, inputs, state.permutation), self.arguments.threads, failed):
            kernels.append(CompleteCall(torch, library, one.recipe.name, case, inputs, state, one, False))
            kernels.append(CompleteCall(torch, library, f"{one.recipe.name} regrouped", case, inputs, regrouped, one, True))
        kernels += self.peers.kernels(inputs, case.operations, missing)
        kernels = check_kernels(torch, kernels, reference, failed, missing)
        say(f"  {len(kernels)} kernels checked against exact attention")
        self.time(kernels)
        self.add({"case": case.name, "stages": False, "seqlen_q": case.seqlen_q, "seqlen_kv": case.seqlen_kv, "num_heads": case.num_heads,
                  "energy_removed": state.energies(min(ENERGY_HEADS, case.num_heads)),
                  "kernels": [kernel_record(kernel) for kernel in kernels], "failed": failed, "missing": missing,
                  "ratios": call_ratios(case.name, [recipe.name for recipe in self.arguments.recipes],
                                        {kernel.name: kernel.median_seconds for kernel in kernels},
                                        {kernel.name: kernel.record.get("extra_memory") for kernel in kernels})})

    def lines(self, case_record: dict[str, Any]) -> list[str]:
        energy = case_record["energy_removed"]
        lines = stage_lines(case_record) if case_record["stages"] else attention_lines(case_record)
        for kernel in case_record["kernels"]:
            if "extra_memory" in kernel:
                lines.append(f"  {kernel['name']}: extra memory {kernel['extra_memory']:.3f} of Q, K and V at 8 bits")
        return [*lines, f"  energy of V removed by means of {MEAN_BLOCK} rows: {energy['sequence']:.1%} in sequence order, "
                        f"{energy['grouped']:.1%} grouped ({CLUSTERS} clusters, chain_sorted)"]

    def report(self) -> None:
        super().report()
        capture = self.record["capture"]
        shares = ", ".join(f"{order} {share:.1%}" for order, share in capture["energy_removed"].items())
        say(f"{capture['file']}: energy of V removed: {shares}")


def stage_ratios(case_name: str, recipes: list[str], seconds: dict[str, float], bytes_moved: dict[str, int]) -> dict[str, float]:
    """By name, as in HEADLINES. seconds, bytes_moved: by kernel, of those that were measured."""
    ratios = {}
    rates = {name: bytes_moved[name] / seconds[name] for name in seconds}
    for recipe in recipes:
        for kernel, name in ((f"prepare {recipe}", "vs_copy"), (f"prepare {recipe} rope", "rope_vs_copy")):
            if kernel in rates and "copy" in rates:
                ratios[f"prepare/{recipe}/{case_name}/{name}"] = rates[kernel] / rates["copy"]
    fused = seconds.get(f"prepare {UNFUSED_RECIPE}")
    if fused is not None and "copy" in rates:
        ratios[f"prepare/{case_name}/vs_copy"] = ratios[f"prepare/{UNFUSED_RECIPE}/{case_name}/vs_copy"]
    eager = [seconds[name] for name in ("unfused matmul", "unfused butterflies") if name in seconds]
    if fused is not None and eager:
        ratios[f"prepare/{case_name}/vs_unfused"] = min(eager) / fused
    if fused is not None and "unfused compiled" in seconds:
        ratios[f"prepare/{case_name}/vs_compiled"] = seconds["unfused compiled"] / fused
    attention = seconds.get(f"attention {ATTENTION_RECIPE}")
    for name, prefix in (("group", "group"), ("group automatic", "group_automatic")):
        if attention is not None and name in seconds:
            ratios[f"{prefix}/{case_name}/share_of_attention"] = seconds[name] / attention
    return ratios


def call_ratios(case_name: str, recipes: list[str], seconds: dict[str, float], extra_memory: dict[str, float | None]) -> dict[str, float]:
    """By name, as in HEADLINES. seconds: by kernel, of those that were measured."""
    ratios = {}
    for recipe in recipes:
        for kernel, prefix in ((recipe, f"call/{recipe}/{case_name}"), (f"{recipe} regrouped", f"call_regrouped/{recipe}/{case_name}")):
            if kernel in seconds:
                ratios |= vs_peers(prefix, kernel, seconds) | {f"{prefix}/extra_memory": extra_memory[kernel]}
    return ratios


def stage_lines(case_record: dict[str, Any]) -> list[str]:
    kernels = {kernel["name"]: kernel for kernel in case_record["kernels"]}
    width = max(len(name) for name in kernels)
    copy = kernels["copy"]["terabytes_per_second"]
    lines = [f"{case_record['case']}", f"  {'kernel':<{width}} {'ms':>9} {'TB/s':>7} {'of copy':>8} {'SM MHz':>7} {'W':>5}"]
    for name, kernel in kernels.items():
        rate = kernel.get("terabytes_per_second")
        columns = f"{rate:>7.3f} {rate / copy:>8.1%}" if rate else f"{'-':>7} {'-':>8}"
        lines.append(f"  {name:<{width}} {kernel['median_ms']:>9.4f} {columns} {clocks_text(kernel)}")
    return lines


def measure(arguments: argparse.Namespace) -> int:
    library = Library(find_library(arguments.lib))
    for recipe in (*arguments.stage_recipes, *arguments.recipes):  # misspelt names, before the long work
        library.options(recipe, (), arguments.threads)
    return runs.run_benchmark(Run, library, arguments)


def main(arguments: list[str] | None = None) -> int:
    return runs.main("call_cuda", lambda: measure(parse_arguments(arguments)))


if __name__ == "__main__":
    sys.exit(main())
