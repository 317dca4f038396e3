"""Kernels of other projects that are measured beside vcattn: what an environment offers, and files of one's own (--peer)."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Callable, NamedTuple

from kernels import SEED, Inputs, Kernel, reason
from vcattn_abi import BenchError

GEMM_EXTENT = 8192

GEMM = "cublas_fp8"
CUDNN = "cudnn_bf16"
FA3 = "fa3_bf16"


class PeerFile(NamedTuple):
    name: str
    path: Path
    argument: str | None


def parse_peer(text: str) -> PeerFile:
    name, equals, location = text.partition("=")
    path, colon, argument = location.partition(".py:")
    if not (name and equals and location) or not (colon or path.endswith(".py")):
        raise BenchError(f"--peer: NAME=FILE.py or NAME=FILE.py:ARGUMENT required, got '{text}'; for example fa3=my_fa3.py:my_fa3.so")
    return PeerFile(name, Path(path + ".py" if colon else path), argument if colon else None)


def quantise_per_head(torch: Any, x: Any) -> tuple[Any, Any]:
    """E4M3 codes and the descale [1, H]."""
    descale = x.abs().amax(dim=(1, 3)).float().clamp(min=1e-12) / 448.0
    return (x.float() / descale[:, None, :, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), descale.contiguous()


def first(result: Any) -> Any:
    """Functions that can give the log-sum-exp too return a tuple in some versions."""
    return result[0] if isinstance(result, (tuple, list)) else result


Bind = Callable[[Any, Any, Any], Callable[[], Any]]


def cudnn_kernels(torch: Any) -> dict[str, Bind]:
    attention = importlib.import_module("torch.nn.attention")

    def bind(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]

        def call() -> Any:
            with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)

        return call

    return {"bf16": bind}


def fa3_kernels(torch: Any) -> dict[str, Bind]:
    module = importlib.import_module("flash_attn_interface")

    def bind_bf16(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        return lambda: first(module.flash_attn_func(q, k, v, causal=False))

    def bind_fp8(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        (q8, qd), (k8, kd), (v8, vd) = (quantise_per_head(torch, x) for x in (q, k, v))
        return lambda: first(module.flash_attn_func(q8, k8, v8, causal=False, q_descale=qd, k_descale=kd, v_descale=vd))

    return {"bf16": bind_bf16, "fp8": bind_fp8}


def fa4_kernels(torch: Any) -> dict[str, Bind]:
    module = importlib.import_module("flash_attn.cute")
    return {"bf16": lambda q, k, v: lambda: first(module.flash_attn_func(q, k, v, causal=False))}


def sage2_kernels(torch: Any) -> dict[str, Bind]:
    """The package gives its kernels only together with the quantisation before them."""
    module = importlib.import_module("sageattention")
    return {"with_quantisation": lambda q, k, v: lambda: first(module.sageattn(q, k, v, tensor_layout="NHD", is_causal=False))}


BUILT_IN_PEERS: dict[str, Callable[[Any], dict[str, Bind]]] = {"cudnn": cudnn_kernels, "fa3": fa3_kernels, "sage2": sage2_kernels, "fa4": fa4_kernels}


def load_peer_file(peer: PeerFile) -> tuple[dict[str, Bind], str | None]:
    """KERNELS of the file and what its load() says about itself."""
    if not peer.path.is_file():
        raise BenchError(f"--peer {peer.name}: a file required, got {peer.path}, which does not exist")
    spec = importlib.util.spec_from_file_location(f"peer_{peer.name}", peer.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    description = module.load(peer.argument)
    return dict(module.KERNELS), None if description is None else str(description)


class Peers:
    """What can be measured beside vcattn; `missing` says why something cannot. kernel_names: these alone, of any project."""

    def __init__(self, torch: Any, files: list[PeerFile], kernel_names: tuple[str, ...] | None = None):
        self.binds: dict[str, Bind] = {}
        self.descriptions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        given = {peer.name: peer for peer in files}
        for name in (*BUILT_IN_PEERS, *(name for name in given if name not in BUILT_IN_PEERS)):
            if kernel_names is not None and not any(kernel == name or kernel.startswith(f"{name}_") for kernel in kernel_names):
                if name in given:
                    raise BenchError(f"--peer: a peer of {', '.join(kernel_names)} required, got {name}; leave it out")
                continue
            try:
                if name in given:
                    kernels, description = load_peer_file(given[name])
                    if description:
                        self.descriptions[name] = description
                else:
                    kernels = BUILT_IN_PEERS[name](torch)
            except Exception as error:  # whatever another project's code raises
                self.missing[name] = reason(error)
                continue
            self.binds |= {f"{name}_{suffix}" if suffix else name: bind for suffix, bind in kernels.items()}
        if kernel_names is not None:
            self.binds = {name: bind for name, bind in self.binds.items() if name in kernel_names}

    def kernels(self, inputs: Inputs, operations: float, missing: dict[str, str]) -> list[Kernel]:
        """Of these inputs; what cannot be bound goes to `missing`."""
        kernels = []
        for name, bind in self.binds.items():
            try:
                kernels.append(Kernel(name, bind(*inputs), operations))
            except Exception as error:  # whatever another project's code raises
                missing[name] = reason(error)
        return kernels


def gemm_kernel(torch: Any) -> Kernel:
    """The product of two E4M3 matrices, BF16 output, by cuBLAS."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)

    def matrix() -> Any:
        return torch.randn(GEMM_EXTENT, GEMM_EXTENT, device="cuda", generator=generator).to(torch.float8_e4m3fn)

    a, b, one = matrix(), matrix().t(), torch.ones((), device="cuda")
    return Kernel(GEMM, lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True),
                  2.0 * GEMM_EXTENT**3, attention=False)
