"""The installed package: import cost, command line, doctests."""

import _ctypes
import doctest
import importlib
import os
import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_needs_neither_torch_nor_cuda():
    code = "import sys; sys.modules['torch'] = None\nimport vcattn; assert 'diffusers' not in sys.modules; vcattn.show_config()"
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert "not imported" in result.stdout


def test_import_does_not_import_torch():
    result = run("import sys, vcattn; print('torch' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_module_prints_configuration_and_checks_itself():
    result = subprocess.run([sys.executable, "-m", "vcattn"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "C ABI" in result.stdout and result.stdout.count("ok") >= 5 and "FAILED" not in result.stdout


@pytest.mark.parametrize("name", ["vcattn", "vcattn._attention", "vcattn._audit", "vcattn._config", "vcattn._stats", "vcattn.compat", "vcattn.grouping"])
def test_doctests(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0 and result.attempted > 0


@pytest.mark.parametrize("what", ["missing", "a folder", "text", "another library", "relative"])
def test_a_library_that_cannot_be_loaded_is_named(tmp_path, what):
    path = tmp_path / "library.so"
    if what == "a folder":
        path.mkdir()
    elif what == "text":
        path.write_text("no library")
    elif what == "another library":
        path.symlink_to(_ctypes.__file__)
    named = os.path.relpath(path) if what == "relative" else path
    result = run(f"import os; os.environ['VCATTN_LIBRARY'] = {str(named)!r}\nimport vcattn")
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode != 0 and last.startswith(f"ImportError: vcattn needs its library, {path}") and "set VCATTN_LIBRARY" in last
