"""include/vcattn/vcattn.h for the benchmarks: its structs and functions through ctypes, and the library that holds them."""

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

HEAD_DIM = 128  # of every tensor here


class BenchError(Exception):
    """Says what was required, what was got, and what to do."""


class Recipe(NamedTuple):
    name: str
    base: str
    settings: tuple[str, ...]


# --- Structs, member by member --------------------------------------------------------------------------------------------------------


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
    _fields_ = [("struct_size", ctypes.c_uint32), ("device", ctypes.c_uint32), ("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t)]


class Rope(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("style", ctypes.c_uint32), ("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p),
                ("rows", ctypes.c_int64), ("rotary_dim", ctypes.c_int64), ("first_channel", ctypes.c_int64)]


class Grouping(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("v", Tensor), ("permutation", ctypes.c_void_p),
                ("permutation_count", ctypes.c_int64), ("seqused_k", ctypes.c_void_p), ("seqused_k_count", ctypes.c_int64),
                ("warm_centroids", ctypes.c_void_p), ("warm_centroids_count", ctypes.c_int64), ("centroids", ctypes.c_void_p),
                ("centroids_count", ctypes.c_int64)]


class Output(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("o", MutableTensor), ("lse", ctypes.c_void_p),
                ("lse_count", ctypes.c_int64)]


STRUCTS = {"vcattn_tensor": Tensor, "vcattn_mutable_tensor": MutableTensor, "vcattn_problem": Problem, "vcattn_options": Options,
           "vcattn_call": Call, "vcattn_rope": Rope, "vcattn_grouping": Grouping, "vcattn_output": Output}
ABI_VERSION = 1
F32, BF16 = 0, 2
CUDA = 1
ROPE_INTERLEAVED = 0

_POINTER = ctypes.POINTER
_SIZE = ctypes.POINTER(ctypes.c_size_t)
FUNCTIONS = {  # name: argument types; all return a status
    "vcattn_options_init": [_POINTER(Options), ctypes.c_char_p],
    "vcattn_options_set": [_POINTER(Options), ctypes.c_char_p, ctypes.c_char_p],
    "vcattn_supports_call": [_POINTER(Problem), _POINTER(Options), ctypes.c_uint32, _POINTER(ctypes.c_uint32), ctypes.c_char_p,
                             ctypes.c_size_t],
    "vcattn_cuda_available": [_POINTER(ctypes.c_uint32), ctypes.c_char_p, ctypes.c_size_t],
    "vcattn_prepared_size": [_POINTER(Problem), _POINTER(Options), _SIZE],
    "vcattn_call_workspace_size": [_POINTER(Problem), _POINTER(Options), ctypes.c_uint32, _SIZE],
    "vcattn_prepare": [_POINTER(Problem), _POINTER(Options), ctypes.c_void_p, ctypes.c_size_t, _POINTER(Call), _POINTER(ctypes.c_void_p)],
    "vcattn_prepared_to_cuda": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, _POINTER(ctypes.c_void_p)],
    "vcattn_prepared_destroy": [ctypes.c_void_p],
    "vcattn_prepared_bytes": [ctypes.c_void_p, _SIZE],
    "vcattn_attention": [ctypes.c_void_p, _POINTER(Output), ctypes.c_void_p, ctypes.c_size_t, _POINTER(Call)],
    "vcattn_attend": [_POINTER(Problem), _POINTER(Options), _POINTER(Output), _POINTER(Call)],
    "vcattn_group": [_POINTER(Grouping), _POINTER(Options), _POINTER(Call)],
    "vcattn_group_workspace_size": [_POINTER(Grouping), _POINTER(Options), ctypes.c_uint32, _SIZE],
    "vcattn_group_clusters": [_POINTER(Grouping), _POINTER(Options), ctypes.c_uint32, _POINTER(ctypes.c_int32)],
    "vcattn_value_energy_removed": [_POINTER(Tensor), ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
                                    _POINTER(ctypes.c_double), ctypes.c_int64],
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

    def options(self, recipe: Recipe, settings: tuple[str, ...], threads: int) -> Options:
        options = versioned(Options)
        self.call("vcattn_options_init", ctypes.byref(options), recipe.base.encode())
        for setting in (*settings, *recipe.settings):
            key, value = setting.split("=", 1)
            self.call("vcattn_options_set", ctypes.byref(options), key.encode(), value.encode())
        options.num_threads = threads
        options.check_finite = 0
        return options

    def size(self, name: str, *arguments: Any) -> int:
        """Of a function whose last argument is where the bytes go."""
        size = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(size))
        return size.value

    def unsupported_call_reason(self, problem: Problem, options: Options) -> str:
        supported, reason = ctypes.c_uint32(), ctypes.create_string_buffer(1024)
        self.call("vcattn_supports_call", ctypes.byref(problem), ctypes.byref(options), CUDA, ctypes.byref(supported), reason, len(reason))
        return "" if supported.value else reason.value.decode()

    def prepare(self, problem: Problem, options: Options, storage: tuple[int | None, int] = (None, 0),
                call: Call | None = None) -> ctypes.c_void_p:
        """storage: address and bytes; without a call everything is host memory."""
        handle = ctypes.c_void_p()
        where = None if call is None else ctypes.byref(call)
        self.call("vcattn_prepare", ctypes.byref(problem), ctypes.byref(options), *storage, where, ctypes.byref(handle))
        return handle

    def prepared_bytes(self, handle: ctypes.c_void_p) -> int:
        return self.size("vcattn_prepared_bytes", handle)

    def to_cuda(self, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        on_device = ctypes.c_void_p()
        self.call("vcattn_prepared_to_cuda", handle, None, 0, ctypes.byref(on_device))
        return on_device

    def destroy(self, handle: ctypes.c_void_p) -> None:
        self.call("vcattn_prepared_destroy", handle)


def problem_struct(q: int, k: int, v: int, seqlen_q: int, seqlen_kv: int, num_heads: int) -> Problem:
    """Contiguous BF16 [1, S, H, HEAD_DIM] at these addresses."""
    problem = versioned(Problem)
    problem.q = tensor(Tensor, q, BF16, seqlen_q, num_heads)
    problem.k = tensor(Tensor, k, BF16, seqlen_kv, num_heads)
    problem.v = tensor(Tensor, v, BF16, seqlen_kv, num_heads)
    return problem


def output_struct(o: int, dtype: int, lse: int | None, seqlen_q: int, num_heads: int) -> Output:
    output = versioned(Output)
    output.o = tensor(MutableTensor, o, dtype, seqlen_q, num_heads)
    if lse is not None:
        output.lse, output.lse_count = lse, num_heads * seqlen_q
    return output
