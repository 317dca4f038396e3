"""Counters of what was served and what was not."""

from __future__ import annotations

import threading
import warnings
from collections import Counter

_lock = threading.Lock()
_counts: dict[str, Counter[str]] = {"served": Counter(), "fallback": Counter(), "bypass": Counter()}
_warned: set[str] = set()


def count(kind: str, what: str) -> None:
    with _lock:
        _counts[kind][what] += 1


def count_fallback(what: str) -> None:
    """Counts a call that something else computed, and warns the first time for each reason."""
    count("fallback", what)
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"vcattn passed a call on: {what} (said once; vcattn.stats() counts them)", RuntimeWarning, stacklevel=3)


def stats() -> dict[str, dict[str, int]]:
    """Calls since the start of the process or `reset_stats()`.

    Returns
    -------
    dict
        ``served``: by recipe, what this library computed; ``fallback``: by fall-back and reason, what it could not serve and a named
        fall-back computed; ``bypass``: by host and kind, what a host integration never offers to it, such as cross-attention.

    Notes
    -----
    Inside a graph of ``torch.compile`` bypasses are not counted, since they are decided when the graph is made.

    Examples
    --------
    >>> import numpy as np, vcattn
    >>> vcattn.reset_stats()
    >>> q = np.ones((1, 1, 4, 64), np.float32)
    >>> _ = vcattn.attention(q, q, q, recipe="vc8")
    >>> vcattn.stats()["served"]
    {'vc8': 1}
    """
    with _lock:
        return {kind: dict(counter) for kind, counter in _counts.items()}


def reset_stats() -> None:
    """Sets every counter of `stats()` to zero."""
    with _lock:
        for counter in _counts.values():
            counter.clear()
        _warned.clear()
