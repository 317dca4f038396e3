"""Attention backend "vcattn" of diffusers, registered when this module is imported.

    import vcattn.integrations.diffusers
    pipe.transformer.set_attention_backend("vcattn")
    with vcattn.session(pipe, num_inference_steps=50):
        pipe(prompt, num_inference_steps=50)

Self-attention is served. Cross-attention and calls that need a gradient go to the native backend, counted in `vcattn.stats()["bypass"]`;
self-attention that the library does not serve goes to torch's SDPA, counted in ``["fallback"]`` and warned of once for each reason.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from diffusers.models import attention_dispatch as dispatch

from vcattn import _stats
from vcattn._attention import attention
from vcattn.grouping import GroupingState, StepState

# Of a pipeline: Wan2.2 has two experts, MiniMax-H3 another model where it is given references.
_TRANSFORMERS = ("transformer", "transformer_2", "transformer_ref")
_active: list[Session] = []


def _bypass_reason(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float) -> str | None:
    if query.shape[1] != key.shape[1]:
        return "cross-attention"
    if dropout_p > 0:
        return "dropout"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return "gradient"
    return None


def _forward(recipe: str, query, key, value, attn_mask, is_causal, scale, return_lse, grouped=True) -> Any:
    session = _active[-1] if _active else None
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask[:, None]
    return attention(query, key, value, "NHD", is_causal, scale, return_lse, recipe=session.recipe if session else recipe,
                     attn_mask=attn_mask, state=session.state(query) if session and grouped and not is_causal else None,
                     fallback="error" if return_lse else "sdpa")  # fmt: skip


def _context_parallel_forward(recipe, ctx, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
                              return_lse=False, _save_ctx=True, _parallel_config=None) -> Any:  # fmt: skip
    """One step of ring or Ulysses attention; lse is [B, S, H] there."""
    # The ring brings the keys of other processes, which each call has to group for itself.
    grouped = _parallel_config is None or _parallel_config.context_parallel_config.ring_degree == 1
    result = _forward(recipe, query, key, value, attn_mask, is_causal, scale, return_lse, grouped)
    if not return_lse:
        return result
    out, lse = result
    return out, lse.transpose(1, 2).contiguous()


def _no_backward(*_: Any, **__: Any) -> None:
    raise NotImplementedError("vcattn has no gradient; use the native backend for training")


def _backend(recipe: str) -> Callable[..., Any]:
    # diffusers passes what the signature names and silently drops the rest, so that everything is named.
    def vcattn_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
                         dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
                         return_lse: bool = False, _parallel_config: Any = None) -> Any:  # fmt: skip
        """query, key, value: [B, S, H, D]."""
        reason = _bypass_reason(query, key, value, dropout_p)
        if reason:
            if not torch.compiler.is_compiling():
                _stats.count("bypass", f"diffusers: {reason}")
            return _native(query=query, key=key, value=value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                           enable_gqa=enable_gqa, return_lse=return_lse, _parallel_config=_parallel_config)  # fmt: skip
        if _parallel_config is None:
            return _forward(recipe, query, key, value, attn_mask, is_causal, scale, return_lse)
        return dispatch._templated_context_parallel_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse,
            forward_op=functools.partial(_context_parallel_forward, recipe), backward_op=_no_backward, _parallel_config=_parallel_config,
        )  # fmt: skip

    return vcattn_attention


def _native(**arguments: Any) -> Any:
    name = dispatch.AttentionBackendName.NATIVE
    known = dispatch._AttentionBackendRegistry._supported_arg_names[name]
    return dispatch._AttentionBackendRegistry._backends[name](**{key: value for key, value in arguments.items() if key in known})


def add_backend(name: str, function: Callable[..., Any]) -> None:
    """Adds an attention function to the backends of diffusers; again with the same name replaces it.

    diffusers keeps its backends in a closed enumeration, to which the member is added at run time; nothing of diffusers is patched.

    Parameters
    ----------
    name
        What ``set_attention_backend`` gets, in lower case.
    function
        Called with query, key and value [B, S, H, D], and those of attn_mask, dropout_p, is_causal, scale, enable_gqa and _parallel_config
        that its signature names: diffusers drops the others silently.
    """
    if name != name.lower():
        raise ValueError(f"name must be in lower case, as set_attention_backend() looks for it; got {name!r}")
    enum, registry = dispatch.AttentionBackendName, dispatch._AttentionBackendRegistry
    if name not in enum._value2member_map_:
        member = str.__new__(enum, name)
        member._name_, member._value_, member._sort_order_ = name.upper(), name, len(enum._member_names_)
        enum._member_map_[member._name_] = enum._value2member_map_[name] = member
        enum._member_names_.append(member._name_)
        type.__setattr__(enum, member._name_, member)
    backend = enum(name)
    registry._backends[backend] = function
    registry._constraints[backend] = []
    registry._supported_arg_names[backend] = set(inspect.signature(function).parameters)


def register(name: str = "vcattn", recipe: str = "auto") -> None:
    """Adds an attention backend with a recipe to diffusers; again with the same name replaces it.

    Parameters
    ----------
    name
        What ``set_attention_backend`` gets, in lower case.
    recipe
        As for `vcattn.attention`.
    """
    add_backend(name, _backend(recipe))
    backend = dispatch.AttentionBackendName(name)
    parallel = getattr(dispatch._AttentionBackendRegistry, "_supports_context_parallel", None)
    if isinstance(parallel, dict):  # in older releases; a set of values in newer ones
        parallel[backend] = True
    elif parallel is not None:
        parallel.add(backend.value)


class Session:
    """The grouping schedule of one pipeline; made by `session`.

    Attributes
    ----------
    step : int
        Denoising step, counted by calls of ``scheduler.step``.
    recipe : str
    """

    def __init__(self, models: list[torch.nn.Module], num_inference_steps: int, recipe: str, schedule: dict[str, Any]):
        self.step, self.recipe = 0, recipe
        self._num_steps, self._schedule = num_inference_steps, schedule
        self._states: dict[int, GroupingState] = {}  # by model
        self._first_steps: dict[int, int] = {}
        self._model: int | None = None
        self._layer: int | None = None
        self._branches: dict[int, int] = {}  # forward passes of each model at this step
        self._named_branches: dict[str, int] = {}
        self._branch_name: str | None = None
        self._layers = [{id(module): i for i, module in enumerate(_attention_modules(model))} for model in models]

    def restart(self) -> None:
        """A new generation: back to step 0, nothing kept."""
        self.step = 0
        for kept in (self._states, self._first_steps, self._branches, self._named_branches):
            kept.clear()

    def next_step(self) -> None:
        self.step += 1
        self._branches.clear()

    def enter_model(self, model: int) -> None:
        self._model = model
        self._branches[model] = self._branches.get(model, -1) + 1

    def leave_model(self) -> None:
        self._model = self._layer = None

    def enter_layer(self, model: int, module: torch.nn.Module) -> None:
        self._layer = self._layers[model][id(module)]

    @contextlib.contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """Calls inside belong to the CFG branch of that name; without a name they are counted within a step."""
        previous, self._branch_name = self._branch_name, name
        try:
            yield
        finally:
            self._branch_name = previous

    def state(self, query: torch.Tensor) -> StepState | None:
        """The place of the call that is about to be made; None outside the models, or after the last step that was announced."""
        model, layer = self._model, self._layer
        if model is None or layer is None or self.step >= self._num_steps:
            return None
        branch = self._branches[model]
        if self._branch_name is not None:
            branch = self._named_branches.setdefault(self._branch_name, len(self._named_branches))
        if model not in self._states:
            # The second expert of a model has a generation of its own, the steps that are left.
            self._first_steps[model] = self.step
            self._states[model] = GroupingState(self._num_steps - self.step, **self._schedule)
        return self._states[model].follow(query, self.step - self._first_steps[model], layer=layer, branch=branch)

    def keys(self) -> list[tuple[int, int, int]]:
        """(model, layer, branch) that were seen, in order."""
        return sorted((model, *key) for model, state in self._states.items() for key in state.followed())


def _attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if hasattr(getattr(module, "processor", None), "_attention_backend")]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a method of one object, if it has it."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    had_own = name in vars(owner)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if had_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def session(pipe: Any, num_inference_steps: int, *, recipe: str = "auto", policy: str = "first_quarter", refresh_interval: int = 4,
            group_fraction: float = 0.25) -> Iterator[Session]:  # fmt: skip
    """Groups keys at some denoising steps and reuses the result at the others, for each layer and CFG branch.

    Parameters
    ----------
    pipe
        A diffusers pipeline with ``scheduler`` and ``transformer``; for Wan2.2 also ``transformer_2``, for MiniMax-H3 ``transformer_ref``.
    num_inference_steps
        As the pipeline is called with.
    recipe
        Used inside instead of the recipe of the registered backend.
    policy, refresh_interval, group_fraction
        As for `vcattn.GroupingState`; ``transformer_2`` has a schedule of its own over the steps that are left when it starts.

    Yields
    ------
    Session

    Notes
    -----
    Steps are counted by ``scheduler.step``; ``scheduler.set_timesteps`` starts anew, so that several generations may follow one another.
    Branches are told apart by ``cache_context`` where the pipeline uses it, else by their order within a step. When the block ends, also by
    an exception, everything is as before and the state is freed. The hooks do not go into a graph of torch.compile: compile blocks without
    ``fullgraph``, or do without a session.
    """
    models = [model for model in (getattr(pipe, name, None) for name in _TRANSFORMERS) if model is not None]
    if not models:
        raise ValueError(f"session needs a pipeline with a transformer; got {type(pipe).__name__}")
    if not any(_attention_modules(model) for model in models):
        raise ValueError("session found no attention module whose backend can be set; the model does not use diffusers' attention dispatch")
    schedule = {"policy": policy, "refresh_interval": refresh_interval, "group_fraction": group_fraction}
    GroupingState(num_inference_steps, **schedule)  # refuses what cannot be
    current = Session(models, num_inference_steps, recipe, schedule)

    @torch.compiler.disable
    def on_layer(model: int, module: torch.nn.Module, *_: Any) -> None:
        current.enter_layer(model, module)

    def counted_step(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            current.next_step()
            return result

        return step

    def restarting(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)  # pipelines look at the signature to learn whether timesteps or sigmas may be given
        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            current.restart()
            return original(*args, **kwargs)

        return set_timesteps

    def named(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def cache_context(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
            with current.branch(name), original(name, *args, **kwargs):
                yield

        return cache_context

    with contextlib.ExitStack() as stack:
        scheduler = getattr(pipe, "scheduler", None)
        if scheduler is None:
            raise ValueError(f"session needs a pipeline with a scheduler, whose steps it counts; got {type(pipe).__name__}")
        stack.enter_context(_replaced(scheduler, "step", counted_step))
        stack.enter_context(_replaced(scheduler, "set_timesteps", restarting))
        for i, model in enumerate(models):
            stack.enter_context(_replaced(model, "cache_context", named))
            hooks = [model.register_forward_pre_hook(lambda *_, i=i: current.enter_model(i)),
                     model.register_forward_hook(lambda *_: current.leave_model(), always_call=True)]  # fmt: skip
            hooks += [module.register_forward_pre_hook(functools.partial(on_layer, i)) for module in _attention_modules(model)]
            for hook in hooks:
                stack.callback(hook.remove)
        _active.append(current)
        stack.callback(_active.remove, current)
        stack.callback(current.restart)
        yield current


register()
