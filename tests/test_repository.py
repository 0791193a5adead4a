"""Rules of this repository that no other tool checks."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST_FILE_LINES = 600


@cache
def files(*endings: str) -> list[Path]:
    """The files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name.endswith(endings) and (ROOT / name).exists()]


def check(bad: list[str]) -> None:
    assert not bad, "\n".join(bad)


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in files(".py", ".rs")}
    check([f"{path}: {length} lines" for path, length in lengths.items() if length > LONGEST_FILE_LINES])


def test_every_file_says_what_it_is_for() -> None:
    rust = [path for path in files(".rs") if not path.read_text().startswith(("//!", "#!["))]
    # A notebook of the corpus begins with its first cell.
    code = [path for path in files(".py") if "corpus" not in path.parts]
    python = [path for path in code if not re.match(r'(#!.*\n)?"""', path.read_text())]
    check([str(path) for path in rust + python if path.read_text().strip()])


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_nothing_is_left_for_later(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b")
    check([str(path) for path in files(".py", ".rs", ".md", ".toml") if pattern.search(path.read_text())])


def test_links_between_documents_lead_somewhere() -> None:
    bad = []
    for page in files(".md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / target).exists():
                bad.append(f"{page}: {target}")
    check(bad)


def test_requirements_are_pinned() -> None:
    pages = [path for path in files(".txt") if path.parent.name == "requirements"]
    assert pages
    check(
        [
            f"{p}: {line}"
            for p in pages
            for line in p.read_text().splitlines()
            if not re.fullmatch(r"[\w.-]+==[\w.]+", line)
        ]
    )


def test_versions_agree() -> None:
    import tomllib

    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    shim = (ROOT / "python-shim/baton_shim/base/version.py").read_text()
    assert f'__version__ = "{cargo}"' in shim


# Each layer of the shim, and the layers below it that it may import.
LAYERS = {
    "base": set(),
    "virtual": {"base"},
    "state": {"base", "virtual"},
    "surroundings": {"base", "virtual", "state"},
    "notebook": {"base", "virtual", "state", "surroundings"},
    "program": {"base", "virtual", "state", "surroundings", "notebook"},
    "session": {"base", "virtual", "state", "surroundings"},
}


def test_the_layers_of_the_shim_import_downwards_only() -> None:
    package = ROOT / "python-shim/baton_shim"
    assert {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(LAYERS)
    upwards = [
        f"{path.relative_to(package)}:{node.lineno} imports {layer}"
        for path in sorted(package.rglob("*.py"))
        for own in [path.relative_to(package).parts[0]]
        if own in LAYERS
        for node in ast.walk(ast.parse(path.read_text()))
        for layer in imported_layers(node)
        if layer not in {own, *LAYERS[own]}
    ]
    assert upwards == []


def imported_layers(node: ast.AST) -> set[str]:
    """The layers of the shim that an import statement names; the package itself counts as one."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        modules = [f"{node.module}.{one.name}" for one in node.names]
    elif isinstance(node, ast.Import):
        modules = [one.name for one in node.names]
    else:
        return set()
    return {[*module.split("."), "baton_shim"][1] for module in modules if module.split(".")[0] == "baton_shim"}


def test_runtime_requirements_agree() -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lines = (ROOT / "requirements/runtime.in").read_text().splitlines()
    assert sorted(declared) == sorted(line for line in lines if line and not line.startswith("#"))


def test_types_are_checked_alike_whatever_is_installed() -> None:
    """`make lint` runs before the packages that `baton_shim` imports are installed."""
    import sys
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    skipped = {name.removesuffix(".*") for override in settings for name in override["module"]}
    imported = set()
    for path in files(".py"):
        if path.is_relative_to(ROOT / "python-shim/baton_shim"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {name.name.partition(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) - skipped == {"baton_shim"}


# ---- the table of client features


def test_the_table_of_features_is_full() -> None:
    """Every row has four entries, and the tests that it names exist."""
    page = (ROOT / "docs/reference/jupyter.md").read_text()
    _, rest = page.split("| --- | --- | --- | --- |\n", 1)
    rows = [line.strip("|").split("|") for line in rest.split("\n\n")[0].splitlines()]
    assert len(rows) > 40
    assert all(len(row) == 4 and all(map(str.strip, row)) for row in rows)
    sources = [path.read_text() for path in files(".py", ".rs")]
    known = set(re.findall(r"^\s*(?:async )?(?:def|fn) (\w+)\(", "\n".join(sources), re.MULTILINE))
    named = {test for row in rows for test in re.findall(r"`(\w+)`", row[3])}
    assert named - known == set()
    assert all("`" in row[3] for row in rows)


# ---- modules of Rust

MOD_RS = {
    "gpu-worker/interposer/src/library/mod.rs": "also the root of a crate that build.rs compiles",
    "tests/gpu/src/driver/mod.rs": "also the root of a crate that build.rs compiles",
    "tests/gpu/src/monitoring/mod.rs": "also the root of a crate that build.rs compiles",
    "crates/scheduling/tests/queue/lecture/mod.rs": "also a module of an example",
}


def test_the_file_of_a_module_is_beside_its_folder() -> None:
    found = {str(path.relative_to(ROOT)) for path in files(".rs") if path.name == "mod.rs"}
    assert found == MOD_RS.keys()


def test_a_file_has_one_import_from_each_crate() -> None:
    """Imports of a crate are one tree. Conditional imports and re-exports stand apart."""
    bad = []
    for path in files(".rs"):
        names = re.findall(r"(?<!\]\n)^use (\w+)::", path.read_text(), re.MULTILINE)
        bad += [f"{path}: {name}" for name in sorted(set(names)) if names.count(name) > 1]
    check(bad)


# ---- ARCHITECTURE.md


def test_the_files_on_the_way_of_a_cell_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    section = page.split("## The files of a warm cell\n", 1)[1].split("\n## ", 1)[0]
    lists = [
        re.findall(r"^\d+\. `([^`]+)`: ", part, re.MULTILINE)
        for part in re.split(r"^[A-Z]\w+:$", section, flags=re.MULTILINE)[1:]
    ]
    assert [bool(paths) and len(paths) <= 8 for paths in lists] == [True] * 3
    assert sum(map(len, lists)) <= 25
    check([path for paths in lists for path in paths if not (ROOT / path).is_file()])


CODE = re.compile(r"(src|(broker|crates|gpu-worker|kernel-proxy|plan|runner)/(.*/)?src|python-shim/baton(_shim)?)/")
"""Where identifiers use only words of the glossary. Tests may use others."""
RETIRED = {
    "remote cell": "journey journeys travel travels",
    "transport": "lane lanes",
    "transfer": "bring brings brought",
    "payload": "parcel parcels",
    "deferred state": "owe owes owed",
    "status line": "notice notices",
    "queue position": "told tellings",
    "estimate": "forecast forecasts forecasting",
    "leader, follower": "lead standing standby",
    "listener": "door doors",
    "compaction": "relief relieve relieved",
    "on_...": "obey hear",
}
ALLOWED = {
    # Of a course that is planned.
    "broker/src/web/page/capacity.rs": {"forecast"},
    "plan/src/": {"forecast"},
    "src/commands/plan": {"forecast"},
    # As in the description of the algorithm.
    "crates/chunks/src/scanner/digest.rs": {"lane"},
    # Of gpu.map; see the glossary.
    "python-shim/baton_shim/notebook/": {"lane", "lanes"},
}
VERBS = {
    "say": "show, report or send",
    "tell": "notify, send or warn",
    "hear": "receive",
    "obey": "execute",
    "go": "continue",
}
"""Functions do not begin with these."""
SENTENCE_WORDS = 6
"""Names of tests are sentences, which may use any word."""


def test_functions_have_standard_verbs() -> None:
    bad = []
    for path in files(".rs", ".py"):
        name = str(path.relative_to(ROOT))
        if CODE.match(name):
            for function in re.findall(r"\b(?:fn|def) (\w+)", path.read_text()):
                verb = function.lstrip("_").partition("_")[0]
                if verb in VERBS and len(function.split("_")) < SENTENCE_WORDS:
                    bad.append(f"{name}: {function} (say {VERBS[verb]})")
    check(bad)


def identifiers(path: Path) -> set[str]:
    """The identifiers in the file's code, and its name."""
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME} | {path.stem}
    return {*re.findall(r"[A-Za-z_]\w*", re.sub(r'//.*|"(?:[^"\\]|\\.)*"', "", text)), path.stem}


def test_retired_words_do_not_return() -> None:
    retired = {word: term for term, words in RETIRED.items() for word in words.split()}
    bad = set()
    for path in files(".py", ".rs"):
        name = str(path.relative_to(ROOT))
        if CODE.match(name):
            allowed = {word for place, words in ALLOWED.items() if name.startswith(place) for word in words}
            for identifier in identifiers(path):
                words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]
                if len(words) < SENTENCE_WORDS:
                    found = retired.keys() & set(words) - allowed
                    bad |= {f"{name}: {identifier} (say {retired[word]})" for word in found}
    check(sorted(bad))
