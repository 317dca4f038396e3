"""What is compared: recipes with grouping policies, a second BF16 kernel, and recipes that are emulated; how calls reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

import vcattn
from vcattn.integrations import diffusers as integration

# Recipes with means of V, for which the keys are grouped, by default as vcattn.session does it. The others are baselines in sequence order.
GROUPED, DEFAULT_POLICY, SEQUENCE_ORDER = ("vsmooth8", "vc8-paper", "vc8", "vsmooth8s", "vc8s", "vsmooth4"), "first_quarter", "never"
EMULATED = ("nvfp4", "sage3", "vsmooth4")  # by emulation.py, where the device does not serve them
BACKEND = "compared"
# Backends of diffusers that force one kernel: of the reference, and of the noise floor.
BF16_KERNELS = {"cuda": ("_native_cudnn", "_native_flash"), "cpu": ("native", "_native_math")}


@dataclass(frozen=True)
class Variant:
    """A way to compute self-attention.

    Attributes
    ----------
    recipe
        Of vcattn, or a BF16 backend of diffusers.
    policy
        Of grouping, as `vcattn.GroupingState` has it; None for BF16.
    kind
        "recipe", "emulated" or "bf16".
    """

    recipe: str
    policy: str | None = None
    kind: str = "recipe"

    def __str__(self) -> str:
        return f"{self.recipe}{f' {self.policy}' if self.policy else ''}{', emulated' if self.kind == 'emulated' else ''}"


def noise_floor(device: torch.device, backend: str) -> list[Variant]:
    """A BF16 backend of diffusers as a variant; "auto": by device, "none": nothing. Errors: ValueError where it does not run here."""
    if backend == "none":
        return []
    if backend == "auto":
        backend = BF16_KERNELS[device.type][1]
    if backend.startswith(("vcattn", "sage")):
        raise ValueError(f"--noise-floor needs a backend that computes in BF16; got {backend}, which quantises")
    q = torch.zeros(1, 128, 1, 128, dtype=torch.bfloat16, device=device)
    try:
        dispatch_attention_fn(q, q, q, backend=AttentionBackendName(backend))
    except Exception as error:  # noqa: BLE001  backends raise what they like
        raise ValueError(f"--noise-floor needs an attention backend of diffusers that runs on {device}; got {backend}: {error}") from error
    return [Variant(backend, kind="bf16")]


def choose(device: torch.device, head_dim: int, recipes: Sequence[str], policies: Sequence[str],
           policy_recipes: Sequence[str]) -> list[Variant]:  # fmt: skip
    """Recipes as variants, in the order they run. Errors: UnsupportedError for a recipe that is named and not served.

    Parameters
    ----------
    recipes
        Empty: what the device serves and what is emulated there.
    policies, policy_recipes
        These recipes run once with each of these policies, the others with their default.
    """
    q = torch.empty(1, 128, 1, head_dim, dtype=torch.bfloat16, device=device)
    answers = {recipe: vcattn.supports(q, q, q, "NHD", recipe=recipe) for recipe in recipes or vcattn.RECIPES}
    variants = []
    for recipe, (served, why_not) in answers.items():
        name = recipe.split(",")[0]
        emulated = not served and device.type == "cuda" and name in EMULATED
        if served or emulated:
            default = DEFAULT_POLICY if name in GROUPED else SEQUENCE_ORDER
            variants += [Variant(recipe, policy, "emulated" if emulated else "recipe")
                         for policy in (dict.fromkeys(policies) if recipe in policy_recipes else [default])]  # fmt: skip
        elif recipes or recipe in policy_recipes:
            option = "--recipes" if recipes else "--policy-recipes"
            raise vcattn.UnsupportedError(f"{option} needs recipes that {device} serves; got {recipe}: {why_not}")
    if any(variant.kind == "emulated" for variant in variants):
        import emulation  # noqa: F401  so that what it lacks is told now, and not after an hour
    return variants


@contextlib.contextmanager
def attention_of(variant: Variant | None, pipe: Any, steps: int, device: torch.device) -> Iterator[None]:
    """Self-attention of the pipeline inside is that of the variant; None: the reference. Everything else is always the reference.

    The models must use the backend `BACKEND`. vcattn's counters begin anew. Raises UnsupportedError at the end where a recipe passed on a call, since such a video would
    not show the recipe.
    """
    vcattn.reset_stats()
    reference = BF16_KERNELS[device.type][0]
    if variant is None or variant.kind == "bf16":
        integration.add_backend(BACKEND, _route(variant.recipe if variant else reference, reference))
        yield
        return
    if variant.kind == "emulated":
        with vcattn.session(pipe, steps, policy=variant.policy) as session:
            integration.add_backend("emulated", _emulated(variant.recipe, session))
            integration.add_backend(BACKEND, _route("emulated", reference))
            yield
        return
    integration.add_backend(BACKEND, _route("vcattn", reference))
    with vcattn.session(pipe, steps, recipe=variant.recipe, policy=variant.policy):
        yield
    stats = vcattn.stats()
    if stats["fallback"] or stats["bypass"] or not stats["served"]:
        raise vcattn.UnsupportedError(f"{variant} must serve every self-attention, so that there is something to compare; got {stats}; "
                                      "leave it out of --recipes")  # fmt: skip


def _route(backend: str, reference: str) -> Callable[..., torch.Tensor]:
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
                  dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
                  _parallel_config: Any = None) -> torch.Tensor:  # fmt: skip
        own = backend if query.shape[1] == key.shape[1] else reference
        return dispatch_attention_fn(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend=own,
                                     parallel_config=_parallel_config)  # fmt: skip

    return attention


def _emulated(recipe: str, session: integration.Session) -> Callable[..., torch.Tensor]:
    from emulation import emulated_attention

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
                  dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None) -> torch.Tensor:  # fmt: skip
        if attn_mask is not None or dropout_p or is_causal:
            raise ValueError(f"emulated recipes take no mask, dropout or causal order; leave {recipe} out of --recipes")
        return emulated_attention(query, key, value, recipe, sm_scale=scale, state=session.state(query))

    return attention
