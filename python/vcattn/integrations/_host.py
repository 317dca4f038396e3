"""What integrations share: hosts that are missing, and hosts that have changed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from vcattn._abi import UnsupportedError


@contextlib.contextmanager
def needed(integration: str, install: str) -> Iterator[None]:
    """For imports: what is missing is told together with how to install it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"vcattn.integrations.{integration} needs a module that cannot be imported: {error}; {install}", name=error.name,
                          path=error.path) from error  # fmt: skip


def check_parameters(function: Callable[..., Any], name: str, parameters: tuple[str, ...], host: str) -> None:
    """Refuses a function of a host that has other parameters than those that its replacement was written for. Errors: UnsupportedError."""
    found = tuple(inspect.signature(function).parameters)
    if found != parameters:
        raise UnsupportedError(f"{name} must have the parameters {', '.join(parameters)}; got {', '.join(found)}; use a release of vcattn that "
                               f"knows this version of {host}")  # fmt: skip
