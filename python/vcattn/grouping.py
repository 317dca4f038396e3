"""Permutations of the keys over the denoising steps of a generation."""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
import weakref
from typing import Any, NamedTuple

from vcattn import _abi
from vcattn._device import Buffer, Device

# In the order of the library's enumerations, whose schedule this follows.
POLICIES = ("never", "first_quarter", "every_step")
ACTIONS = ("sequence_order", "regroup_cold", "regroup_warm", "reuse")

_live: weakref.WeakValueDictionary[int, StepState] = weakref.WeakValueDictionary()
_tokens = itertools.count(1)


class _Fit(NamedTuple):
    """What a permutation was made for."""

    shape: tuple[int, ...]  # of v, [B, Sk, Hkv, D]
    dtype: int
    valid_keys: tuple[int, ...]
    device: Device

    def __str__(self) -> str:
        keys = self.valid_keys if len(self.valid_keys) < 9 else (*self.valid_keys[:8], "...")
        return f"v [B, Sk, Hkv, D] = {list(self.shape)} of {_abi.DTYPES[self.dtype]} with valid keys [{', '.join(map(str, keys))}] on {self.device}"


class _Group:
    """Permutation [B, Hkv, Sk] and centroids [B, Hkv, clusters, D] of one (layer, branch)."""

    def __init__(self, fit: _Fit, clusters: int, asked_clusters: int):
        batch, seqlen, heads, head_dim = fit.shape
        self.fit, self.clusters, self.step = fit, clusters, -1
        self.asked_clusters = asked_clusters  # of the recipe, where 0 is automatic
        self.permutation = Buffer(fit.device, batch * heads * seqlen, "int32")
        self.centroids = Buffer(fit.device, batch * heads * clusters * head_dim, "float32")


class _Plan(NamedTuple):
    action: str
    group: _Group | None  # None: sequence order
    grouping: _abi.Grouping | None  # None: nothing is to be grouped


class GroupingState:
    """Groups the keys of each (layer, branch) at some steps and reuses the result at the others.

    Parameters
    ----------
    total_steps
        Denoising steps of the generation.
    policy
        "first_quarter": group in the first `group_fraction` of the steps, every `refresh_interval` steps, each time from the last result;
        "every_step": one warm iteration at every step; "never": sequence order.
    refresh_interval, group_fraction
        Of "first_quarter".

    Notes
    -----
    Not thread-safe. Only permutations and centroids are kept, never means or descales: B * Hkv * (4 Sk + 4 clusters D) bytes for each
    (layer, branch), on the device of its tensors. A call whose v does not fit the stored state (shape, dtype, number of valid keys, device)
    is refused: `forget` or `clear` it after a change of resolution.

    On a CUDA device a call with a state waits for nothing. Regrouping writes to the memory that is kept, in the order of the current
    stream; calls for one (layer, branch) from several streams must be ordered by the caller. A CUDA graph repeats what was decided when it
    was captured, and needs the state to live as long as it.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 300, 64), dtype=np.float32)
    >>> state = vcattn.GroupingState(total_steps=20)
    >>> [state.decide(step, layer=0, branch=0) for step in (0, 19)]
    ['regroup_cold', 'sequence_order']
    >>> for step in range(2):
    ...     out = vcattn.attention(q, k, v, state=state.at(step, layer=0, branch=0))
    >>> state.decide(2, layer=0, branch=0), state.decide(4, layer=0, branch=0), state.decide(2, layer=1, branch=0)
    ('reuse', 'regroup_warm', 'regroup_cold')
    """

    def __init__(self, total_steps: int, policy: str = "first_quarter", refresh_interval: int = 4, group_fraction: float = 0.25):
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}")
        for name, value in (("total_steps", total_steps), ("refresh_interval", refresh_interval)):
            if check_whole(value, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not hasattr(group_fraction, "__float__"):
            raise TypeError(f"group_fraction must be a number; got {group_fraction!r}")
        if not 0 <= group_fraction <= 1:
            raise ValueError(f"group_fraction must lie in 0..1; got {group_fraction}")
        self.total_steps, self._policy, self._refresh_interval = total_steps, policy, refresh_interval
        self._steps_with_groups = math.ceil(group_fraction * total_steps)
        self._kept: dict[tuple[int, int], _Group] = {}
        self._followed: dict[tuple[int, int], Any] = {}

    def at(self, step: int, *, layer: int, branch: int = 0) -> StepState:
        """The place of one call, for the keyword `state` of `attention`. `branch` tells apart CFG halves that are computed one by one."""
        return StepState(self, check_whole(step, "step"), check_whole(layer, "layer"), check_whole(branch, "branch"))

    def follow(self, q: Any, step: int, *, layer: int, branch: int = 0) -> StepState:
        """As `at`, for hosts that may change the resolution: what is kept for a q of another shape, dtype or device is dropped."""
        key, seen = (layer, branch), (tuple(q.shape), q.dtype, q.device)
        if self._followed.setdefault(key, seen) != seen:
            self.forget(layer=layer, branch=branch)
            self._followed[key] = seen
        return self.at(step, layer=layer, branch=branch)

    def followed(self) -> list[tuple[int, int]]:
        """(layer, branch) that `follow` was called with."""
        return list(self._followed)

    def decide(self, step: int, *, layer: int, branch: int = 0) -> str:
        """What the step will do: "sequence_order", "regroup_cold", "regroup_warm" or "reuse". Errors: ValueError outside 0..total_steps-1."""
        if not 0 <= step < self.total_steps:
            raise ValueError(f"step must lie in 0..total_steps-1 = {self.total_steps - 1}; got {step}")
        if self._policy == "never":
            return "sequence_order"
        group = self._kept.get((layer, branch))
        known = group is not None and group.step <= step  # one of a later step belongs to an earlier generation
        if self._policy == "every_step":
            return "regroup_warm" if known else "regroup_cold"
        if step >= self._steps_with_groups:
            return "reuse" if known else "sequence_order"
        if not known:
            return "regroup_cold"
        return "regroup_warm" if step % self._refresh_interval == 0 else "reuse"

    def forget(self, *, layer: int, branch: int = 0) -> None:
        """Drops what is kept for one (layer, branch)."""
        self._kept.pop((layer, branch), None)

    def clear(self) -> None:
        """Drops everything that is kept."""
        self._kept.clear()

    def __len__(self) -> int:
        """Number of (layer, branch) for which something is kept."""
        return len(self._kept)

    def __bool__(self) -> bool:
        return True

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For copy and pickle: two would write to the same memory."""
        raise TypeError("GroupingState cannot be copied or pickled; share it, or make a new one")


class StepState:
    """A (step, layer, branch) of a `GroupingState`; made by `GroupingState.at`."""

    def __init__(self, owner: GroupingState, step: int, layer: int, branch: int):
        self.owner, self.step, self.layer, self.branch = owner, step, layer, branch
        self.token = next(_tokens)
        _live[self.token] = self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a place in a grouping schedule cannot be copied or pickled; ask GroupingState.at() for it again")

    def plan(self, problem: _abi.Problem, options: _abi.Options, device: Device) -> _Plan:
        """What is to be done, which changes nothing yet. The device must be current."""
        owner = self.owner
        action = owner.decide(self.step, layer=self.layer, branch=self.branch)
        if action == "sequence_order":
            return _Plan(action, None, None)
        if options.order == _abi.SEQUENCE_ORDER:
            raise ValueError(f"order=sequence in the recipe contradicts a state that groups ({action}); drop one of them, or let the state have the "
                             "policy 'never'")  # fmt: skip
        v, count = problem.v, problem.seqused_k_count
        lengths = (ctypes.c_int32 * count).from_address(problem.seqused_k) if count else [v.shape[1]] * v.shape[0]
        fit = _Fit(tuple(v.shape), v.dtype, tuple(lengths), device)
        group = owner._kept.get((self.layer, self.branch))
        if action != "regroup_cold" and group.fit != fit:
            raise ValueError(f"state of layer {self.layer}, branch {self.branch} is for {group.fit}; got {fit}; forget() it first")
        if action == "reuse" and options.clusters == group.asked_clusters:
            return _Plan(action, group, None)
        grouping = _abi.Grouping(v=v, seqused_k=problem.seqused_k, seqused_k_count=count)
        clusters = _abi.number("group_clusters", grouping, options, device.code, kind=ctypes.c_int32)
        if action != "regroup_cold" and group.clusters != clusters:
            raise ValueError(f"state of layer {self.layer}, branch {self.branch} has {group.clusters} clusters; got a recipe with {clusters}; "
                             "keep the recipe, or forget() it first")  # fmt: skip
        if action == "reuse":
            return _Plan(action, group, None)
        if group is None or group.fit != fit or group.clusters != clusters:
            group = _Group(fit, clusters, options.clusters)
        return _Plan(action, group, grouping)

    def permutation(self, problem: _abi.Problem, options: _abi.Options, device: Device) -> Buffer | None:
        """Groups if it is due; the permutation to use, None: sequence order. The device must be current."""
        action, group, grouping = self.plan(problem, options, device)
        if group is None:
            return None
        if grouping is not None:
            permutation, centroids = group.permutation, group.centroids
            grouping.permutation, grouping.permutation_count = permutation.address(), permutation.count
            grouping.centroids, grouping.centroids_count = centroids.address(), centroids.count
            if action == "regroup_warm":
                grouping.warm_centroids, grouping.warm_centroids_count = grouping.centroids, grouping.centroids_count
            scratch = _abi.number("group_workspace_size", grouping, options, device.code)
            _abi.call("group", grouping, options, device.call(scratch))
            group.step = self.step
            self.owner._kept[self.layer, self.branch] = group
        return group.permutation


def live_state(token: int) -> StepState | None:
    """The state that a torch operator was called with; 0 is none."""
    if token and token not in _live:
        raise ValueError("the grouping state of this call is gone: a graph keeps the number of the one that it was traced with; keep that alive, or "
                         "pass state=None where a graph is made")  # fmt: skip
    return _live[token] if token else None


def check_whole(value: Any, name: str) -> int:
    """Errors: TypeError unless it is an integer, of Python or numpy."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    return operator.index(value)
