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
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from vcattn import _stats
from vcattn._attention import attention
from vcattn._core import check_recipe
from vcattn.grouping import GroupingState, StepState, check_whole
from vcattn.integrations._host import needed

with needed("diffusers", "pip install torch 'diffusers>=0.36'"):
    import torch
    from diffusers.models import attention_dispatch as dispatch

# Of a pipeline: Wan2.2 has two experts, MiniMax-H3 another model where it is given references.
_TRANSFORMERS = ("transformer", "transformer_2", "transformer_ref")


def _bypass_reason(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float) -> str | None:
    if query.shape[1] != key.shape[1]:
        return "cross-attention"
    if dropout_p > 0:
        return "dropout"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return "gradient"
    return None


def _forward(recipe: str, query, key, value, attn_mask, is_causal, scale, return_lse, grouped=True) -> Any:
    if getattr(attn_mask, "ndim", None) == 3:
        attn_mask = _mask_of_heads_or_batch(attn_mask, query)
    arguments = (query, key, value, "NHD", is_causal, scale, return_lse)
    options = {"attn_mask": attn_mask, "fallback": "error" if return_lse else "sdpa"}
    if _open:  # so that a graph that is compiled without sessions is one
        return _forward_in_session(recipe, grouped and not is_causal, *arguments, **options)
    return attention(*arguments, recipe=recipe, **options)


def _mask_of_heads_or_batch(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """[B, Sq, Sk] for the flash and sage backends of diffusers, [H, Sq, Sk] for torch, as [B|1, H|1, Sq, Sk]. query: [B, S, H, D]."""
    batch, num_heads = query.shape[0], query.shape[2]
    if mask.shape[0] == batch == num_heads > 1:
        raise ValueError(f"attn_mask {list(mask.shape)} may be [B, Sq, Sk] or [H, Sq, Sk], since B = H here; pass four dimensions")
    return mask[:, None] if mask.shape[0] == batch else mask[None]


@torch.compiler.disable
def _forward_in_session(recipe: str, grouped: bool, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Of the model whose forward pass is running, which may be in another session or in none."""
    place, state = _current_place(), None
    if place is not None:
        session = place.session
        session._served.add(place.model)
        recipe = session.recipe or recipe
        state = session.state(query) if grouped else None
    return attention(query, *arguments, recipe=recipe, state=state, **options)


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

    Raises
    ------
    ValueError
        If the name is not in lower case, or belongs to a backend of diffusers.
    """
    if name != name.lower():
        raise ValueError(f"name must be in lower case, as set_attention_backend() looks for it; got {name!r}")
    enum, registry = dispatch.AttentionBackendName, dispatch._AttentionBackendRegistry
    if name in enum._value2member_map_ and not _is_added(name):
        raise ValueError(f"name must not be one of the backends that diffusers has itself; got {name!r}; choose another")
    if name not in enum._value2member_map_:
        member = str.__new__(enum, name)
        member._name_, member._value_, member._sort_order_ = name.upper(), name, len(enum._member_names_)
        member.added_at_run_time = True
        enum._member_map_[member._name_] = enum._value2member_map_[name] = member
        enum._member_names_.append(member._name_)
        type.__setattr__(enum, member._name_, member)
    backend = enum(name)
    registry._backends[backend] = function
    registry._constraints[backend] = []
    registry._supported_arg_names[backend] = set(inspect.signature(function).parameters)


def _is_added(name: str) -> bool:
    return getattr(dispatch.AttentionBackendName._value2member_map_.get(name), "added_at_run_time", False)


def register(name: str = "vcattn", recipe: str = "auto") -> None:
    """Adds an attention backend with a recipe to diffusers; again with the same name replaces it.

    Parameters
    ----------
    name
        What ``set_attention_backend`` gets, in lower case.
    recipe
        As for `vcattn.attention`.

    Raises
    ------
    ValueError
        If there is no such recipe; also as `add_backend`.
    TypeError
        If the recipe is not a string.
    """
    check_recipe(recipe)
    add_backend(name, _backend(recipe))
    backend = dispatch.AttentionBackendName(name)
    parallel = getattr(dispatch._AttentionBackendRegistry, "_supports_context_parallel", None)
    if isinstance(parallel, dict):  # in older releases; a set of values in newer ones
        parallel[backend] = True
    elif parallel is not None:
        parallel.add(backend.value)


class _Place(NamedTuple):
    """An attention layer of a model of a session, by number."""

    session: Session
    model: int
    layer: int


# The attention layer whose forward pass is running, in this thread or asyncio task. So calls find their session by the model that makes them.
_place: ContextVar[_Place | None] = ContextVar("vcattn_place", default=None)
_open: list[Session] = []
_opening = threading.RLock()


def _current_place() -> _Place | None:
    place = _place.get()  # which may be of a session that is over: torch calls no hook after KeyboardInterrupt, nor after an error in a graph
    return place if place is not None and place.session in _open else None


@torch.compiler.disable
def _enter_model(session: Session, model: int, *_: Any) -> None:
    if session in _open:  # else a graph was compiled with the hook
        session._enter_model(model)


@torch.compiler.disable
def _enter_layer(place: _Place, *_: Any) -> None:
    _place.set(place)


@torch.compiler.disable
def _leave_layer(*_: Any) -> None:
    _place.set(None)


class Session:
    """The grouping schedule of one pipeline; made by `session`.

    Attributes
    ----------
    step : int
        Denoising step, counted by calls of ``scheduler.step``.
    recipe : str or None
        None: that of the backend which a model uses.
    """

    def __init__(self, pipe: Any, models: dict[str, torch.nn.Module], num_inference_steps: int, recipe: str | None, schedule: dict[str, Any]):
        self.step, self.recipe = 0, recipe
        self._pipe, self._models, self._scheduler = pipe, models, None
        self._num_steps, self._schedule = num_inference_steps, schedule
        self._states: dict[int, GroupingState] = {}  # by model
        self._first_steps: dict[int, int] = {}
        self._branches: dict[int, int] = {}  # forward passes of each model at this step
        self._named_branches: dict[str, int] = {}
        self._branch_name: str | None = None
        self._ran: set[int] = set()  # models
        self._served: set[int] = set()
        self._warned_of_steps = False
        self._hooks, self._scheduler_hooks = contextlib.ExitStack(), contextlib.ExitStack()

    def restart(self) -> None:
        """A new generation: back to step 0, nothing kept."""
        self.step = 0
        for kept in (self._states, self._first_steps, self._branches, self._named_branches):
            kept.clear()

    def next_step(self) -> None:
        self.step += 1
        self._branches.clear()

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
        place = _current_place()
        if place is None or place.session is not self:
            return None
        model = place.model
        self._served.add(model)
        if self.step >= self._num_steps:
            self._warn_of_steps()
            return None
        branch = self._branches.get(model, 0)  # not there where something calls the blocks of a model one by one
        if self._branch_name is not None:
            branch = self._named_branches.setdefault(self._branch_name, len(self._named_branches))
        if model not in self._states:
            # The second expert of a model has a generation of its own, the steps that are left.
            self._first_steps[model] = self.step
            self._states[model] = GroupingState(self._num_steps - self.step, **self._schedule)
        return self._states[model].follow(query, self.step - self._first_steps[model], layer=place.layer, branch=branch)

    def keys(self) -> list[tuple[int, int, int]]:
        """(model, layer, branch) that were seen, in order."""
        return sorted((model, *key) for model, state in self._states.items() for key in state.followed())

    def _start(self) -> None:
        """Hooks models and scheduler. Errors: ValueError if another session has one of them, or the pipeline has no scheduler."""
        with _opening:
            for name, model in self._models.items():
                if any(model is other for session in _open for other in session._models.values()):
                    raise ValueError(f"a model can be in one session at a time; got {name}, which is in an open one; leave that first")
            self._follow_scheduler()
            _open.append(self)
        for i, model in enumerate(self._models.values()):
            self._hooks.enter_context(_replaced(model, "cache_context", self._named))
            handles = [model.register_forward_pre_hook(functools.partial(_enter_model, self, i))]
            for layer, module in enumerate(_attention_modules(model)):
                handles += [module.register_forward_pre_hook(functools.partial(_enter_layer, _Place(self, i, layer))),
                            module.register_forward_hook(_leave_layer, always_call=True)]  # fmt: skip
            for handle in handles:
                self._hooks.callback(handle.remove)

    def _stop(self) -> None:
        """Everything is as before, and the state is freed."""
        self._hooks.close()
        self._scheduler_hooks.close()
        self.restart()
        with _opening:
            if self in _open:
                _open.remove(self)

    def _enter_model(self, model: int) -> None:
        self._follow_scheduler()
        self._ran.add(model)
        self._branches[model] = self._branches.get(model, -1) + 1

    def _unserved(self) -> str | None:
        """What went past this session, if anything did."""
        if not self._ran:
            return f"none of {', '.join(self._models)} ran inside; call the pipeline inside the session that it was given to"
        names = list(self._models)
        missed = [names[model] for model in sorted(self._ran - self._served)]
        return (f"{', '.join(missed)} ran inside, but no self-attention of it reached vcattn; call set_attention_backend('vcattn') of it before, "
                "and see vcattn.stats()['bypass']") if missed else None  # fmt: skip

    def _warn_of_steps(self) -> None:
        if not self._warned_of_steps:
            self._warned_of_steps = True
            warnings.warn(f"session was given num_inference_steps={self._num_steps}, and another step began; from here on every call groups its "
                          "keys for itself; give it the number of calls of scheduler.step() (a new generation calls set_timesteps() first, "
                          "which starts anew)", RuntimeWarning, stacklevel=2)  # fmt: skip

    def _follow_scheduler(self) -> None:
        """Counts the steps of the pipeline's scheduler. Another one than before begins a new generation."""
        scheduler = getattr(self._pipe, "scheduler", None)
        if scheduler is self._scheduler and scheduler is not None:
            return
        if not callable(getattr(scheduler, "step", None)):
            raise ValueError(f"session needs a pipeline with a scheduler, whose steps it counts; got {type(self._pipe).__name__} with scheduler "
                             f"{type(scheduler).__name__}")  # fmt: skip
        with _opening:
            if any(session._scheduler is scheduler for session in _open if session is not self):
                raise ValueError("a scheduler can be in one session at a time, which counts its steps; got one that is in an open session; give "
                                 "each pipeline its own: pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)")  # fmt: skip
            self._scheduler = scheduler
        self._scheduler_hooks.close()
        self._scheduler_hooks.enter_context(_overridden(scheduler, "step", self._counted))
        self._scheduler_hooks.enter_context(_overridden(scheduler, "set_timesteps", self._restarting))
        self.restart()

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.next_step()
            return result

        return step

    def _restarting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)  # pipelines look at the signature to learn whether timesteps or sigmas may be given
        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            self.restart()
            return original(*args, **kwargs)

        return set_timesteps

    def _named(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def cache_context(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
            with self.branch(name), original(name, *args, **kwargs):
                yield

        return cache_context


def _attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if hasattr(getattr(module, "processor", None), "_attention_backend")]


def _backends(models: dict[str, torch.nn.Module]) -> list[str]:
    """Names of the attention backends that are set on the modules; where none is, the active one is used."""
    active = dispatch._AttentionBackendRegistry._active_backend
    backends = [module.processor._attention_backend or active for model in models.values() for module in _attention_modules(model)]
    return sorted({getattr(backend, "value", backend) for backend in backends})


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
def _overridden(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a method of one object, if it has it, by a class of its own, so that copies of it (pipelines make them) are as before."""
    original = getattr(type(owner), name, None)
    if original is None or name in vars(owner):
        with _replaced(owner, name, make):
            yield
        return
    made = make(getattr(owner, name))

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return made(*args, **kwargs) if self is owner else original(self, *args, **kwargs)

    before = type(owner)
    owner.__class__ = type(before.__name__, (before,), {name: method, "__module__": before.__module__, "__qualname__": before.__qualname__})
    try:
        yield
    finally:
        owner.__class__ = before


@contextlib.contextmanager
def session(pipe: Any, num_inference_steps: int, *, recipe: str | None = None, policy: str = "first_quarter", refresh_interval: int = 4,
            group_fraction: float = 0.25) -> Iterator[Session]:  # fmt: skip
    """Groups keys at some denoising steps and reuses the result at the others, for each layer and CFG branch.

    Parameters
    ----------
    pipe
        A diffusers pipeline with ``scheduler`` and ``transformer``; for Wan2.2 also ``transformer_2``, for MiniMax-H3 ``transformer_ref``.
        Their attention backend must be set before.
    num_inference_steps
        As the pipeline is called with. Calls of more steps are served without a schedule, and a RuntimeWarning says so.
    recipe
        Used inside instead of that of the registered backend; None: that of the backend which each model uses.
    policy, refresh_interval, group_fraction
        As for `vcattn.GroupingState`; ``transformer_2`` has a schedule of its own over the steps that are left when it starts.

    Yields
    ------
    Session

    Raises
    ------
    ValueError
        A pipeline without transformer or scheduler, or whose transformers all use backends other than vcattn's; a model or scheduler that is
        in another open session; a recipe, policy or number that cannot be.
    TypeError
        If num_inference_steps is not an integer, or recipe not a string.

    Warns
    -----
    RuntimeWarning
        When the block ends and a transformer that ran was not served, or none ran.

    Notes
    -----
    Steps are counted by ``scheduler.step``; ``scheduler.set_timesteps``, and another scheduler for the pipeline, start anew, so that several
    generations may follow one another. Branches are told apart by ``cache_context`` where the pipeline uses it, else by their order within
    a step. When the block ends, also by an exception, everything is as before and the state is freed.

    A call belongs to the session of the model that makes it. Sessions of different pipelines may be open at the same time, nested or in
    several threads; models outside them are not affected. One session is for one thread at a time.

    Models may be compiled, as a whole or by blocks. While a session is open, attention is not part of a graph, of models outside it neither:
    do without ``fullgraph``.
    """
    num_inference_steps = check_whole(num_inference_steps, "num_inference_steps")
    if num_inference_steps < 1:
        raise ValueError(f"num_inference_steps must be at least 1; got {num_inference_steps}")
    if recipe is not None:
        check_recipe(recipe)
    schedule = {"policy": policy, "refresh_interval": refresh_interval, "group_fraction": group_fraction}
    GroupingState(num_inference_steps, **schedule)  # refuses what cannot be
    found = {name: getattr(pipe, name, None) for name in _TRANSFORMERS}
    models = {name: getattr(model, "_orig_mod", model) for name, model in found.items() if model is not None}  # what torch.compile() wraps
    if not models:
        raise ValueError(f"session needs a pipeline with a transformer; got {type(pipe).__name__}")
    backends = _backends(models)
    if not backends:
        raise ValueError("session found no attention module whose backend can be set; the model does not use diffusers' attention dispatch")
    if not any(map(_is_added, backends)):
        raise ValueError(f"session needs a transformer that uses a backend of vcattn; got {', '.join(backends)}; call "
                         "pipe.transformer.set_attention_backend('vcattn') first")  # fmt: skip
    current = Session(pipe, models, num_inference_steps, recipe, schedule)
    try:
        current._start()
        yield current
        if unserved := current._unserved():
            warnings.warn(f"session: {unserved}", RuntimeWarning, stacklevel=3)
    finally:
        current._stop()


register()
