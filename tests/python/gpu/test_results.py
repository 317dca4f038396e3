"""Results of CUDA tensors: accuracy, layouts, padding, varlen, prepared problems, grouping states, refusals."""

import numpy as np
import pytest
import torch
from cuda_cases import BF16, DEVICE, error, exact, same, tensors
from reference import TOLERANCE

import vcattn

RECIPES = ["vc8", "vc8s", "vsmooth8", "vsmooth8s", "fp8", "vc8-paper"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("head_dim", "dtype"), [(128, BF16), (64, torch.float16), (80, torch.float32)])
def test_against_sdpa(recipe, head_dim, dtype):
    q, k, v = tensors(head_dim=head_dim, dtype=dtype)
    before = [x.clone() for x in (q, k, v)]
    out, lse = vcattn.attention(q, k, v, recipe=recipe, return_lse=True)
    expected, expected_lse = exact(q, k, v)
    assert out.dtype == dtype and out.device == q.device and lse.dtype == torch.float32 and lse.shape == (2, 4, 300)
    assert error(out, expected) < TOLERANCE[recipe]
    assert (lse - expected_lse).abs().max() < 0.1
    assert all(same(a, b) for a, b in zip(before, (q, k, v)))
    assert same(vcattn.attention(q, k, v, recipe=recipe), out)  # from run to run
    assert vcattn.stats()["served"] == {recipe: 2}


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 1), (1, 129), (127, 128), (257, 64), (64, 1025)])
def test_odd_sizes_are_those_of_the_cpu(seqlen_q, seqlen_kv):
    q, k, v = tensors(seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, head_dim=72)
    # In sequence order, since the two devices group with other roundings.
    for recipe in ("vc8,order=sequence", "vc8s,order=sequence"):
        out = vcattn.attention(q, k, v, recipe=recipe)
        on_cpu = vcattn.attention(q.cpu(), k.cpu(), v.cpu(), recipe=recipe)
        assert error(out.cpu(), on_cpu.double()) < 0.01  # BF16 alone is 0.002; the recipes' own errors are ten times as large


def test_causal():
    q, k, v = tensors()
    out = vcattn.attention(q, k, v, is_causal=True)
    assert error(out, exact(q, k, v, causal=True)[0]) < TOLERANCE["vc8s"]


def test_views_layouts_and_output_strides():
    q, k, v = tensors(heads=2)
    expected = vcattn.attention(q, k, v)
    fused = torch.stack([x.transpose(1, 2) for x in (torch.zeros_like(k), k, v)], dim=2)
    assert same(vcattn.attention(q, fused[:, :, 1].transpose(1, 2), fused[:, :, 2].transpose(1, 2)), expected)
    nhd = q.transpose(1, 2).contiguous()
    out = vcattn.attention(nhd.transpose(1, 2), k, v)
    assert same(out, expected) and out.stride() == nhd.transpose(1, 2).stride()
    assert same(vcattn.attention(nhd, k.transpose(1, 2), v.transpose(1, 2), "NHD").transpose(1, 2), expected)
    given = torch.full((2, 300, 2, 128), torch.nan, device=DEVICE).transpose(1, 2)
    assert vcattn.attention(q, k, v, out=given) is given and same(given.to(BF16), expected)
    mixed = vcattn.attention(q.float(), k.half().float(), v)
    assert mixed.dtype == torch.float32 and error(mixed, exact(q, k, v)[0]) < TOLERANCE["vc8s"]


def test_padding_and_masks():
    q, k, v = tensors(seqlen_q=700)
    lengths = torch.tensor([700, 240])
    keys = (torch.arange(700) < lengths[:, None]).to(DEVICE)
    k[1, :, 240:], v[1, :, 240:] = float("nan"), 1e4
    expected = vcattn.attention(q, k, v, seqused_k=lengths)
    clean = [x.nan_to_num() for x in (k, v)]
    assert error(expected, exact(q, *clean, mask=keys[:, None, None])[0]) < TOLERANCE["vc8s"]
    for values in ([700, 240], np.array([700, 240]), lengths.to(DEVICE), lengths.int().to(DEVICE)):
        assert same(vcattn.attention(q, k, v, seqused_k=values), expected)
    additive = torch.zeros(2, 1, 1, 700, device=DEVICE, dtype=BF16).masked_fill(~keys[:, None, None], float("-inf"))
    for mask in (keys, keys.cpu(), keys[:, None, None], keys[:, None, None].expand(2, 4, 700, 700), additive):
        assert same(vcattn.attention(q, k, v, attn_mask=mask), expected)
    product = keys[:, None, None, :] & keys[:, None, :, None]
    for mask in (product, product.cpu()):
        out, lse = vcattn.attention(q, k, v, attn_mask=mask, return_lse=True)
        assert same(out[0], expected[0]) and same(out[1, :, :240], expected[1, :, :240]) and (out[1, :, 240:] == 0).all()
        assert (lse[1, :, 240:] == -torch.inf).all() and lse[0].isfinite().all()
    with pytest.raises(vcattn.UnsupportedError, match="no key padding"):
        vcattn.attention(q, k, v, attn_mask=keys.flip(1))
    with pytest.raises(vcattn.UnsupportedError, match="bias"):
        vcattn.attention(q, k, v, attn_mask=additive + 1)


def test_no_keys_and_no_rows():
    q, k, v = tensors(seqlen_kv=0)
    out, lse = vcattn.attention(q, k, v, return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()
    q, k, v = tensors(seqlen_q=0)
    assert vcattn.attention(q, k, v).shape == (2, 4, 0, 128)
    q, k, v = tensors(seqlen_q=130, seqlen_kv=130)
    assert (vcattn.attention(q, k, v, seqused_k=[130, 0])[1] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(causal):
    q, k, v = (torch.randn(rows, heads, 64, device=DEVICE, dtype=BF16) for rows, heads in ((400, 4), (900, 2), (900, 2)))
    cu_q, cu_k = torch.tensor([0, 100, 100, 400]), torch.tensor([0, 129, 500, 900])
    out, lse = vcattn.attention_varlen(q, k, v, cu_q, cu_k, 300, 400, is_causal=causal, return_lse=True)
    for i in (0, 2):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        one = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        expected, expected_lse = exact(*one, causal=causal)
        assert error(out[rows].transpose(0, 1)[None], expected) < TOLERANCE["vc8s"]
        assert (lse[None, :, rows] - expected_lse).abs().max() < 0.1
    on_device = vcattn.attention_varlen(q, k, v, cu_q.to(DEVICE), cu_k.int().to(DEVICE), is_causal=causal)
    assert same(on_device, out)


def test_prepared():
    q, k, v = tensors()
    expected, expected_lse = vcattn.attention(q, k, v, return_lse=True)
    prepared = vcattn.prepare(q, k, v)
    assert prepared.nbytes > q.numel() + 2 * k.numel() and np.isnan(prepared.value_energy_removed)
    q.zero_(), k.zero_(), v.zero_()
    out, lse = vcattn.attention_prepared(prepared, return_lse=True)
    assert same(out, expected) and same(lse, expected_lse)
    given = torch.empty_like(out)
    assert vcattn.attention_prepared(prepared, out=given) is given and same(given, expected)
    with pytest.raises(ValueError):
        vcattn.attention_prepared(prepared, out=torch.empty_like(out)[:, :1])
    with pytest.raises(ValueError, match="out must be on the device of q, cuda:0; got cpu"):
        vcattn.attention_prepared(prepared, out=torch.empty_like(out, device="cpu"))


def clustered(seqlen=3000, heads=2):
    centres = 3 * torch.randn(1, 1, 8, 128, device=DEVICE)
    labels = torch.randint(8, (1, heads, seqlen, 1), device=DEVICE).expand(-1, -1, -1, 128)
    return (centres.expand(1, heads, -1, -1).gather(2, labels) + 0.1 * torch.randn(1, heads, seqlen, 128, device=DEVICE)).to(BF16)


def test_state():
    q, k, v = tensors(batch=1, heads=2, seqlen_q=200, seqlen_kv=3000)
    v = clustered()
    state, before = vcattn.GroupingState(total_steps=8, refresh_interval=2, group_fraction=0.5), v.clone()
    cold = vcattn.attention(q, k, v, state=state.at(0, layer=3))
    assert same(cold, vcattn.attention(q, k, v)) and len(state) == 1
    group = state._kept[3, 0]
    assert group.permutation.data.is_cuda and group.centroids.data.is_cuda
    permutation = group.permutation.data.view(1, 2, 3000)
    assert same(permutation.long().sort(-1).values, torch.arange(3000, device=DEVICE).expand(1, 2, -1))
    # Sorted values are alike inside a block of 128, the others are not.
    spread = [x[:, :, :2944].unflatten(2, (23, 128)).float().var(3).mean() for x in (v, v.gather(2, permutation.long()[..., None].expand_as(v)))]
    assert spread[1] < 0.5 * spread[0]
    assert same(vcattn.attention(q, k, v, state=state.at(1, layer=3)), cold)
    kept, address = permutation.clone(), permutation.data_ptr()
    v.copy_(clustered())
    warm = vcattn.attention(q, k, v, state=state.at(2, layer=3))
    assert state._kept[3, 0].permutation.data.data_ptr() == address and not same(permutation, kept)
    assert error(warm, exact(q, k, v)[0]) < TOLERANCE["vc8s"]
    v.copy_(before)
    in_order = vcattn.attention(q, k, v, recipe="vc8s,order=sequence")
    assert same(vcattn.attention(q, k, v, state=vcattn.GroupingState(8, "never").at(0, layer=0)), in_order) and not same(in_order, cold)
    assert same(vcattn.attention_prepared(vcattn.prepare(q, k, v, state=vcattn.GroupingState(8).at(0, layer=0))), cold)
    with pytest.raises(ValueError, match=r"is for v .* on cuda:0; got v .* on cpu; forget"):
        vcattn.attention(q.cpu(), k.cpu(), v.cpu(), state=state.at(3, layer=3))
    with pytest.raises(ValueError, match="2999"):
        vcattn.attention(q, k, v, state=state.at(3, layer=3), seqused_k=[2999])
    state.forget(layer=3)
    vcattn.attention(q, k, v, state=state.at(3, layer=3), seqused_k=[2999])


def test_errors():
    q, k, v = tensors(seqlen_q=130, seqlen_kv=130)
    with pytest.raises(ValueError, match="one device; got cuda:0, cpu and cuda:0"):
        vcattn.attention(q, k.cpu(), v)
    with pytest.raises(ValueError, match="out must be on the device of q"):
        vcattn.attention(q, k, v, out=torch.empty_like(q, device="cpu"))
    with pytest.raises(ValueError, match="overlap"):
        vcattn.attention(q, k, v, out=q)
    with pytest.raises(ValueError, match="seqused_k"):
        vcattn.attention(q, k, v, seqused_k=[131, 3])
    with pytest.raises(ValueError, match="float64"):
        vcattn.attention(q.double(), k, v)
    for recipe, what in (("nvfp4", "nvfp4"), ("sage3", "nvfp4"), ("exact", "f32"), ("vc8s,expcast=affine", "expcast=affine")):
        with pytest.raises(vcattn.UnsupportedError, match=what):
            vcattn.attention(q, k, v, recipe=recipe)
        with pytest.raises(vcattn.UnsupportedError, match=what):
            vcattn.prepare(q, k, v, recipe=recipe)
    wide = tensors(head_dim=256)
    with pytest.raises(vcattn.UnsupportedError, match="head_dim"):
        vcattn.attention(*wide)
    with pytest.warns(RuntimeWarning, match="head_dim"):
        out = vcattn.attention(*wide, fallback="sdpa")
    assert error(out, exact(*wide)[0]) < 0.01 and vcattn.stats()["served"] == {}
    with pytest.raises(RuntimeError, match="no autograd formula"):
        vcattn.attention(q.requires_grad_(), k, v).sum().backward()


def random_arguments(rng):
    """Tensors and options, of which about half are served."""

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    def small(likely, *unlikely):
        return likely if rng.random() < 0.8 else pick(*unlikely)

    head_dim, heads_kv, batch = small(pick(40, 64, 80, 96, 128), 20, 32, 136, 192, 256), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    heads, seqlen_q, seqlen_kv = heads_kv * small(2, 1, 3), int(rng.integers(0, 300)), int(rng.integers(0, 700))
    dtypes = [torch.float32, torch.float16, BF16] + ([torch.float64] if rng.random() < 0.05 else [])
    q, k, v = (torch.randn(shape, device=DEVICE).to(pick(*dtypes)) for shape in
               ((batch, heads, seqlen_q, head_dim), *[(batch, heads_kv, seqlen_kv, head_dim)] * 2))  # fmt: skip
    options = {"recipe": small(pick(*RECIPES), *vcattn.RECIPES, "bf9"), "return_lse": bool(rng.random() < 0.5)}
    if rng.random() < 0.3:
        options["recipe"] += "," + pick("order=sequence", "order=label", "clusters=3", "clusters=300", "block=64", "hadamard=off", "k_mean=off",
                                        "rounding=nearest", "rounding=shaped", "expcast=paper", "expcast=affine")  # fmt: skip
    if rng.random() < 0.3:
        options["is_causal"] = True
    elif rng.random() < 0.3:
        options["state"] = vcattn.GroupingState(4, pick("never", "every_step")).at(0, layer=0)
    if rng.random() < 0.2:
        options["seqused_k"] = rng.integers(0, seqlen_kv + 2, batch)
    elif rng.random() < 0.2:
        mask = torch.arange(seqlen_kv, device=DEVICE) < torch.from_numpy(rng.integers(0, seqlen_kv + 1, (batch, 1))).to(DEVICE)
        options["attn_mask"] = pick(mask, mask[:, None, None], ~mask)
    if rng.random() < 0.1:
        options["out"] = pick(torch.empty_like(q), torch.empty_like(q, device="cpu"), torch.empty_like(q)[:, :, 1:])
    if rng.random() < 0.1:
        k = pick(k.cpu(), k[:, :, :-1], k[..., :-8], k.transpose(2, 3).contiguous().transpose(2, 3))
    return (q, k, v), options


def test_supports_says_what_the_call_does():
    rng = np.random.default_rng(5)
    answers = {True: 0, False: 0}
    for _ in range(500):
        arguments, options = random_arguments(rng)
        ok, reason = vcattn.supports(*arguments, **options)
        answers[ok] += 1
        try:
            vcattn.attention(*arguments, **options)
        except ValueError as refusal:
            assert not ok and reason == str(refusal), (ok, reason, str(refusal), options)
        else:
            assert ok and reason == "", (reason, options, [x.shape for x in arguments])
    torch.cuda.synchronize()
    print(f"supports: {answers[True]} served, {answers[False]} refused, all as announced")
    assert min(answers.values()) > 100


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device only")
    q, k, v = tensors(head_dim=64)
    there = [x.to("cuda:1") for x in (q, k, v)]
    assert torch.cuda.current_device() == 0
    out, lse = vcattn.attention(*there, return_lse=True)
    assert out.device == lse.device == there[0].device and torch.cuda.current_device() == 0
    expected, expected_lse = vcattn.attention(q, k, v, return_lse=True)
    assert torch.equal(out.cpu(), expected.cpu()) and torch.equal(lse.cpu(), expected_lse.cpu())
    prepared = vcattn.prepare(*there)
    assert torch.equal(vcattn.attention_prepared(prepared).cpu(), expected.cpu())
    state = vcattn.GroupingState(8)
    assert torch.equal(vcattn.attention(*there, state=state.at(0, layer=0)).cpu(), expected.cpu())
    assert state._kept[0, 0].permutation.data.device == there[0].device
    with pytest.raises(ValueError, match="cuda:1; got v .* on cuda:0"):
        vcattn.attention(q, k, v, state=state.at(1, layer=0))
    with pytest.raises(ValueError, match="one device"):
        vcattn.attention(there[0], k, v)
    ok, reason = vcattn.supports(*there)
    assert ok, reason
