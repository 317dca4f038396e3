"""GroupingState: schedule, keys, refusals."""

import copy
import ctypes
import pickle

import numpy as np
import pytest

import vcattn
from vcattn import _abi
from vcattn.grouping import ACTIONS, POLICIES


def values(rng, seqlen=600):
    """Keys and values in a few clusters, spread over the sequence, so that grouping matters."""
    centres = 3 * rng.standard_normal((8, 64))
    v = centres[rng.integers(8, size=seqlen)] + 0.1 * rng.standard_normal((seqlen, 64))
    return np.ascontiguousarray(np.broadcast_to(v.astype(np.float32), (1, 2, seqlen, 64)))


def test_schedule_reaches_the_result(rng):
    q, k = rng.standard_normal((2, 1, 2, 600, 64), dtype=np.float32)
    v = values(rng)
    state = vcattn.GroupingState(total_steps=8, refresh_interval=2)
    never = vcattn.GroupingState(total_steps=8, policy="never")

    def energy_removed(state, step):
        return vcattn.prepare(q, k, v, recipe="vc8", state=state.at(step, layer=3, branch=1)).value_energy_removed

    assert state.decide(0, layer=3, branch=1) == "regroup_cold"
    grouped = energy_removed(state, 0)
    assert grouped > 0.5 and energy_removed(never, 0) < 0.1
    assert state.decide(1, layer=3, branch=1) == "reuse" and state.decide(1, layer=3, branch=0) == "regroup_cold"
    assert energy_removed(state, 1) == grouped
    assert len(state) == 1 and len(never) == 0


def test_stateless_call_equals_a_cold_start(rng):
    q, k = rng.standard_normal((2, 1, 2, 600, 64), dtype=np.float32)
    v = values(rng)
    state = vcattn.GroupingState(total_steps=8)
    assert (vcattn.attention(q, k, v) == vcattn.attention(q, k, v, state=state.at(0, layer=0))).all()


def test_lengths_and_masks_reach_the_grouping(rng):
    q, k = rng.standard_normal((2, 1, 2, 600, 64), dtype=np.float32)
    v = values(rng)
    v[:, :, 500:] = np.nan
    mask = np.arange(600)[None] < 500
    outs = [vcattn.attention(q, k, v, state=vcattn.GroupingState(8).at(0, layer=0), **options)
            for options in ({"seqused_k": [500]}, {"attn_mask": mask})]  # fmt: skip
    assert np.isfinite(outs[0]).all() and (outs[0] == outs[1]).all()


def test_mismatch_is_refused_until_forgotten(rng):
    state = vcattn.GroupingState(total_steps=8)
    v = values(rng)
    vcattn.attention(v, v, v, state=state.at(0, layer=0))
    small = values(rng, 500)
    with pytest.raises(ValueError, match="600"):
        vcattn.attention(small, small, small, state=state.at(1, layer=0))
    state.forget(layer=0)
    assert len(state) == 0
    vcattn.attention(small, small, small, state=state.at(1, layer=0))
    state.clear()
    assert len(state) == 0 and state.decide(1, layer=0) == "regroup_cold"


class LibrarySchedule:
    """The library's own schedule, which GroupingState follows without using it, since its memory is not the caller's."""

    def __init__(self, policy, refresh_interval, group_fraction):
        self.lib, self.handle = _abi.library(), ctypes.c_void_p()
        self.done(self.lib.vcattn_schedule_create(POLICIES.index(policy), refresh_interval, ctypes.c_double(group_fraction), ctypes.byref(self.handle)))

    def done(self, status):
        assert status == 0, self.lib.vcattn_last_error()

    def decide(self, step, total_steps):
        action, fixed = ctypes.c_uint32(), map(ctypes.c_int64, (step, total_steps, 0, 0))
        self.done(self.lib.vcattn_schedule_decide(self.handle, *fixed, ctypes.byref(action)))
        return ACTIONS[action.value]

    def permutation(self, step, total_steps, v, options):
        pointer, count, fixed = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64(), map(ctypes.c_int64, (step, total_steps, 0, 0))
        self.done(self.lib.vcattn_schedule_permutation(self.handle, *fixed, ctypes.byref(v), ctypes.byref(options), None, ctypes.c_int64(0),
                                                       ctypes.byref(pointer), ctypes.byref(count), None))  # fmt: skip
        return np.ctypeslib.as_array(pointer, (count.value,)).copy() if count.value else None

    def __del__(self):
        self.lib.vcattn_schedule_destroy(self.handle)


@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_and_permutations_are_those_of_the_library(rng, policy):
    for _ in range(20):
        total, interval, fraction = int(rng.integers(1, 12)), int(rng.integers(1, 5)), float(rng.choice([0, 0.25, 0.3, 1]))
        state = vcattn.GroupingState(total, policy, interval, fraction)
        library = LibrarySchedule(policy, interval, fraction)
        for step in rng.integers(0, total, size=8).tolist():  # also backwards, as a new generation is
            assert state.decide(step, layer=0) == library.decide(step, total)
            request = vcattn._core.Request(*[values(rng, 300)] * 3, "HND")
            got = state.at(step, layer=0).permutation(request.problem, request.options, request.device)
            expected = library.permutation(step, total, request.problem.v, request.options)
            assert (got is None) == (expected is None) and (got is None or (got.data == expected).all())


def test_a_warm_start_needs_as_many_clusters(rng):
    v, state = values(rng), vcattn.GroupingState(8, "every_step")
    vcattn.attention(v, v, v, recipe="vc8,clusters=8", state=state.at(0, layer=0))
    later = {"recipe": "vc8,clusters=9", "state": state.at(1, layer=0)}
    with pytest.raises(ValueError, match="has 8 clusters; got a recipe with 9"):
        vcattn.attention(v, v, v, **later)
    assert vcattn.supports(v, v, v, **later)[0] is False
    assert vcattn.supports(v, v, v, recipe="vc8,clusters=8", state=state.at(1, layer=0)) == (True, "")
    reused = vcattn.GroupingState(8)
    vcattn.attention(v, v, v, recipe="vc8,clusters=8", state=reused.at(0, layer=0))
    assert reused.decide(1, layer=0) == "reuse"
    for recipe in ("vc8,clusters=9", "vc8"):
        with pytest.raises(ValueError, match="has 8 clusters; got a recipe with"):
            vcattn.attention(v, v, v, recipe=recipe, state=reused.at(1, layer=0))
    vcattn.attention(v, v, v, recipe="vc8s,clusters=8", state=reused.at(1, layer=0))
    assert state.decide(1, layer=0) == "regroup_warm"  # asking changed nothing


def test_bad_arguments():
    with pytest.raises(ValueError, match="policy must be one of never, first_quarter, every_step; got 'always'"):
        vcattn.GroupingState(8, policy="always")
    with pytest.raises(ValueError, match="total_steps"):
        vcattn.GroupingState(0)
    with pytest.raises(ValueError, match="refresh_interval"):
        vcattn.GroupingState(8, refresh_interval=0)
    with pytest.raises(ValueError, match="group_fraction"):
        vcattn.GroupingState(8, group_fraction=1.5)
    with pytest.raises(ValueError, match="step must lie in"):
        vcattn.GroupingState(8).decide(8, layer=0)
    for call in (lambda: vcattn.GroupingState(2.5), lambda: vcattn.GroupingState("4"), lambda: vcattn.GroupingState(True),
                 lambda: vcattn.GroupingState(8).at(1.5, layer=0), lambda: vcattn.GroupingState(8, refresh_interval=None),
                 lambda: vcattn.GroupingState(8).at(0, layer="x"), lambda: vcattn.GroupingState(8).at(0, layer=0, branch=(0, 1))):  # fmt: skip
        with pytest.raises(TypeError, match="must be an integer; got"):
            call()


def test_a_fraction_is_a_number():
    with pytest.raises(TypeError, match="group_fraction must be a number; got None"):
        vcattn.GroupingState(8, group_fraction=None)


def test_a_state_and_an_order_contradict_each_other(rng):
    v = values(rng)
    with pytest.raises(ValueError, match="order=sequence in the recipe contradicts a state that groups"):
        vcattn.attention(v, v, v, recipe="vc8,order=sequence", state=vcattn.GroupingState(8).at(0, layer=0))
    never = vcattn.GroupingState(8, policy="never").at(0, layer=0)
    expected = vcattn.attention(v, v, v, recipe="vc8,order=sequence")
    assert (vcattn.attention(v, v, v, recipe="vc8,order=sequence", state=never) == expected).all()


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_states_have_one_owner(double):
    state = vcattn.GroupingState(8)
    for x in (state, state.at(0, layer=0)):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            double(x)
