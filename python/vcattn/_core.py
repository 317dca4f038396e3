"""From arguments to calls of the C ABI. The one place that passes tensors to the library."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np

from vcattn import _abi, _masks, _stats, _tensors
from vcattn._device import Buffer, Device
from vcattn.grouping import StepState, check_whole

FALLBACKS = ("error", "sdpa")


def check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def check_kinds(q: Any, **others: Any) -> None:
    """Refuses numpy arrays beside a torch q, and the reverse; None is neither, but for k and v, which have to be there."""
    kind = _tensors.is_torch(q)
    for name, other in others.items():
        if (other is not None or name in "kv") and _tensors.is_torch(other) != kind:
            raise TypeError(f"{name} must be of the kind of q, {type(q).__name__}; got {type(other).__name__}; convert it")


def check_switch(value: object, name: str) -> None:
    if type(value) is not bool and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be True or False; got {type(value).__name__}")


def check_recipe(recipe: Any) -> None:
    """For hosts that are told a recipe long before the first call. Errors: ValueError, TypeError."""
    check_types(recipe)
    _abi.options(recipe)


def check_types(recipe: object, is_causal: object = False, sm_scale: Any = None) -> None:
    if not isinstance(recipe, str):
        raise TypeError(f"recipe must be a string such as 'vc8s' or 'vc8s,block=64'; got {type(recipe).__name__}")
    check_switch(is_causal, "is_causal")
    if sm_scale is not None and (isinstance(sm_scale, (bool, np.bool_)) or not hasattr(sm_scale, "__float__")):
        raise TypeError(f"sm_scale must be a number or None; got {type(sm_scale).__name__}")


def lengths_array(seqused_k: Any, batch: int, seqlen_kv: int) -> np.ndarray:
    """int32 [B]. For what the library does not see; it checks its own."""
    lengths = _tensors.int32_array(seqused_k, "seqused_k")
    if lengths.size != batch or not ((lengths >= 0) & (lengths <= seqlen_kv)).all():
        raise ValueError(f"seqused_k needs one length in 0..{seqlen_kv} for each of {batch} batch entries; got {lengths[:8].tolist()}")
    return lengths


def check_state(state: object, is_causal: bool) -> None:
    if not isinstance(state, StepState):
        raise TypeError(f"state must be what GroupingState.at() returned; got {type(state).__name__}")
    if is_causal:
        raise _abi.UnsupportedError("causal attention keeps the keys in sequence order; got a grouping state; pass state=None")


class Request:
    """One attention problem as the library sees it, keeping alive what it points to.

    layout: "NHD", "HND", or "packed" for q [total_q, H, D] and k, v [total_k, Hkv, D] with cu_seqlens.
    """

    def __init__(self, q: Any, k: Any, v: Any, layout: str, *, is_causal: bool = False, sm_scale: float | None = None, recipe: str = "auto",
                 attn_mask: Any = None, seqused_k: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
                 state: StepState | None = None):  # fmt: skip
        if layout != "packed":
            check_choice(layout, "tensor_layout", _tensors.LAYOUTS)
        check_types(recipe, is_causal, sm_scale)
        self.q, self.layout, self.recipe = q, layout, recipe
        self.options = _abi.options(recipe)
        views = _tensors.view(q, "q", layout), _tensors.view(k, "k", layout), _tensors.view(v, "v", layout)
        if not type(q) is type(k) is type(v) or attn_mask is not None:
            check_kinds(q, k=k, v=v, attn_mask=attn_mask)
        self.device = _tensors.device_of(q, "q")
        if _tensors.device_of(k, "k") != self.device or _tensors.device_of(v, "v") != self.device:
            raise ValueError(f"q, k and v must be on one device; got {q.device}, {k.device} and {v.device}; move them")
        self._alive: list[Any] = [k, v]
        self.problem = _abi.problem(bool(is_causal), *views)
        if sm_scale is not None:
            self.problem.has_softmax_scale, self.problem.softmax_scale = 1, float(sm_scale)
        self.masked_rows = None
        if attn_mask is not None:
            if seqused_k is not None:
                raise ValueError("attn_mask and seqused_k both say which keys are valid; pass one of them")
            if is_causal:
                raise _abi.UnsupportedError("is_causal with attn_mask is not supported; pass seqused_k for key padding")
            batch, seqlen_q, num_heads, _ = self.problem.q.shape
            seqused_k, self.masked_rows = _masks.reduce_mask(attn_mask, batch, num_heads, seqlen_q, self.problem.k.shape[1])
        if seqused_k is not None:
            self._set_array("seqused_k", seqused_k)
        if cu_seqlens_q is not None:
            self._set_array("cu_seqlens_q", cu_seqlens_q)
            self._set_array("cu_seqlens_k", cu_seqlens_k)
        if state is not None:
            check_state(state, is_causal)
        self._state = state

    def _set_array(self, name: str, values: Any) -> None:
        values = _tensors.int32_array(values, name)
        if not values.size:  # which the library takes for none
            raise ValueError(f"{name} must not be empty, since there is a batch entry at least; got no number; pass None for no lengths")
        self._alive.append(values)
        setattr(self.problem, name, values.__array_interface__["data"][0] if values.size else None)
        setattr(self.problem, f"{name}_count", values.size)

    def _sequence_order(self) -> None:
        self.options = _abi.options_in_sequence_order(self.recipe)  # without a permutation the options decide

    def group(self) -> None:
        """Takes the permutation that the state has for this step, if there is a state. The device must be current."""
        if self._state is None:
            return
        permutation = self._state.permutation(self.problem, self.options, self.device)
        if permutation is None:
            self._sequence_order()
        else:
            self._alive.append(permutation)
            self.problem.permutation, self.problem.permutation_count = permutation.address(), permutation.count

    def supports(self) -> tuple[bool, str]:
        with self.device.current():
            if self._state is not None and self._state.plan(self.problem, self.options, self.device).group is None:
                self._sequence_order()
            return _abi.answer("supports_call", self.problem, self.options, self.device.code)

    def scratch_bytes(self, name: str = "call_workspace_size") -> int:
        """Of a call on a CUDA device; on the CPU the library allocates for itself. Errors: UnsupportedError."""
        return 0 if self.device.kind == "cpu" else _abi.number(name, self.problem, self.options, self.device.code)

    def lse_shape(self) -> tuple[int, ...]:
        return _tensors.lse_shape(self.q.shape, self.layout)

    def check_out(self, out: Any) -> None:
        check_out(out, self.q, self.device)
        view = _tensors.view(out, "out", self.layout)  # dtype and strides
        mine = _Extent(view[0], view[1], view[3:7], view[7:])
        for name in "qkv":
            x = getattr(self.problem, name)
            if mine.overlaps(_Extent(x.data or 0, x.dtype, x.shape, x.stride)):
                raise ValueError(f"out must not overlap {name}; got memory that they share; pass a tensor of its own")

    def run(self, out: Any, return_lse: bool) -> tuple[Any, Any]:
        """(out, lse), without lse (out, None). out: what to write to; None: a new tensor like q."""
        if out is None:
            out = _tensors.empty_like(self.q)
        else:
            self.check_out(out)
            _tensors.was_written(out)
        lse = _tensors.empty(self.q, self.lse_shape()) if return_lse else None
        self.attend(out, lse)
        _stats.count("served", self.recipe)
        return out, lse

    def attend(self, out: Any, lse: Any) -> None:
        """Prepares and attends. out, lse: buffers to write; lse may be None."""
        output = output_struct(out, lse, self.layout)
        with self.device.current():
            self.group()
            try:
                scratch_bytes = self.scratch_bytes()
            except _abi.UnsupportedError:
                scratch_bytes = 0  # the call itself gives the reason, which may be another than that of preparation
            _abi.call("attend", self.problem, self.options, output, self.device.call(scratch_bytes))
        clear_masked_rows(self.masked_rows, self.layout, out, lse)


class _Extent:
    """Where the elements of a tensor lie, of which nothing is read."""

    def __init__(self, data: int, dtype: int, shape: Any, strides: Any):
        self.element_bytes = (4, 2, 2)[dtype]
        self.data, self.shape = data, tuple(shape)
        self.strides = tuple(stride * self.element_bytes for stride in strides)
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        self.first, self.end = data + sum(min(x, 0) for x in reach), data + sum(max(x, 0) for x in reach) + self.element_bytes
        self.empty = 0 in self.shape

    def overlaps(self, other: _Extent) -> bool:
        """Whether they share memory. Elements may lie between each other's; where that is too hard to tell, the answer is yes."""
        if self.empty or other.empty or self.first >= other.end or other.first >= self.end:
            return False
        try:
            return np.shares_memory(self._array(), other._array(), max_work=100_000)
        except np.exceptions.TooHardError:
            return True

    def _array(self) -> np.ndarray:
        memory = {"data": (self.data, True), "shape": self.shape, "strides": self.strides, "typestr": f"|V{self.element_bytes}", "version": 3}
        return np.asarray(types.SimpleNamespace(__array_interface__=memory))


def check_out(out: Any, q: Any, device: Device) -> None:
    """That `out` is writeable memory of the device, of a dtype that is served. q: of the kind and shape that `out` must have."""
    _tensors.check_tensor(out, "out")
    check_kinds(q, out=out)
    if out.shape != q.shape:
        raise ValueError(f"out must have the shape of q, {list(q.shape)}; got {list(out.shape)}")
    _tensors.check_dtype(out, "out")
    if _tensors.device_of(out, "out") != device:
        raise ValueError(f"out must be on the device of q, {device}; got {_tensors.device_of(out, 'out')}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out must be writeable; got a read-only array")
    shape, strides = out.shape, _tensors.pointer_and_strides(out, "out")[1]
    if _overlaps_itself(shape, strides):
        raise ValueError(f"out must not overlap itself; got strides {list(strides)} for shape {list(shape)}; pass a tensor of its own")
    if _tensors.is_torch(out) and out.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ValueError("out must not require a gradient, since attention has none; got one that does; detach() it")


def _overlaps_itself(shape: Any, strides: Any) -> bool:
    """Whether a dimension steps over less than what those with smaller strides span; such tensors without an overlap are very odd ones."""
    span = 0
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape) if size > 1):
        if stride <= span:
            return 0 not in shape
        span += (size - 1) * stride
    return False


def clear_masked_rows(masked_rows: Any, layout: str, out: Any, lse: Any) -> None:
    """Rows that a mask leaves without a key give 0, and -inf in lse. masked_rows: of `reduce_mask`, or None."""
    if masked_rows is None:
        return
    hidden = ~masked_rows  # [B|1, H|1, Sq|1]
    if _tensors.is_torch(out):
        hidden = hidden.to(out.device)
    rows = out if layout == "HND" else out.swapaxes(1, 2)
    targets = [(rows, hidden[..., None], 0.0)] + ([] if lse is None else [(lse, hidden, -np.inf)])
    for target, where, value in targets:
        if _tensors.is_torch(out):
            target.masked_fill_(where, value)
        else:
            np.copyto(target, value, where=where)


def varlen_request(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None, max_seqlen_k: int | None,
                   is_causal: bool, sm_scale: float | None, recipe: str) -> Request:  # fmt: skip
    cu_seqlens = {}
    for name, values, longest in (("q", cu_seqlens_q, max_seqlen_q), ("k", cu_seqlens_k, max_seqlen_k)):
        cu = cu_seqlens[f"cu_seqlens_{name}"] = _tensors.int32_array(values, f"cu_seqlens_{name}")
        found = int((cu[1:] - cu[:-1]).max(initial=0))
        if longest is not None and found > check_whole(longest, f"max_seqlen_{name}"):
            raise ValueError(f"max_seqlen_{name} must be at least the longest sequence of cu_seqlens_{name}, {found}; got {longest}")
    return Request(q, k, v, "packed", is_causal=is_causal, sm_scale=sm_scale, recipe=recipe, **cu_seqlens)


def output_struct(out: Any, lse: Any, layout: str) -> _abi.Output:
    if lse is None:
        return _abi.output(_tensors.view(out, "out", layout), 0, 0)
    count = lse.numel() if _tensors.is_torch(lse) else lse.size
    return _abi.output(_tensors.view(out, "out", layout), _tensors.pointer_and_strides(lse, "lse")[0] if count else 0, count)


class Prepared:
    """Q, K and V after quantisation; made by `prepare()`, consumed by `attention_prepared()`. The tensors it was made of may be freed.

    Attributes
    ----------
    nbytes : int
        Bytes of codes, descales, means and permutation.
    value_energy_removed : float
        Share of V's energy that the block means removed, mean over heads; NaN where the recipe has none, and on a CUDA device.
    """

    def __init__(self, request: Request):
        self._handle = None
        self._storage: Buffer | None = None
        handle = ctypes.c_void_p()
        with request.device.current():
            # First, since it refuses what attention on the device would refuse later.
            self._scratch_bytes = request.scratch_bytes("workspace_size")
            request.group()
            problem, options, storage, storage_bytes = request.problem, request.options, None, 0
            if request.device.kind == "cuda":
                storage_bytes = _abi.number("prepared_size", problem, options)
                self._storage = Buffer(request.device, storage_bytes, "uint8")
                storage = self._storage.address()
            call = request.device.call(request.scratch_bytes())
            _abi.call("prepare", problem, options, storage, storage_bytes, call, ctypes.byref(handle))
        self._handle = handle
        self.device, self.layout, self.recipe = request.device, request.layout, request.recipe
        self.masked_rows = request.masked_rows
        self._lse_shape = request.lse_shape()
        # A tensor or array without memory of its own that remembers kind, dtype, shape and strides.
        q, is_torch = request.q, _tensors.is_torch(request.q)
        self._like = q.to("meta") if is_torch else np.lib.stride_tricks.as_strided(np.empty((), q.dtype), q.shape, q.strides)
        self._torch_device = request.q.device if is_torch else None

    def new_output(self) -> Any:
        if self._torch_device is None:
            return np.empty_like(self._like)
        return sys.modules["torch"].empty_like(self._like, device=self._torch_device)

    def check_out(self, out: Any) -> None:
        check_out(out, self._like, self.device)

    @property
    def nbytes(self) -> int:
        return _abi.number("prepared_bytes", self._handle)

    @property
    def value_energy_removed(self) -> float:
        return _abi.number("prepared_value_energy_removed", self._handle, kind=ctypes.c_double)

    def attend(self, out: Any, want_lse: bool) -> Any:
        _tensors.was_written(out)
        lse = _tensors.empty(out, self._lse_shape) if want_lse else None
        output = output_struct(out, lse, self.layout)
        with self.device.current():
            if self._storage is not None:
                self._storage.address()  # which tells torch of the stream
            call = self.device.call(self._scratch_bytes)
            workspace = (call.workspace, call.workspace_bytes) if call else (None, 0)
            if call:  # vcattn_attention() takes it as an argument
                call.workspace, call.workspace_bytes = None, 0
            _abi.call("attention", self._handle, output, *workspace, call)
        clear_masked_rows(self.masked_rows, self.layout, out, lse)
        _stats.count("served", self.recipe)
        return lse

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For copy and pickle: a second owner of the library's memory would free it twice."""
        raise TypeError("Prepared cannot be copied or pickled, since it owns memory of the library; keep the one, or prepare() again")

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _abi.call("prepared_destroy", self._handle)
            self._handle = None
