"""ComfyUI node "vcattn attention": serves the self-attention of a model, with the grouping schedule. `integrations/comfyui` is the folder to
put into ComfyUI's ``custom_nodes``.

Works through ``transformer_options["optimized_attention_override"]`` of a cloned model; nothing of ComfyUI is patched, and text encoders,
which have no transformer options, are not touched. Self-attention is served; cross-attention, calls that need a gradient, and calls that a
model marks with ``low_precision_attention=False``, go to ComfyUI's own attention.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from vcattn import _abi, _stats
from vcattn._attention import attention
from vcattn._core import check_recipe
from vcattn.grouping import POLICIES, GroupingState, StepState
from vcattn.integrations._host import needed

with needed("comfyui", "pip install torch"):
    import torch


def _nothing() -> None:
    """A weak reference to nothing."""


class Override:
    """``f(default, q, k, v, heads, ...)`` as ComfyUI calls it: q, k, v [B, S, H * D], or [B, H, S, D] with skip_reshape."""

    def __init__(self, recipe: str, policy: str, refresh_interval: int):
        # Refuses what cannot be, before anything is sampled.
        check_recipe(recipe)
        GroupingState(1, policy, refresh_interval)
        self.recipe, self._schedule = recipe, {"policy": policy, "refresh_interval": refresh_interval}
        self._sigmas: Any = None  # of the forward pass that is running
        self._sample_sigmas: Any = _nothing  # weak reference to those of the generation that is running
        self._state: GroupingState | None = None
        self._step = self._layer = 0
        self._branch: tuple[int, ...] = ()
        self._branches: dict[tuple[int, ...], int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Override:
        """ComfyUI copies the options of a model with every clone, which begins anew."""
        return Override(self.recipe, **self._schedule)

    def __call__(self, default: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, mask: Any = None,
                 attn_precision: Any = None, skip_reshape: bool = False, skip_output_reshape: bool = False, **kwargs: Any) -> torch.Tensor:  # fmt: skip
        reason = ("cross-attention" if q.shape[-2] != k.shape[-2] else
                  "gradient" if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad) else
                  "low_precision_attention=False" if kwargs.get("low_precision_attention") is False else None)  # fmt: skip
        if reason:
            _stats.count("bypass", f"comfyui: {reason}")
            return default(q, k, v, heads, mask=mask, attn_precision=attn_precision, skip_reshape=skip_reshape,
                           skip_output_reshape=skip_output_reshape, **kwargs)  # fmt: skip
        if not skip_reshape:
            head_dim = q.shape[-1] // heads
            q, k, v = (x.unflatten(-1, (-1, head_dim)).transpose(1, 2) for x in (q, k, v))
        if mask is not None and mask.ndim < 4:  # [Sq, Sk] or [B, Sq, Sk]
            mask = mask[(None,) * (3 - mask.ndim)][:, None]
        out = attention(q, k, v, "HND", sm_scale=kwargs.get("scale"), recipe=self.recipe, attn_mask=mask,
                        state=self._place(q, kwargs.get("transformer_options") or {}), fallback="sdpa")  # fmt: skip
        return out if skip_output_reshape else out.transpose(1, 2).flatten(2)

    def _place(self, q: torch.Tensor, options: dict[str, Any]) -> StepState | None:
        """Step from the sigmas, branch from cond_or_uncond, layer by counting calls of a forward pass."""
        sigmas, sample_sigmas = options.get("sigmas"), options.get("sample_sigmas")
        if sigmas is None or sample_sigmas is None:
            return None
        branch = tuple(options.get("cond_or_uncond", ()))
        if sample_sigmas is not self._sample_sigmas():
            self._sample_sigmas, self._sigmas = weakref.ref(sample_sigmas, self._end), None
            self._state = GroupingState(max(len(sample_sigmas) - 1, 1), **self._schedule)
            self._branches = {}
        if sigmas is not self._sigmas or branch != self._branch:  # a new forward pass: one look at the numbers
            self._sigmas, self._branch, self._layer = sigmas, branch, 0
            # The last sigma that is not below the current one: samplers also evaluate between two steps.
            self._step = max(int((sample_sigmas >= sigmas.flatten()[0].to(sample_sigmas)).sum()) - 1, 0)
        layer, self._layer = self._layer, self._layer + 1
        if self._state is None or self._step >= self._state.total_steps:
            return None
        return self._state.follow(q, self._step, layer=layer, branch=self._branches.setdefault(branch, len(self._branches)))

    def _end(self, sample_sigmas: Any) -> None:
        """The sampler has let go of its sigmas: nothing is kept until the next generation."""
        if sample_sigmas is self._sample_sigmas:
            self._state = self._sigmas = None


class VcattnAttention:
    """The node."""

    CATEGORY, FUNCTION, RETURN_TYPES = "model_patches/attention", "patch", ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {
            "model": ("MODEL",),
            "recipe": (["auto", *_abi.RECIPES], {"default": "auto"}),
            "grouping": (list(POLICIES), {"default": "first_quarter"}),
            "refresh_interval": ("INT", {"default": 4, "min": 1, "max": 1000}),
        }}  # fmt: skip

    def patch(self, model: Any, recipe: str, grouping: str, refresh_interval: int) -> tuple[Any]:
        patched = model.clone()
        options = patched.model_options["transformer_options"] = dict(patched.model_options.get("transformer_options", {}))
        options["optimized_attention_override"] = Override(recipe, grouping, refresh_interval)
        return (patched,)


NODE_CLASS_MAPPINGS = {"VcattnAttention": VcattnAttention}
NODE_DISPLAY_NAME_MAPPINGS = {"VcattnAttention": "vcattn attention"}
