"""The ctypes structs are those of vcattn.h, byte for byte."""

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from vcattn import _abi, grouping

ROOT = Path(__file__).parents[3]
HEADER = ROOT / "include" / "vcattn" / "vcattn.h"


@pytest.fixture(scope="module")
def layout_in_c(tmp_path_factory):
    """{struct: {member: offset, ..., "sizeof": bytes}} as the C compiler sees it."""
    lines = []
    for name, struct in _abi.STRUCTS.items():
        lines.append(f'printf("{name} sizeof %zu\\n", sizeof({name}));')
        lines += [f'printf("{name} {field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_]
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "layout.c"
    source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\n}\n")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", str(source), "-o", str(folder / "layout")], check=True)
    printed = subprocess.run([str(folder / "layout")], check=True, capture_output=True, text=True).stdout
    result: dict[str, dict[str, int]] = {}
    for line in printed.splitlines():
        struct, member, value = line.split()
        result.setdefault(struct, {})[member] = int(value)
    return result


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_struct_has_the_layout_of_the_header(layout_in_c, name):
    struct = _abi.STRUCTS[name]
    ours = {field[0]: getattr(struct, field[0]).offset for field in struct._fields_} | {"sizeof": ctypes.sizeof(struct)}
    assert ours == layout_in_c[name]


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_struct_has_every_member_of_the_header(name):
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", HEADER.read_text(), re.DOTALL)[1]
    members = re.findall(r"(\w+)(?:\[\d+\])?;", re.sub(r"//.*", "", body))
    assert [field[0] for field in _abi.STRUCTS[name]._fields_] == members


def test_constants_are_those_of_the_header():
    constants = dict(re.findall(r"\b(VCATTN_\w+) = (\d+)", HEADER.read_text()))
    assert [int(constants[f"VCATTN_RECIPE_{name.upper().replace('-', '_')}"]) for name in _abi.RECIPES] == list(range(len(_abi.RECIPES)))
    assert [int(constants[f"VCATTN_{name}"]) for name in ("F32", "F16", "BF16")] == [0, 1, 2] and len(_abi.DTYPES) == 3
    assert (_abi.CPU, _abi.CUDA) == (int(constants["VCATTN_CPU"]), int(constants["VCATTN_CUDA"]))
    assert _abi.SEQUENCE_ORDER == int(constants["VCATTN_ORDER_SEQUENCE"])
    for value, name in enumerate(grouping.POLICIES):
        assert value == int(constants[f"VCATTN_SCHEDULE_{name.upper()}"])
    for value, name in enumerate(grouping.ACTIONS):
        assert value == int(constants[f"VCATTN_ACTION_{name.upper()}"])
    assert f"define VCATTN_ABI_VERSION {_abi.ABI_VERSION}u" in HEADER.read_text()


def test_recipe_list_is_that_of_the_library():
    with pytest.raises(ValueError) as error:
        _abi.options("no-such-recipe")
    for name in _abi.RECIPES:
        assert name in str(error.value)
        assert _abi.options(name).recipe == _abi.RECIPES.index(name)


def test_options_of_a_recipe_string():
    assert _abi.options("auto").recipe == _abi.options("vc8s").recipe
    assert _abi.options("vc8s,hadamard=off,block=64").hadamard == 0
    # top is named before expcast, which would set it as well.
    assert _abi.options("vc8,top=100,expcast=two_line").top_code == 100
    with pytest.raises(ValueError, match="hadamard"):
        _abi.options("vc8s,no_such_key=1")


def test_configuration_is_plain_text():
    import vcattn

    assert json.loads(json.dumps(vcattn.config()))["vcattn"].startswith(vcattn.__version__)
