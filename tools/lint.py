#!/usr/bin/env python3
"""Checks the rules of ARCHITECTURE.md and CONTRIBUTING.md that a compiler does not check. Standard library only.

    tools/lint.py [--rules NAME,...] [--root DIR] [--cli PATH_OF_VCATTN] [--fix]

Prints one line per finding, `path:line: [rule] message`, and exits with 1 if there is any. RULES at the end of the file lists them.
"""

import argparse
import concurrent.futures
import fnmatch
import functools
import glob
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

# Which layers a layer may include, itself always. Lowest first; a layer never includes what stands beside or above it.
PUBLIC, CORE, FORMATS, DEVICE = "include/vcattn", "src/core", "src/formats", "src/device"
GROUPING, PREPARE, DISPATCH, API = "src/grouping", "src/prepare", "src/dispatch", "src/api"
BACKENDS = tuple(f"src/attention/{arch}" for arch in ("cpu", "sm90a", "sm100f", "sm120f"))
STAGES = (GROUPING, PREPARE, *BACKENDS)
LAYERS = {
    PUBLIC: (),
    CORE: (PUBLIC,),
    FORMATS: (PUBLIC, CORE),
    DEVICE: (PUBLIC, CORE),
    **{stage: (PUBLIC, CORE, FORMATS, DEVICE) for stage in STAGES},
    DISPATCH: (PUBLIC, CORE, FORMATS, DEVICE, *STAGES),
    API: (PUBLIC, CORE, FORMATS, DEVICE, *STAGES, DISPATCH),
    "apps": (PUBLIC,),
    # The oracle shares no code with what it judges.
    "src/reference": (PUBLIC, FORMATS),
}

# Where a quoted #include is looked for, besides the folder of the including file.
INCLUDE_ROOTS = ("src", "include", "apps/cli", "tests")

# Third-party headers, by the beginning of their names, and where they may be included besides tests/ and bench/.
EXTERNAL = {
    "Eigen/": (DEVICE, *STAGES),
    "tbb/": (DEVICE, *STAGES, DISPATCH, API),
    "oneapi/tbb/": (DEVICE, *STAGES, DISPATCH, API),
    "fmt/": (FORMATS, DEVICE, *STAGES, DISPATCH, API, "apps"),
    "nlohmann/": ("apps",),
    "CLI/": ("apps",),
    "gtest/": (),
    "gmock/": (),
    "rapidcheck": (),
    "benchmark/": (),
    "sys/": (DEVICE, API, "apps"),
    "cuda/": (DEVICE,),
}

ASM_HOME = "src/device/ptx/"
LAUNCH_HOME = "src/device/launch.cuh"
README_MAX_LINES = 150
CLANG_FORMAT_MAJOR = 14

HEADERS = {".h", ".hpp", ".cuh"}
CPP = HEADERS | {".cpp", ".cu", ".inl", ".c"}
TEXT = CPP | {".md", ".py", ".sh", ".cmake", ".txt", ".json", ""}
# Names with these endings are taken for files of the repository wherever Markdown shows them as code.
NAMED_FILES = CPP | {".md", ".py", ".sh", ".cmake"}
SHELL_FENCES = {"", "sh", "bash", "console", "shell"}


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.message}"


class Repo:
    """The files of a checkout, without what .gitignore leaves out."""

    def __init__(self, root: Path, cli: Path | None = None, fix: bool = False):
        self.root, self.cli, self.fix = root, cli, fix
        ignore = root / ".gitignore"
        lines = ignore.read_text().split() if ignore.exists() else []
        self._ignored = [line.strip("/") for line in lines] + [".git", "__pycache__"]
        self.files = sorted(self._walk(root))

    def ignored(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self._ignored)

    def _walk(self, folder: Path) -> Iterator[str]:
        for entry in folder.iterdir():
            if self.ignored(entry.name):
                continue
            if entry.is_dir():
                yield from self._walk(entry)
            else:
                yield entry.relative_to(self.root).as_posix()

    def having(self, suffixes: set[str], *folders: str) -> list[str]:
        return [f for f in self.files if Path(f).suffix in suffixes and (not folders or f.startswith(folders))]

    @functools.cache
    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    @functools.cache
    def code(self, path: str) -> str:
        """C++ text with comments and literals blanked, line for line."""
        return LITERALS.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), self.text(path))


LITERALS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""", re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def parallel(task: Callable[[str], list[Finding]], items: list[str]) -> Iterator[Finding]:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for findings in pool.map(task, items):
            yield from findings


# --- C++ ------------------------------------------------------------------------------------------------------------------------------


def layer_of(path: str) -> str | None:
    return next((layer for layer in LAYERS if path.startswith(layer + "/")), None)


def resolve_include(repo: Repo, includer: str, name: str) -> str | None:
    """Path of an included file of the repository, None for a file from elsewhere."""
    for base in (Path(includer).parent.as_posix(), *INCLUDE_ROOTS):
        candidate = os.path.normpath(os.path.join(base, name))
        if candidate in repo.files:
            return candidate
    return None


def external_violation(layer: str, name: str) -> str | None:
    homes = next((homes for prefix, homes in EXTERNAL.items() if name.startswith(prefix)), None)
    if homes is None:
        return f"<{name}> is no known dependency: use one that CONTRIBUTING.md names" if "/" in name else None
    return None if layer in homes else f"{layer} must not include <{name}>, only {', '.join(homes) or 'tests and benchmarks'} may"


def check_layers(repo: Repo) -> Iterator[Finding]:
    for path in repo.having(CPP, "include/", "src/", "apps/"):
        layer = layer_of(path)
        if layer is None:
            yield Finding(path, 1, "layers", "belongs to no layer: move it, or add its folder to LAYERS in tools/lint.py")
            continue
        for match in INCLUDE.finditer(repo.text(path)):
            line, target = line_of(repo.text(path), match.start()), resolve_include(repo, path, match[2])
            if target is None:
                message = f'"{match[2]}" does not exist' if match[1] == '"' else external_violation(layer, match[2])
            else:
                other = layer_of(target)
                allowed = (layer, *LAYERS[layer])
                message = None if other in allowed else f"{layer} must not include {target}, only {', '.join(allowed)}"
            if message:
                yield Finding(path, line, "layers", message)


def matches_outside(repo: Repo, pattern: str, home: str, rule: str, message: str) -> Iterator[Finding]:
    for path in repo.having(CPP):
        if not path.startswith(home):
            for match in re.finditer(pattern, repo.code(path)):
                yield Finding(path, line_of(repo.code(path), match.start()), rule, message)


def check_asm(repo: Repo) -> Iterator[Finding]:
    return matches_outside(repo, r"\b(asm|__asm__|__asm)\b", ASM_HOME, "asm", f"inline assembly outside {ASM_HOME}: add an instruction there")


def check_launches(repo: Repo) -> Iterator[Finding]:
    return matches_outside(repo, r"<<<", LAUNCH_HOME, "launches", f"kernel launch outside {LAUNCH_HOME}: call its launch function")


def check_names(repo: Repo) -> Iterator[Finding]:
    for path in repo.having(CPP, "include/", "src/"):
        for match in re.finditer(r"\bscale\b", repo.code(path)):
            yield Finding(path, line_of(repo.code(path), match.start()), "names",
                          "`scale` does not say which way it scales: softmax_scale, or ..._descale where real = code * descale")


def check_tags(repo: Repo) -> Iterator[Finding]:
    """Formula tags: what sources and documents cite is defined in docs/equations.md, and every formula there has code that carries its tag."""
    home = "docs/equations.md"
    defined = {match[1]: match.start() for match in re.finditer(r"\*\*\[(EQ-[A-Z0-9-]+)\]\*\*", repo.text(home))}
    carried = set()
    for path in repo.having(CPP | {".md"}):
        for match in re.finditer(r"\bEQ-[A-Z0-9]+(?:-[A-Z0-9]+)*", repo.text(path)):
            if path.startswith("src/"):
                carried.add(match[0])
            if match[0] not in defined:
                yield Finding(path, line_of(repo.text(path), match.start()), "tags", f"{match[0]} is not defined in {home}")
    for tag in sorted(defined.keys() - carried):
        yield Finding(home, line_of(repo.text(home), defined[tag]), "tags", f"no source under src/ carries [{tag}]")


def check_headers(repo: Repo) -> Iterator[Finding]:
    """Each header compiles alone; those of the C ABI (.h) as C99 too. CUDA headers need nvcc and are left to the build."""

    def compile_alone(path: str) -> list[Finding]:
        is_c = path.endswith(".h")
        if not repo.code(path).lstrip().startswith("#ifndef" if is_c else "#pragma once"):
            return [Finding(path, 1, "headers", "must begin with " + ("an include guard" if is_c else "#pragma once"))]
        languages = [("c++", "c++20")] + ([("c", "c99")] if is_c else [])
        for language, standard in languages:
            command = [compiler, "-x", language, f"-std={standard}", "-fsyntax-only", "-I.", *(f"-I{root}" for root in INCLUDE_ROOTS),
                       "-isystem", "/usr/include/eigen3", "-"]
            result = subprocess.run(command, cwd=repo.root, input=f'#include "{path}"\n', text=True, capture_output=True, check=False)
            if result.returncode != 0:
                error = next((line for line in result.stderr.splitlines() if "error" in line), "compiler failed")
                return [Finding(path, 1, "headers", f"does not compile alone as {standard}: {error}")]
        return []

    compiler = os.environ.get("CXX", "g++")
    yield from parallel(compile_alone, repo.having(HEADERS - {".cuh"}))


def check_format(repo: Repo) -> Iterator[Finding]:
    tool = shutil.which(f"clang-format-{CLANG_FORMAT_MAJOR}") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], text=True, capture_output=True, check=False).stdout if tool else ""
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        yield Finding(".clang-format", 1, "format", f"clang-format {CLANG_FORMAT_MAJOR} is required, got {version.strip() or 'none'}: make packages")
        return

    def run(path: str) -> list[Finding]:
        mode = ["-i"] if repo.fix else ["--dry-run", "-Werror"]
        result = subprocess.run([tool, *mode, path], cwd=repo.root, text=True, capture_output=True, check=False)
        if result.returncode == 0:
            return []
        line = re.search(r":(\d+):\d+: error", result.stderr)
        return [Finding(path, int(line[1]) if line else 1, "format", "not formatted: make format")]

    yield from parallel(run, repo.having(CPP))


# --- Markdown -------------------------------------------------------------------------------------------------------------------------


class Snippet(NamedTuple):
    """Something that a Markdown file shows as code: an inline span, or one logical line of a fence."""
    path: str
    line: int
    text: str
    fence: str | None  # language of the fence, None for an inline span

    @property
    def is_shell(self) -> bool:
        return self.fence is None or self.fence in SHELL_FENCES


def snippets(repo: Repo, path: str) -> Iterator[Snippet]:
    fence, pending = None, ""
    for number, line in enumerate(repo.text(path).splitlines(), 1):
        opening = re.match(r"\s*```\s*(\w*)", line)
        if opening:
            fence = opening[1] if fence is None else None
        elif fence is not None:
            pending += line.rstrip("\\") if line.endswith("\\") else line
            if not line.endswith("\\"):
                yield Snippet(path, number, pending, fence)
                pending = ""
        else:
            for span in re.findall(r"`([^`]+)`", line):
                yield Snippet(path, number, span, None)


def all_snippets(repo: Repo) -> Iterator[Snippet]:
    return itertools.chain.from_iterable(snippets(repo, path) for path in repo.having({".md"}))


def command_words(snippet: Snippet, program: str) -> Iterator[list[str]]:
    """Arguments of every call of `program` in a shell snippet."""
    if not snippet.is_shell:
        return
    for command in re.split(r"&&|\|\||;|\s#\s.*", snippet.text):
        words = command.strip().removeprefix("$ ").split()
        if words and os.path.basename(words[0]) == program:
            yield words[1:]


def expand_braces(text: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    return [done for part in match[1].split(",") for done in expand_braces(text[:match.start()] + part + text[match.end():])]


def exists(repo: Repo, document: str, name: str) -> bool:
    """Whether a path exists, seen from the repository, the document, or as an #include; `*` and `<name>` stand for anything."""
    pattern = re.sub(r"<[^>]*>", "*", name)
    bases = [repo.root, (repo.root / document).parent, *(repo.root / root for root in INCLUDE_ROOTS)]
    if any(glob.glob(str(base / pattern)) for base in bases):
        return True
    return "/" not in name and any(fnmatch.fnmatch(os.path.basename(f), pattern) for f in repo.files)


def looks_like_path(repo: Repo, word: str) -> bool:
    if not re.fullmatch(r"\.?[\w<][\w.+*{},<>/-]*", word) or "::" in word or "//" in word:
        return False
    first = word.split("/")[0]
    if repo.ignored(first):  # what the build generates
        return False
    if os.path.splitext(word)[1] in NAMED_FILES:
        return True
    return "/" in word and (word.endswith("/") or (repo.root / first).exists())


def check_paths(repo: Repo) -> Iterator[Finding]:
    """Paths that Markdown mentions exist: targets of links, and code that looks like a path."""
    for path in repo.having({".md"}):
        for match in re.finditer(r"\]\(([^)\s]+)\)", repo.text(path)):
            target = match[1].split("#")[0]
            if target and not re.match(r"\w+:", target) and not (repo.root / path).parent.joinpath(target).exists():
                yield Finding(path, line_of(repo.text(path), match.start()), "paths", f"link to {target}, which does not exist")
    for snippet in all_snippets(repo):
        for word in snippet.text.split() if snippet.is_shell else []:
            word = word.strip(",;:()\"'")
            if looks_like_path(repo, word):
                for name in expand_braces(word):
                    if not exists(repo, snippet.path, name):
                        yield Finding(snippet.path, snippet.line, "paths", f"{name} does not exist")


def check_commands(repo: Repo) -> Iterator[Finding]:
    """`make` targets and CMake presets that Markdown mentions exist; with --cli also the subcommands and options of `vcattn`."""
    makefile = repo.text("Makefile") if "Makefile" in repo.files else ""
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    presets_file = json.loads(repo.text("CMakePresets.json")) if "CMakePresets.json" in repo.files else {}
    presets = {preset["name"] for preset in presets_file.get("configurePresets", [])}
    for snippet in all_snippets(repo):
        for words in command_words(snippet, "make"):
            for word in words:
                if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
                    yield Finding(snippet.path, snippet.line, "commands", f"the Makefile has no target {word}")
        for name in re.findall(r"--preset[ =]([\w-]+)", snippet.text) if snippet.is_shell else []:
            if name not in presets:
                yield Finding(snippet.path, snippet.line, "commands", f"CMakePresets.json has no preset {name}")
        for words in command_words(snippet, "vcattn") if repo.cli else []:
            for message in cli_violations(repo.cli, words):
                yield Finding(snippet.path, snippet.line, "commands", message)


@functools.cache
def cli_help(cli: Path, subcommand: str) -> str | None:
    command = [str(cli), subcommand, "--help"] if subcommand else [str(cli), "--help"]
    result = subprocess.run(command, text=True, capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


def cli_violations(cli: Path, words: list[str]) -> Iterator[str]:
    subcommand = words[0] if words and re.fullmatch(r"[a-z]+", words[0]) else ""
    help_text = cli_help(cli, subcommand)
    if help_text is None or (subcommand and not re.search(rf"^\s+{subcommand}\b", cli_help(cli, "") or "", re.MULTILINE)):
        yield f"vcattn has no subcommand {subcommand}"
        return
    for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(words)):
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", help_text):
            yield f"vcattn {subcommand} has no option {option}"


def check_readme(repo: Repo) -> Iterator[Finding]:
    """README.md stays short, and its C++ example is the one that the tests build and run."""
    if "README.md" not in repo.files:
        yield Finding("README.md", 1, "readme", "does not exist")
        return
    text = repo.text("README.md")
    lines = text.count("\n")
    if lines > README_MAX_LINES:
        yield Finding("README.md", lines, "readme", f"{lines} lines, at most {README_MAX_LINES}: move details to docs/")
    example = repo.text("examples/quickstart.cpp") if "examples/quickstart.cpp" in repo.files else ""
    for match in re.finditer(r"```cpp\n(.*?)```", text, re.DOTALL):
        if match[1] not in example:
            yield Finding("README.md", line_of(text, match.start()), "readme", "this C++ block is not a verbatim part of examples/quickstart.cpp")


def check_portable(repo: Repo) -> Iterator[Finding]:
    """No file refers to somebody's machine or tracker: what the reader needs is in the repository."""
    system = r"(?:usr|etc|dev|proc|sys|tmp|bin|opt|lib|var)\b"
    rules = [
        (rf"(?:^|[\s\"'`(=])(/(?!{system})[a-z]\w*/[\w.-]+)", "absolute path {}"),
        (r"(?:^|[\s\"'`(=])((?:\.\./)+[\w.-]+)", "path {} leads out of the repository"),
        (r"\b([Ii]ssue #?\d+)\b", "refers to {}: say what it says"),
    ]
    for path in repo.having(TEXT):
        if Path(path).name in (".gitignore", "LICENSE"):
            continue
        for pattern, message in rules:
            for match in re.finditer(pattern, repo.text(path), re.MULTILINE):
                inside = match[1].startswith("..") and (repo.root / path).parent.joinpath(match[1]).resolve().is_relative_to(repo.root)
                if not inside:
                    yield Finding(path, line_of(repo.text(path), match.start(1)), "portable", message.format(match[1]))


RULES: dict[str, Callable[[Repo], Iterator[Finding]]] = {
    "layers": check_layers,
    "asm": check_asm,
    "launches": check_launches,
    "names": check_names,
    "tags": check_tags,
    "headers": check_headers,
    "format": check_format,
    "paths": check_paths,
    "commands": check_commands,
    "readme": check_readme,
    "portable": check_portable,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent, help="checkout to look at")
    parser.add_argument("--rules", default=",".join(RULES), help="comma-separated: %(default)s")
    parser.add_argument("--cli", type=Path, help="built vcattn, to check commands in the documentation against")
    parser.add_argument("--fix", action="store_true", help="format: rewrite the files instead")
    options = parser.parse_args(arguments)
    unknown = set(options.rules.split(",")) - set(RULES)
    if unknown:
        parser.error(f"no rule {', '.join(sorted(unknown))}; there are {', '.join(RULES)}")
    if options.cli and not os.access(options.cli, os.X_OK):
        parser.error(f"--cli: {options.cli} is no executable; build the target vcattn_cli")

    repo = Repo(options.root.resolve(), options.cli and options.cli.resolve(), options.fix)
    findings = [finding for name in options.rules.split(",") for finding in RULES[name](repo)]
    for finding in findings:
        print(finding)
    print(f"lint: {len(findings)} findings in {len(repo.files)} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
