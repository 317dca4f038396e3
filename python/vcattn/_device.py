"""Devices: which one is current, its stream, and memory. On a CUDA device all memory is torch's, so that nothing beside its allocator grows."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NamedTuple

import numpy as np

from vcattn import _abi

_NOTHING = contextlib.nullcontext()
_kernels_loaded: set[int] = set()
_has_threads = False  # of the library, on the CPU
_forked = False  # and left them behind


def _after_fork() -> None:
    global _forked
    _forked = _has_threads


os.register_at_fork(after_in_child=_after_fork)


class Device(NamedTuple):
    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def code(self) -> int:
        return _abi.CPU if self.kind == "cpu" else _abi.CUDA

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes a CUDA device the current one, with the kernels loaded. Errors: UnsupportedError where it cannot be used."""
        if self.kind == "cpu":
            if _forked:
                raise RuntimeError("vcattn had been used on the CPU before this process was forked, and its threads do not survive that; start the "
                                   "process with multiprocessing's 'spawn' or 'forkserver', or fork before the first call")  # fmt: skip
            return _NOTHING
        if self.index not in _kernels_loaded:
            self._load_kernels()
        return sys.modules["torch"].cuda.device(self.index)

    def _load_kernels(self) -> None:
        torch = sys.modules["torch"]
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"the first call on {self} loads kernels, which must not happen while a CUDA graph is captured; make one call "
                               "before")  # fmt: skip
        with torch.cuda.device(self.index):
            _abi.call("cuda_load_kernels")
        _kernels_loaded.add(self.index)

    def stream(self) -> int:
        """Torch's current stream of a CUDA device, as the driver knows it."""
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(self.index)

    def call(self, scratch_bytes: int) -> _abi.Call | None:
        """The `vcattn_call` on torch's current stream, with scratch that lives as long as it; None on the CPU.

        Dropping it once the work is enqueued is right: torch gives the memory to later work of the same stream only.
        """
        if self.kind == "cpu":
            global _has_threads
            _has_threads = True
            return None
        call = _abi.Call(device=_abi.CUDA, stream=self.stream())
        if scratch_bytes:
            call.scratch = self.empty(scratch_bytes, "uint8")
            call.workspace, call.workspace_bytes = call.scratch.data_ptr(), scratch_bytes
        return call

    def empty(self, count: int, dtype: str) -> Any:
        if self.kind == "cpu":
            return np.empty(count, dtype)
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=getattr(torch, dtype), device=torch.device(self.kind, self.index))


class Buffer:
    """Memory of a device that outlives the call that made it."""

    def __init__(self, device: Device, count: int, dtype: str):
        self.data, self.count, self._device = device.empty(count, dtype), count, device
        self._stream = None if device.kind == "cpu" else device.stream()

    def address(self) -> int | None:
        """For work on the current stream, of which torch has to know before it gives freed memory away; None where it is empty."""
        if not self.count:
            return None
        if self._stream is None:
            return self.data.__array_interface__["data"][0]
        if self._device.stream() != self._stream:
            self.data.record_stream(sys.modules["torch"].cuda.current_stream(self._device.index))
        return self.data.data_ptr()


def check_readable(x: Any, name: str) -> None:
    """Values of a CUDA tensor are read by waiting for its stream, which a capture forbids."""
    if x.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing():
        raise ValueError(f"{name} must be on the CPU while a CUDA graph is captured, which keeps the values of that moment; got one on "
                         f"{x.device}; move it before")  # fmt: skip
