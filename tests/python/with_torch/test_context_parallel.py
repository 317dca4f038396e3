"""Ring and Ulysses attention of diffusers with two processes on the CPU."""

import json
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing


def work(rank, kind, port, folder):
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    torch.set_num_threads(1)
    from diffusers import ContextParallelConfig

    torch.accelerator.device_count = lambda: 1  # diffusers takes a rank modulo this, which is 0 without a GPU
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    from reference import relative_error
    from test_diffusers import run, wan_inputs, wan_transformer

    import vcattn

    torch.manual_seed(1)
    model, inputs = wan_transformer(), wan_inputs(frames=4)
    native = run(model, inputs, "native")
    model.set_attention_backend("vcattn")
    model.enable_parallelism(config=ContextParallelConfig(**{f"{kind}_degree": 2}))
    with torch.no_grad():
        got = model(**inputs, return_dict=False)[0]
    (Path(folder) / f"{rank}.json").write_text(json.dumps({"error": relative_error(got, native), **vcattn.stats()}))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind, calls", [("ring", 4), ("ulysses", 2)])
def test_two_processes(kind, calls, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (kind, port, str(tmp_path)), nprocs=2)
    for rank in range(2):
        result = json.loads((tmp_path / f"{rank}.json").read_text())
        assert 0 < result["error"] < 0.02
        assert result["served"] == {"auto": calls} and result["fallback"] == {}
