"""How CUDA calls run: streams, graphs, memory, compilation."""

import pytest
import torch
from cuda_cases import BF16, DEVICE, error, exact, same, tensors
from reference import TOLERANCE

import vcattn
from vcattn import _torch  # noqa: F401  registers the operators

OPTIONS = ("HND", False, None, "vc8s", None, None, 0, "error")


def capture(function):
    """A graph of function(), and what it returned."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def busy(milliseconds=200):
    """Keeps the current stream busy for about so long, and gives an event behind it."""
    torch.cuda._sleep(int(milliseconds * 1.9e6))
    event = torch.cuda.Event()
    event.record()
    return event


def test_a_call_waits_for_nothing():
    q, k, v = tensors()
    state = vcattn.GroupingState(100, "every_step")
    cu = torch.tensor([0, 300]), torch.tensor([0, 700])
    calls = {
        "attention": lambda: vcattn.attention(q, k, v, seqused_k=[700, 650]),
        "state": lambda: vcattn.attention(q, k, v, state=state.at(len(state), layer=0)),  # cold, then warm
        "prepared": lambda: vcattn.attention_prepared(vcattn.prepare(q, k, v)),
        "varlen": lambda: vcattn.attention_varlen(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), *cu),
        "mask on the CPU": lambda: vcattn.attention(q, k, v, attn_mask=torch.ones(2, 700, dtype=torch.bool)),
    }
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        event = busy()
        call()
        assert not event.query(), f"{name} waited"
        torch.cuda.synchronize()
    event = busy()
    vcattn.attention(q, k, v, seqused_k=torch.tensor([700, 650], device=DEVICE))
    assert event.query()  # this one has to, and so the test can tell


def test_calls_follow_the_current_stream():
    q, k, v = tensors()
    expected = vcattn.attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for cycles in (0, 100e6):  # the first time memory is allocated
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(cycles))
            late = [torch.zeros_like(x) for x in (q, k, v)]
            for x, y in zip(late, (q, k, v)):
                x.copy_(y)
            out = vcattn.attention(*late)
        if cycles == 0:
            stream.synchronize()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert not stream.query()  # the default stream has nothing to wait for
    stream.synchronize()
    assert same(out, expected)


def test_two_streams_at_once():
    cases = [tensors(seqlen_kv=700), tensors(seqlen_kv=900, head_dim=64)]
    state = vcattn.GroupingState(2)
    expected = [vcattn.attention(*case, state=state.at(0, layer=i)) for i, case in enumerate(cases)]
    torch.cuda.synchronize()
    streams, outs = [torch.cuda.Stream(), torch.cuda.Stream()], ([], [])
    for _ in range(20):
        for i in range(2):
            with torch.cuda.stream(streams[i]):
                outs[i].append(vcattn.attention(*cases[i], state=state.at(1, layer=i)))  # reused, on a stream that did not make it
                outs[i].append(vcattn.attention_prepared(vcattn.prepare(*cases[i])))
    torch.cuda.synchronize()
    assert all(same(out, expected[i]) for i in range(2) for out in outs[i])


def test_memory_is_kept_while_another_stream_uses_it():
    q, k, v = tensors(seqlen_kv=4000, heads_kv=4)
    expected = vcattn.attention(q, k, v)
    stream = torch.cuda.Stream()
    prepared = vcattn.prepare(q, k, v)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(50e6))
        out = vcattn.attention_prepared(prepared)
    size = prepared._storage.count
    del prepared  # its memory must not go to the next tensor of this size on the default stream
    torch.full((size,), 255, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    assert same(out, expected)


def test_nothing_grows_beside_torchs_allocator():
    def beside():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def calls(seqlen):
        q, k, v = tensors(seqlen_q=seqlen, seqlen_kv=seqlen)
        state = vcattn.GroupingState(4, "every_step")
        for step in range(3):
            vcattn.attention(q, k, v, state=state.at(step, layer=0), return_lse=True)
        vcattn.attention_prepared(vcattn.prepare(q, k, v))
        vcattn.attention(q, k, v, recipe="vc8", is_causal=True)

    calls(500)
    before = beside()
    calls(20_000)
    assert beside() == before
    allocated = torch.cuda.memory_allocated()
    calls(20_000)
    assert torch.cuda.memory_allocated() == allocated


@pytest.mark.parametrize("kind", ["attention", "padded", "prepared", "varlen", "out"])
def test_graph_replay_with_other_inputs(kind):
    q, k, v = tensors()
    out = torch.empty_like(q)
    cu = torch.tensor([0, 100, 300]), torch.tensor([0, 400, 700])
    call = {
        "attention": lambda: vcattn.attention(q, k, v, return_lse=True),
        "padded": lambda: (vcattn.attention(q, k, v, "HND", False, 0.1, seqused_k=[700, 333], recipe="vc8"),),
        "prepared": lambda: (vcattn.attention_prepared(vcattn.prepare(q, k, v)),),
        "varlen": lambda: vcattn.attention_varlen(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), *cu, return_lse=True),
        "out": lambda: (vcattn.attention(q, k, v, out=out),),
    }[kind]
    graph, results = capture(call)
    for _ in range(3):
        for x, y in zip((q, k, v), tensors()):
            x.copy_(y)
        graph.replay()
        got = [x.clone() for x in results]
        assert all(same(a, b) for a, b in zip(got, call()))


def test_graph_with_a_state_groups_at_each_replay():
    q, k, v = tensors(batch=1, heads=2)
    state, same_calls = vcattn.GroupingState(10, "every_step"), vcattn.GroupingState(10, "every_step")
    first = v.clone()
    vcattn.attention(q, k, v, state=state.at(0, layer=0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a capture runs nothing: the state is that of step 0
        out = vcattn.attention(q, k, v, state=state.at(1, layer=0))
    vcattn.attention(q, k, first, state=same_calls.at(0, layer=0))
    for step in range(1, 4):
        v.copy_(torch.randn_like(v) + step)
        graph.replay()
        assert same(out, vcattn.attention(q, k, v, state=same_calls.at(step, layer=0)))


def test_lengths_on_the_device_are_refused_in_a_capture():
    q, k, v = tensors()
    vcattn.attention(q, k, v)
    for options in ({"seqused_k": torch.tensor([700, 650], device=DEVICE)}, {"attn_mask": torch.ones(2, 700, dtype=torch.bool, device=DEVICE)}):
        with pytest.raises(ValueError, match="must be on the CPU while a CUDA graph is captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            vcattn.attention(q, k, v, **options)
    assert error(vcattn.attention(q, k, v), exact(q, k, v)[0]) < TOLERANCE["vc8s"]  # the stream is as before


@pytest.mark.parametrize("name", ["attention", "attention_out", "attention_varlen", "nhd"])
def test_opcheck(name):
    q, k, v = tensors(seqlen_q=70, seqlen_kv=131)
    operators, check = torch.ops.vcattn, torch.library.opcheck
    if name == "attention":
        check(operators.attention.default, (q, k, v, *OPTIONS, True))
    elif name == "nhd":
        check(operators.attention.default, (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), "NHD", *OPTIONS[1:], True))
    elif name == "attention_out":
        check(operators.attention_out.default, (q, k, v, torch.empty_like(q), *OPTIONS, False))
    else:
        cu = torch.tensor([0, 40, 70]), torch.tensor([0, 100, 131])
        check(operators.attention_varlen.default, (q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), *cu, None, None, False,
                                                   None, "vc8", True))  # fmt: skip


class Block(torch.nn.Module):
    def __init__(self, channels=256, heads=4):
        super().__init__()
        self.heads, self.norm = heads, torch.nn.LayerNorm(channels)
        self.qkv, self.out = torch.nn.Linear(channels, 3 * channels), torch.nn.Linear(channels, channels)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(channels, 2 * channels), torch.nn.GELU(), torch.nn.Linear(2 * channels, channels))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(vcattn.attention(q, k, v, "NHD").flatten(2))
        return x + self.mlp(x)


def make_model():
    return torch.nn.Sequential(Block(), Block()).to(DEVICE, BF16).eval().requires_grad_(False)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile_fullgraph(mode):
    model = make_model()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(4):  # of which the later ones replay a CUDA graph, with reduce-overhead
        x = torch.randn(2, 200, 256, device=DEVICE, dtype=BF16)
        with torch.no_grad():
            assert error(compiled(x).clone(), model(x).double()) < 0.02
