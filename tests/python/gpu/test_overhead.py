"""Host time of a call. Alone in a process, since torch.compile leaves hooks behind that slow Python down."""

import subprocess
import sys
from pathlib import Path


def test_overhead_of_python(capsys):
    """Beyond the library's part of a call, which checks, plans and launches the kernels."""
    printed = subprocess.run([sys.executable, Path(__file__).parent / "host_time.py"], check=True, capture_output=True, text=True).stdout
    figures = {name.strip(): float(figure) for name, figure in (line.rsplit(None, 1) for line in printed.splitlines())}
    with capsys.disabled():
        print("\n" + printed, end="")
    for call, part in (("attention()", "library"), ("attention(), state reused", "library, state reused")):
        assert figures[call] - figures[part] < 60, figures
