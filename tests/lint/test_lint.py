#!/usr/bin/env python3
"""Self-test of tools/lint.py: every rule finds a planted violation, and says nothing about a clean tree."""

import os
import stat
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import lint

TAG = "EQ" + "-A"  # assembled, or the rule on tags would look for its definition

CLEAN = {
    ".gitignore": "/build*/\n/demo-out/\n",
    ".clang-format": "BasedOnStyle: LLVM\n",
    "Makefile": "demo: ## run\n\techo\n",
    "CMakePresets.json": '{"configurePresets": [{"name": "release"}]}',
    "README.md": "Type `make demo`, read [the guide](docs/guide.md) and `src/core/a.hpp`; `build/x/y` is generated.\n\n"
                 "```sh\nmake demo\ncmake --preset release\nvcattn attend in.safetensors -o out.safetensors --lse\n```\n\n"
                 "```cpp\nint main() {}\n```\n",
    "docs/equations.md": f"- **[{TAG}]** one\n",
    "docs/guide.md": "See [equations](../README.md) and `src/{core,prepare}/`.\n",
    "examples/quickstart.cpp": "int main() {}\n",
    "include/vcattn/api.hpp": "#pragma once\n",
    "src/core/a.hpp": "#pragma once\n\n#include <cstdint>\n\n// [" + TAG + "]\n",
    "src/formats/layout.hpp": '#pragma once\n\n#include "core/a.hpp"\n',
    "src/prepare/prepare.cpp": '#include "formats/layout.hpp"\n\n#include <oneapi/tbb/parallel_for.h>\n\n#include "vcattn/api.hpp"\n',
}


class LintTest(unittest.TestCase):
    def findings(self, rule: str, changed: dict[str, str], cli: str = "") -> list[str]:
        """Findings of one rule in the clean tree with some files added or replaced."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for path, text in {**CLEAN, **changed}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            tool = root / "build" / "vcattn"
            if cli:
                tool.parent.mkdir()
                tool.write_text(cli)
                tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
            repo = lint.Repo(root, tool if cli else None)
            return [str(finding) for finding in lint.RULES[rule](repo)]

    def assert_found(self, rule: str, path: str, text: str, expected: str, line: int = 1, cli: str = "") -> None:
        found = self.findings(rule, {path: text}, cli)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:{line}: [{rule}]"), found[0])
        self.assertIn(expected, found[0])

    def test_clean_tree_has_no_findings(self):
        for rule in lint.RULES:
            with self.subTest(rule):
                self.assertEqual(self.findings(rule, {}), [])

    def test_layers(self):
        cases = [
            ("src/core/b.hpp", '#include "formats/layout.hpp"\n', "src/core must not include src/formats/layout.hpp"),
            ("src/grouping/b.cpp", '#include "prepare/stage.hpp"\n', "src/grouping must not include src/prepare/stage.hpp"),
            ("src/device/b.hpp", '#include "formats/layout.hpp"\n', "src/device must not include"),
            ("src/reference/b.hpp", '#include "core/a.hpp"\n', "src/reference must not include src/core/a.hpp"),
            ("apps/cli/b.cpp", '#include "core/a.hpp"\n', "apps must not include src/core/a.hpp"),
            ("include/vcattn/b.hpp", '#include "core/a.hpp"\n', "include/vcattn must not include"),
            ("src/api/b.cpp", '#include "formats/gone.hpp"\n', '"formats/gone.hpp" does not exist'),
            ("src/core/b.hpp", '#include "prepare/stage.hpp"\n', "src/core must not include"),
            ("src/core/b.hpp", "#include <Eigen/Core>\n", "must not include <Eigen/Core>"),
            ("src/api/b.cpp", "#include <boost/any.hpp>\n", "no known dependency"),
            ("src/elsewhere/b.cpp", "", "belongs to no layer"),
        ]
        for path, text, expected in cases:
            with self.subTest(path=path, text=text):
                found = self.findings("layers", {path: text, "src/prepare/stage.hpp": ""})
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])

    def test_asm(self):
        self.assert_found("asm", "src/device/mma.cuh", '// asm is banned\n\nvoid f() { asm volatile("nop;"); }\n', "inline assembly", line=3)
        self.assertEqual(self.findings("asm", {"src/device/ptx/mma.cuh": 'void f() { asm("nop;"); }\n'}), [])

    def test_launches(self):
        self.assert_found("launches", "src/attention/sm90a/launch.cu", "/* <<< */\nvoid f() { kernel<<<1, 2>>>(); }\n", "kernel launch", line=2)
        self.assertEqual(self.findings("launches", {"src/device/launch.cuh": "void f() { kernel<<<1, 2>>>(); }\n"}), [])

    def test_names(self):
        self.assert_found("names", "src/core/b.hpp", "// scale\nfloat softmax_scale, scale;\n", "which way", line=2)
        self.assertEqual(self.findings("names", {"src/core/b.hpp": 'char const* s = "scale"; float scale_factor;\n'}), [])

    def test_tags(self):
        # Assembled, or the rule would find it here.
        unknown = "EQ" + "-GONE"
        self.assert_found("tags", "src/core/b.hpp", f"\n// [{unknown}]\n", f"{unknown} is not defined", line=2)
        unused = "EQ" + "-B"
        self.assert_found("tags", "docs/equations.md", f"- **[{TAG}]** one\n- **[{unused}]** two\n", f"no source under src/ carries [{unused}]", line=2)

    def test_headers(self):
        self.assert_found("headers", "src/core/b.hpp", "#pragma once\nstd::int32_t x;\n", "does not compile alone as c++20")
        self.assert_found("headers", "src/core/b.hpp", "int x;\n", "#pragma once")
        self.assert_found("headers", "include/vcattn/b.h", "int x;\n", "include guard")
        self.assert_found("headers", "include/vcattn/b.h", "#ifndef B_H\n#define B_H\nenum class E { a };\n#endif\n", "does not compile alone as c99")

    def test_format(self):
        self.assert_found("format", "src/core/b.hpp", "int  x ;\n", "not formatted")

    def test_format_needs_its_clang_format(self):
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = "/nonexistent"
        found = self.findings("format", {})
        self.assertEqual(len(found), 1, found)
        self.assertIn("got none", found[0])

    def test_paths(self):
        self.assert_found("paths", "docs/b.md", "\n[gone](gone.md)\n", "link to gone.md", line=2)
        self.assert_found("paths", "docs/b.md", "see `src/core/gone.hpp`\n", "src/core/gone.hpp does not exist")
        self.assert_found("paths", "docs/b.md", "see `src/{core,gone}/`\n", "src/gone/ does not exist")
        self.assert_found("paths", "docs/b.md", "see `gone.hpp`\n", "gone.hpp does not exist")
        self.assert_found("paths", "docs/b.md", "```sh\n\npython3 src/gone.py\n```\n", "src/gone.py does not exist", line=3)
        self.assertEqual(self.findings("paths", {"docs/b.md": "`a.hpp`, `core/a.hpp`, `src/*/layout.hpp`, `q/k`, `demo-out/x.md`\n"}), [])

    def test_commands(self):
        self.assert_found("commands", "docs/b.md", "`make gone`\n", "no target gone")
        self.assert_found("commands", "docs/b.md", "```sh\nmake demo && make gone  # make it so\n```\n", "no target gone", line=2)
        self.assert_found("commands", "docs/b.md", "`cmake --preset gone`\n", "no preset gone")

    def test_commands_of_the_cli(self):
        cli = ("#!/bin/sh\ncase $1 in\n  --help) printf '  attend  run\\n' ;;\n  attend) echo '-o FILE --lse --layout' ;;\n"
               "  *) exit 1 ;;\nesac\n")
        self.assertEqual(self.findings("commands", {}, cli), [])
        self.assert_found("commands", "docs/b.md", "`vcattn gone x`\n", "no subcommand gone", cli=cli)
        self.assert_found("commands", "docs/b.md", "```sh\nvcattn attend in \\\n  --gone\n```\n", "no option --gone", line=3, cli=cli)
        self.assert_found("commands", "docs/b.md", "`vcattn attend --lay nhd`\n", "no option --lay", cli=cli)

    def test_readme(self):
        self.assert_found("readme", "README.md", "\n" * 151, "151 lines", line=151)
        self.assert_found("readme", "README.md", "\n```cpp\nint other;\n```\n", "not a verbatim part", line=2)

    def test_portable(self):
        # Assembled, or the rule would find them here.
        self.assert_found("portable", "src/core/b.hpp", f"// see /{'home'}/me/notes\n", "absolute path")
        self.assert_found("portable", "docs/b.md", "see `" + "../" * 2 + "shared/x`\n", "out of the repository")
        self.assert_found("portable", "src/core/b.hpp", "// see " + "issue" + " #7\n", "refers to")
        self.assertEqual(self.findings("portable", {"src/core/b.hpp": "// /usr/include, a/b, 1/2, ../core/a.hpp\n"}), [])


if __name__ == "__main__":
    unittest.main()
