"""The installed package: import cost, command line, doctests."""

import doctest
import importlib
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


def test_missing_library_is_named(tmp_path):
    code = f"import os; os.environ['VCATTN_LIBRARY'] = {str(tmp_path / 'none.so')!r}\nimport vcattn"
    result = run(code)
    assert result.returncode != 0 and "none.so" in result.stderr and "VCATTN_LIBRARY" in result.stderr
