"""The C ABI of `include/vcattn/vcattn.h` in ctypes: structs, functions, errors. Knows nothing of numpy or torch."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

ABI_VERSION = 1
CPU, CUDA = 0, 1
SEQUENCE_ORDER = 1  # of VCATTN_ORDER_*
DTYPES = ("float32", "float16", "bfloat16")
RECIPES = ("exact", "bf16", "fp8", "sage2", "vsmooth8", "vc8-paper", "vc8", "vsmooth8s", "vc8s", "nvfp4", "sage3", "vsmooth4")


class UnsupportedError(ValueError):
    """A valid request that this build, device or recipe does not serve."""


class NonFiniteError(ValueError):
    """NaN or infinity in an input, where the check was asked for."""


_ERRORS = {1: ValueError, 2: UnsupportedError, 3: NonFiniteError, 4: MemoryError, 5: OSError, 6: RuntimeError}


class Tensor(Structure):
    """`vcattn_tensor` and `vcattn_mutable_tensor`, which have the same layout: [batch, seqlen, num_heads, head_dim]."""

    _fields_ = [("data", c_void_p), ("dtype", c_uint32), ("reserved", c_uint32), ("shape", c_int64 * 4), ("stride", c_int64 * 4)]


class _Versioned(Structure):
    """A struct that begins with struct_size, which the constructor sets."""

    def __init__(self, **members: object):
        super().__init__(struct_size=ctypes.sizeof(self), **members)


class Problem(_Versioned):
    _fields_ = [
        ("struct_size", c_uint32), ("causal", c_uint32), ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("has_softmax_scale", c_uint32), ("reserved", c_uint32), ("softmax_scale", c_double),
        ("seqused_k", c_void_p), ("seqused_k_count", c_int64),
        ("cu_seqlens_q", c_void_p), ("cu_seqlens_q_count", c_int64),
        ("cu_seqlens_k", c_void_p), ("cu_seqlens_k_count", c_int64),
        ("permutation", c_void_p), ("permutation_count", c_int64), ("rope", c_void_p),
    ]  # fmt: skip


class Options(_Versioned):
    _fields_ = [("struct_size", c_uint32), ("recipe", c_uint32), ("qk", c_uint32), ("qk_scaling", c_uint32), ("q_block", c_int32),
                ("k_block", c_int32), ("qk_rounding", c_uint32), ("k_mean", c_uint32), ("q_mean", c_uint32), ("hadamard", c_uint32),
                ("scores", c_uint32), ("v", c_uint32), ("v_per_channel", c_uint32), ("v_mean", c_uint32), ("v_block", c_int32),
                ("emc", c_uint32), ("prob", c_uint32), ("exp_form", c_uint32), ("top_code", c_int32), ("order", c_uint32),
                ("clusters", c_int32), ("iterations", c_int32), ("warm_iterations", c_int32), ("check_finite", c_uint32),
                ("exact_f64", c_uint32), ("num_threads", c_int32)]  # fmt: skip


class Call(_Versioned):
    _fields_ = [("struct_size", c_uint32), ("device", c_uint32), ("stream", c_void_p), ("workspace", c_void_p), ("workspace_bytes", c_size_t)]


class Grouping(_Versioned):
    _fields_ = [
        ("struct_size", c_uint32), ("reserved", c_uint32), ("v", Tensor), ("permutation", c_void_p), ("permutation_count", c_int64),
        ("seqused_k", c_void_p), ("seqused_k_count", c_int64), ("warm_centroids", c_void_p), ("warm_centroids_count", c_int64),
        ("centroids", c_void_p), ("centroids_count", c_int64),
    ]  # fmt: skip


class Output(_Versioned):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("o", Tensor), ("lse", c_void_p), ("lse_count", c_int64)]


def problem(causal: bool, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Problem:
    """q, k, v: the numbers of a Tensor, one after another. Packed, since ctypes takes several times as long."""
    return Problem.from_buffer_copy(_pack_problem(ctypes.sizeof(Problem), causal, *q, *k, *v))


def output(o: tuple[int, ...], lse: int, lse_count: int) -> Output:
    return Output.from_buffer_copy(_pack_output(ctypes.sizeof(Output), 0, *o, lse, lse_count))


_TENSOR = "QII8q"
_pack_problem = struct.Struct(f"@II{3 * _TENSOR}{ctypes.sizeof(Problem) - Problem.has_softmax_scale.offset}x").pack
_pack_output = struct.Struct(f"@II{_TENSOR}Qq").pack

STRUCTS = {"vcattn_tensor": Tensor, "vcattn_mutable_tensor": Tensor, "vcattn_problem": Problem, "vcattn_options": Options,
           "vcattn_call": Call, "vcattn_grouping": Grouping, "vcattn_output": Output}  # fmt: skip

# Functions that return a vcattn_status, and their arguments.
_STATUS_FUNCTIONS = {
    "options_init": [POINTER(Options), c_char_p],
    "options_set": [POINTER(Options), c_char_p, c_char_p],
    "supports_call": [POINTER(Problem), POINTER(Options), c_uint32, POINTER(c_uint32), c_char_p, c_size_t],
    "cuda_available": [POINTER(c_uint32), c_char_p, c_size_t],
    "cuda_load_kernels": [],
    "prepared_size": [POINTER(Problem), POINTER(Options), POINTER(c_size_t)],
    "workspace_size": [POINTER(Problem), POINTER(Options), c_uint32, POINTER(c_size_t)],
    "call_workspace_size": [POINTER(Problem), POINTER(Options), c_uint32, POINTER(c_size_t)],
    "prepare": [POINTER(Problem), POINTER(Options), c_void_p, c_size_t, POINTER(Call), POINTER(c_void_p)],
    "prepared_destroy": [c_void_p],
    "prepared_bytes": [c_void_p, POINTER(c_size_t)],
    "prepared_value_energy_removed": [c_void_p, POINTER(c_double)],
    "attention": [c_void_p, POINTER(Output), c_void_p, c_size_t, POINTER(Call)],
    "attend": [POINTER(Problem), POINTER(Options), POINTER(Output), POINTER(Call)],
    "group": [POINTER(Grouping), POINTER(Options), POINTER(Call)],
    "group_workspace_size": [POINTER(Grouping), POINTER(Options), c_uint32, POINTER(c_size_t)],
    "group_clusters": [POINTER(Grouping), POINTER(Options), c_uint32, POINTER(c_int32)],
}  # fmt: skip


@functools.cache
def library_path() -> Path:
    """The library that is loaded: what `VCATTN_LIBRARY` names, or the one inside the package."""
    named = os.environ.get("VCATTN_LIBRARY")
    return Path(os.path.abspath(named)) if named else Path(__file__).parent / "lib" / "libvcattn.so"


@functools.cache
def library() -> ctypes.CDLL:
    path = library_path()
    try:
        lib = ctypes.CDLL(str(path))
        lib.vcattn_version.restype = c_char_p
        lib.vcattn_abi_version.restype = c_uint32
        lib.vcattn_last_error.restype = c_char_p
    except (OSError, AttributeError) as error:
        raise ImportError(f"vcattn needs its library, {path}, which cannot be loaded: {error}; install the package with pip, or set "
                          "VCATTN_LIBRARY to a libvcattn.so that was built with CMake") from error  # fmt: skip
    if lib.vcattn_abi_version() != ABI_VERSION:
        raise ImportError(f"vcattn needs a library with C ABI {ABI_VERSION}; got {lib.vcattn_abi_version()} from {path}; install package "
                          "and library of the same release")  # fmt: skip
    for name, arguments in _STATUS_FUNCTIONS.items():
        function = getattr(lib, f"vcattn_{name}")
        function.argtypes, function.restype = arguments, c_uint32
    return lib


def call(name: str, *arguments: object) -> None:
    """Calls `vcattn_<name>`; raises the error it reports.

    The GIL is released meanwhile. Error texts are kept per thread by the library, so that they cannot be mixed up.
    """
    lib = library()
    status = getattr(lib, f"vcattn_{name}")(*arguments)
    if status:
        raise _ERRORS.get(status, RuntimeError)(lib.vcattn_last_error().decode())


def version() -> str:
    return library().vcattn_version().decode()


def number(name: str, *arguments: object, kind: Any = c_size_t) -> Any:
    """Calls a function that gives a number."""
    result = kind()
    call(name, *arguments, byref(result))
    return result.value


def answer(name: str, *arguments: object) -> tuple[bool, str]:
    """Calls a function that answers yes, or no with a reason."""
    yes, reason = c_uint32(), ctypes.create_string_buffer(2048)
    call(name, *arguments, byref(yes), reason, len(reason))
    return bool(yes.value), reason.value.decode()


@functools.lru_cache(maxsize=256)
def options(recipe: str) -> Options:
    """Options of a recipe with changes: "vc8s", or "vc8s,block=64,hadamard=off". Shared, not to be changed."""
    name, *choices = recipe.split(",")
    result = Options()
    if "\0" in recipe:  # where C strings end
        raise ValueError(f"recipe must not hold a null character; got {recipe!r}")
    call("options_init", byref(result), ("vc8s" if name == "auto" else name).encode())
    pairs = [choice.partition("=") for choice in choices]
    keys = [key.strip() for key, _, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"recipe must set each option once; got {recipe!r}")
    # These two bring other choices along, which may be named after them.
    for key, _, value in sorted(pairs, key=lambda pair: pair[0] not in ("qk", "expcast")):
        call("options_set", byref(result), key.strip().encode(), value.strip().encode())
    return result


@functools.lru_cache(maxsize=256)
def options_in_sequence_order(recipe: str) -> Options:
    result = Options.from_buffer_copy(options(recipe))
    result.order = SEQUENCE_ORDER
    return result
