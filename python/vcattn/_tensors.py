"""What is common to numpy arrays and torch tensors: pointer, dtype, strides, device, new tensors. Needs no torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from vcattn import _abi
from vcattn._device import Device, check_readable

LAYOUTS = ("NHD", "HND")


def is_torch(x: object) -> bool:
    if type(x) is np.ndarray:  # before torch.Tensor, whose isinstance() is slow
        return False
    torch = sys.modules.get("torch")
    return torch is not None and (type(x) is torch.Tensor or isinstance(x, torch.Tensor))


def dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def device_of(x: Any, name: str) -> Device:
    """Errors: UnsupportedError for a device that is neither a CPU nor a CUDA GPU."""
    if isinstance(x, np.ndarray):
        return _CPU
    device = _devices.get(x.device)
    if device is None:
        if x.device.type not in ("cpu", "cuda"):
            raise _abi.UnsupportedError(f"{name} must be on the CPU or a CUDA device; got {x.device}; move it")
        device = _devices[x.device] = Device(x.device.type, x.device.index or 0)
    return device


_CPU = Device()
_devices: dict[Any, Device] = {}  # by torch.device
_dtype_codes: dict[Any, int] = {}  # by numpy.dtype and torch.dtype


def check_dtype(x: Any, name: str) -> int:
    """Code of the dtype in the C ABI. Errors: ValueError for one that is not served."""
    code = _dtype_codes.get(x.dtype)
    if code is None:
        if dtype_name(x) not in _abi.DTYPES:
            raise ValueError(f"{name} must be float32, float16 or bfloat16; got {dtype_name(x)}; convert it")
        code = _dtype_codes[x.dtype] = _abi.DTYPES.index(dtype_name(x))
    return code


def check_tensor(x: object, name: str) -> None:
    if not (is_torch(x) or isinstance(x, np.ndarray)) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a numpy array or a torch tensor; got {type(x).__name__}")


def pointer_and_strides(x: Any, name: str) -> tuple[int, tuple[int, ...]]:
    if is_torch(x):
        if x.is_neg():  # its memory holds the numbers with the other sign
            raise ValueError(f"{name} must not be a lazily negated view; got one, as of the imaginary part of a conjugate; resolve_neg() it")
        try:
            return x.data_ptr(), x.stride()
        except RuntimeError as refusal:  # sparse tensors, and such as torch.func and fake modes make
            raise ValueError(f"{name} must be a dense tensor with memory of its own; got {type(x).__name__} of layout {x.layout}: "
                             f"{str(refusal).splitlines()[0]}") from refusal  # fmt: skip
    check_tensor(x, name)
    if any(stride % x.itemsize for stride in x.strides):
        raise ValueError(f"{name} must have strides that are multiples of its {x.itemsize}-byte elements; got {x.strides}; copy it")
    return x.__array_interface__["data"][0], tuple(stride // x.itemsize for stride in x.strides)


def check_ndim(x: Any, name: str, layout: str) -> None:
    ndim = 3 if layout == "packed" else 4
    if len(x.shape) != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions; got shape {list(x.shape)}; reshape it")


def view(x: Any, name: str, layout: str) -> tuple[int, ...]:
    """The numbers of a `vcattn_tensor`, for a tensor in layout "NHD", "HND" or "packed" ([tokens, num_heads, head_dim])."""
    data, strides = pointer_and_strides(x, name)
    code, shape = check_dtype(x, name), x.shape
    check_ndim(x, name, layout)
    if layout == "HND":
        (batch, heads, rows, channels), (of_batch, of_heads, of_rows, of_channels) = shape, strides
        return data, code, 0, batch, rows, heads, channels, of_batch, of_rows, of_heads, of_channels
    if layout == "NHD":
        return data, code, 0, *shape, *strides
    return data, code, 0, 1, *shape, 0, *strides


def lse_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """[B, H, Sq], of packed tensors [H, total_q]. shape: that of q in this layout."""
    if layout == "packed":
        return shape[1], shape[0]
    return (shape[0], shape[1], shape[2]) if layout == "HND" else (shape[0], shape[2], shape[1])


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """A new float32 buffer where `like` is."""
    return like.new_empty(shape, dtype=sys.modules["torch"].float32) if is_torch(like) else np.empty(shape, np.float32)


def empty_like(x: Any) -> Any:
    """A new tensor with the shape, dtype and, where x has no gaps, the strides of x."""
    return sys.modules["torch"].empty_like(x) if is_torch(x) else np.empty_like(x, subok=False)


def int32_array(x: Any, name: str) -> np.ndarray:
    """Whole numbers as a contiguous int32 array on the CPU; a CUDA tensor is waited for and copied, which a capture forbids."""
    if is_torch(x):
        check_readable(x, name)
        if x.is_floating_point():
            raise ValueError(f"{name} must be a one-dimensional array of integers; got {dtype_name(x)} with shape {tuple(x.shape)}")
        x = x.detach().cpu().numpy()
    array = np.asarray(x)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a one-dimensional array of integers; got {array.dtype} with shape {array.shape}")
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise ValueError(f"{name} must hold numbers below 2^31; got {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, dtype=np.int32)


def was_written(x: Any) -> None:
    """Tells autograd of torch, which refuses to use a tensor that was saved for a backward pass and has changed since."""
    if is_torch(x) and not x.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(x)
