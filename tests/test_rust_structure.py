"""Which crates and modules of the Rust code may know each other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# They decide, and others act. Nothing that waits, reads a clock, stores, serves or logs is built into them.
PURE = ("baton-broker-queue", "baton-scheduling")
IMPURE = {"axum", "hyper", "nix", "reqwest", "rusqlite", "sqlx", "tokio", "tracing"}

# Each layer uses only those before it, and no crate of its own layer.
LAYERS = (
    "charts humanize interposer jupyter-client removal",
    "protocol",
    "chunks scheduling",
    "broker-queue environments plan transport",
    "broker-store jupyter-wire mirror",
    "broker gpu-worker kernel-proxy runner",
)
TESTING = {"baton-gpu-tests", "baton-load", "baton-object-store-tests", "baton-port-tests", "baton-postgres-tests"}
"""Crates of tests and benchmarks, which programs do not use."""


@cache
def manifests() -> dict[str, Path]:
    """The folders of our own crates, by name."""
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    return {manifest(ROOT / folder)["package"]["name"]: ROOT / folder for folder in members}


def manifest(folder: Path) -> dict:
    return tomllib.loads((folder / "Cargo.toml").read_text())


def built_into(crate: str) -> set[str]:
    """The dependencies of a crate, without those that only tests use."""
    locked: dict[str, set[str]] = {}
    for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]:
        names = {dependency.split()[0] for dependency in package.get("dependencies", [])}
        locked.setdefault(package["name"], set()).update(names)
    found: set[str] = set()
    ahead = [crate]
    while ahead:
        name = ahead.pop()
        own = manifests().get(name)
        below = set(manifest(own).get("dependencies", {})) if own else locked[name]
        ahead += below - found
        found |= below
    return found


@pytest.mark.parametrize("crate", PURE)
def test_what_decides_has_no_means_to_do_anything(crate: str) -> None:
    below = built_into(crate)
    assert "baton-protocol" in below
    assert below & IMPURE == set()


def test_crates_use_only_those_of_lower_layers() -> None:
    allowed: set[str] = set()
    for layer in LAYERS:
        crates = {f"baton-{name}" for name in layer.split()}
        for crate in crates:
            used = {name for name in manifest(manifests()[crate]).get("dependencies", {}) if name in manifests()}
            assert used - allowed == set(), crate
        allowed |= crates
    assert allowed | TESTING | {"baton"} == manifests().keys()
    assert built_into("baton") & TESTING == set()


def test_the_broker_contains_nothing_of_workers_and_kernels() -> None:
    others = {"environments", "gpu-worker", "interposer", "jupyter-wire", "kernel-proxy", "mirror", "removal"}
    assert built_into("baton-broker") & {f"baton-{name}" for name in others} == set()


def users_of_dependencies(folder: Path, table: str) -> Iterator[str]:
    """The code that may use the dependencies in this table of a crate's manifest."""
    if table == "build-dependencies":
        yield (folder / "build.rs").read_text()
        return
    tests_only = for_tests_only(folder / "src")
    for path in (folder / "src").rglob("*.rs"):
        if table == "dev-dependencies":
            yield path.read_text()
        elif tests_only.isdisjoint((path, *path.parents)):
            yield without_tests(path)
    if table == "dev-dependencies":
        for other in ("tests", "benches", "examples"):
            yield from (path.read_text() for path in (folder / other).rglob("*.rs"))


@pytest.mark.parametrize("crate", manifests())
def test_a_crate_uses_the_dependencies_that_it_names(crate: str) -> None:
    folder = manifests()[crate]
    unused = []
    for table in ("dependencies", "dev-dependencies", "build-dependencies"):
        named = manifest(folder).get(table, {})
        code = "\n".join(users_of_dependencies(folder, table)) if named else ""
        unused += [name for name in named if not re.search(rf"\b{name.replace('-', '_')}\b", code)]
    assert unused == []


def test_unsafe_code_is_in_modules_named_sys() -> None:
    manifests_of_all = [folder for folder in manifests().values() if folder != ROOT]
    files = {path for folder in manifests_of_all for path in folder.rglob("*.rs")}
    files |= {path for name in ("src", "tests/cli") for path in (ROOT / name).rglob("*.rs")}
    allowing = {path.relative_to(ROOT) for path in files if "allow(unsafe_code)" in path.read_text()}
    assert allowing, "The pattern finds nothing"
    assert {path for path in allowing if "sys" not in path.with_suffix("").parts} == set()


# ---- modules


def without_tests(path: Path) -> str:
    """A file's code, without comments and the tests at its end."""
    code = re.sub(r"//.*", "", path.read_text())
    return re.split(r"#\[cfg\(test\)\]\n(?:#\[allow\([^\n]*\)\]\n)?mod tests \{", code, maxsplit=1)[0]


def for_tests_only(source: Path) -> set[Path]:
    """The files and folders of modules that are declared as test modules."""
    found = set()
    for path in source.rglob("*.rs"):
        folder = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        for name in re.findall(r"#\[cfg\([^\n]*test\b[^\n]*\)\]\n(?:pub )?mod (\w+);", path.read_text()):
            found |= {folder / name, folder / f"{name}.rs"}
    return found


def outside_of_their_files(source: Path) -> set[str]:
    """The types that have an `impl` of their own in a file that does not define them."""
    skipped = for_tests_only(source)
    found = set()
    for path in source.rglob("*.rs"):
        if {path, *path.parents} & skipped:
            continue
        code = without_tests(path)
        defined = set(re.findall(r"\b(?:struct|enum|union) (\w+)", code))
        headers = re.findall(r"^(?:unsafe )?impl\b([^{;]*)\{", code, re.M)
        own = (re.sub(r"^<.*?> ", "", header.strip()) for header in headers if not re.search(r"\bfor\b(?!<)", header))
        found |= {re.split(r"[<\s]", name, maxsplit=1)[0].split("::")[-1] for name in own} - defined
    return found


def test_an_impl_is_in_the_file_of_its_type() -> None:
    programs = [source for source in sources() if not source.startswith(("benches/", "tests/"))]
    found = {f"{source} {name}" for source in programs for name in outside_of_their_files(ROOT / source)}
    assert found == set()


def test_an_impl_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "lib.rs").write_text(
        "mod one;\n#[cfg(test)]\nmod tests;\npub struct Two<T>(T);\nimpl<T: A> Two<T> {}\n"
    )
    (tmp_path / "one.rs").write_text("struct One;\nimpl One {}\nimpl From<One> for Two<u8> {\n}\n")
    (tmp_path / "tests.rs").write_text("impl Two<u8> {}\n")
    assert outside_of_their_files(tmp_path) == set()
    (tmp_path / "one.rs").write_text("impl<T> super::Two<T>\nwhere\n    T: A,\n{\n}\n")
    assert outside_of_their_files(tmp_path) == {"Two"}


LONGEST = 90
"""Lines of a function in our programs. More than a screen needs a reason; most have fewer than 60."""
LONG = {"broker/store/src/write.rs add_statements": "one arm for each kind of record"}


def functions(code: str) -> Iterator[tuple[str, int]]:
    """The name of each function, and how many lines its signature and body have."""
    for found in re.finditer(r"^( *)(?:pub(?:\(\w+\))? )?(?:\w+ )*?(?:extern \"C\" )?fn (\w+)", code, re.M):
        whole, end, _ = code[found.start() :].partition(f"\n{found[1]}}}\n")
        if end and not whole.partition("\n")[0].endswith(("}", ";")):
            yield found[2], whole.count("\n") + 2


def test_a_function_fits_on_a_screen() -> None:
    programs = [ROOT / source for source in sources() if not source.startswith(("benches/", "tests/"))]
    skipped = {path for source in programs for path in for_tests_only(source)}
    files = {path for source in programs for path in source.rglob("*.rs") if not {path, *path.parents} & skipped}
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in files
        for name, lines in functions(without_tests(path))
        if lines > LONGEST
    }
    assert found == LONG.keys()


def test_a_long_function_is_found() -> None:
    code = (
        "pub(super) async fn one(\n    a: u8,\n) {\n    b\n}\nimpl C {\n    fn two() {}\n    fn three() {\n    }\n}\n"
    )
    assert dict(functions(code)) == {"one": 5, "three": 2}


def unbounded_queues(code: str) -> Iterator[int]:
    """The lines that make a queue without a limit, and have no comment above that says what bounds it."""
    above = ""
    for number, line in enumerate(code.splitlines(), 1):
        comment = line.strip()
        if re.search(r"\bunbounded(_channel)?(::<.*>)?\(\)", line) and "// Bounded by " not in above:
            yield number
        above = f"{above}{comment}" if comment.startswith("//") else ""


def test_a_queue_is_bounded_or_a_comment_says_what_bounds_it() -> None:
    programs = [ROOT / source for source in sources() if not source.startswith(("benches/", "tests/"))]
    skipped = {path for source in programs for path in for_tests_only(source)}
    files = {path for source in programs for path in source.rglob("*.rs") if not {path, *path.parents} & skipped}
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in unbounded_queues(path.read_text().split("#[cfg(test)]\nmod tests {")[0])
    }
    assert found == set()


def test_an_unbounded_queue_is_found() -> None:
    code = (
        "let a = channel(1);\n// Bounded by the\n// sessions.\nlet b = mpsc::unbounded_channel();\n"
        "let c = unbounded_channel();\n// A queue.\nlet d = mpsc::unbounded_channel::<u8>();\n"
    )
    assert list(unbounded_queues(code)) == [5, 7]


def leaves(tree: str) -> Iterator[str]:
    """The paths in a tree of `use`."""
    head, brace, inner = tree.partition("{")
    if not brace:
        yield tree.split(" as ")[0].strip()
        return
    depth, part = 0, ""
    for letter in inner:
        if letter == "," and depth == 0:
            yield from (f"{head.strip()}{leaf}" for leaf in leaves(part) if leaf)
            part = ""
            continue
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            break
        part += letter
    yield from (f"{head.strip()}{leaf}" for leaf in leaves(part) if leaf)


def module_graph(source: Path, folder: Path) -> dict[str, set[str]]:
    """The modules in a folder of a crate, and the others among them that each one names."""
    roots = [folder / name for name in ("lib.rs", "main.rs", "mod.rs")] + [folder.with_suffix(".rs")]
    roots = [path for path in roots if path.exists() and source in path.parents]
    modules = set(re.findall(r"^(?:pub(?:\(\w+\))? )?mod (\w+);", "\n".join(path.read_text() for path in roots), re.M))
    here = "::".join(("crate", *folder.relative_to(source).parts)) + "::"
    # A name that the root re-exports belongs to its module.
    again = {}
    for path in roots:
        for tree in re.findall(r"^(?:pub(?:\(\w+\))? )?use ([^;]+);", without_tests(path), re.M):
            for leaf in leaves(tree):
                first, *rest = leaf.removeprefix(here).removeprefix("self::").split("::")
                if first in modules and rest:
                    again[rest[-1]] = first
    skipped = for_tests_only(source)
    modules -= {path.stem for path in skipped if path.parent == folder}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for path in folder.rglob("*.rs"):
        module = path.relative_to(folder).parts[0].removesuffix(".rs")
        if module not in modules or {path, *path.parents} & skipped:
            continue
        code = without_tests(path)
        # From a file in a folder, as many `super` as there are folders lead to the root.
        to_root = "super::" * len(path.relative_to(folder).parts)
        trees = re.findall(rf"(?<!super::)\b(?:{here}|{to_root}(?!super))([^;]*)", code)
        named = [leaf for tree in trees for leaf in leaves(tree.split("(")[0])]
        firsts = {re.split(r"\W", name, maxsplit=1)[0] for name in named}
        graph[module] |= ({again.get(first, first) for first in firsts} & modules) - {module}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle: modules of which each names the next, and the last names the first; empty if there is none."""
    done: set[str] = set()

    def look(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module not in done:
            for other in sorted(graph[module]):
                if found := look(other, [*way, module]):
                    return found
            done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := look(module, []))), [])


# Libraries that build scripts compile.
LIBRARIES = ("gpu-worker/interposer/src/library", "tests/gpu/src/driver", "tests/gpu/src/monitoring")


def sources() -> list[str]:
    return sorted([*LIBRARIES, *(str(folder.relative_to(ROOT) / "src") for folder in manifests().values())])


def folders(source: str) -> Iterator[Path]:
    """The folder of a crate and those in it, except a library, which has its own root."""
    yield ROOT / source
    libraries = {ROOT / library for library in LIBRARIES if library != source}
    for path in sorted((ROOT / source).rglob("*")):
        if path.is_dir() and libraries.isdisjoint((path, *path.parents)):
            yield path


@pytest.mark.parametrize("source", sources())
def test_modules_know_each_other_in_one_direction(source: str) -> None:
    graphs = {str(folder.relative_to(ROOT)): module_graph(ROOT / source, folder) for folder in folders(source)}
    assert graphs[source] or source not in LIBRARIES
    assert {folder: " -> ".join(found) for folder, graph in graphs.items() if (found := circle(graph))} == {}


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "lib.rs").write_text("mod one;\nmod two;\nmod three;\npub use two::Two;\n#[cfg(test)]\nmod tests;\n")
    (tmp_path / "one.rs").write_text("mod deep;\nuse crate::tests::Known;\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/deep.rs").write_text("use super::three;\nuse super::super::Two;\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/mod.rs").write_text("// crate::one\nfn f() { crate::three::g(); }\n")
    (tmp_path / "three.rs").write_text("#[cfg(test)]\nmod tests {\n    use crate::one;\n}\n")
    assert module_graph(tmp_path, tmp_path) == {"one": {"two"}, "two": {"three"}, "three": set()}
    assert circle(module_graph(tmp_path, tmp_path)) == []
    (tmp_path / "three.rs").write_text("use super::{\n    one::{self, One},\n};\n")
    assert circle(module_graph(tmp_path, tmp_path)) == ["one", "two", "three"]
    (tmp_path / "lib.rs").rename(tmp_path / "mod.rs")
    assert circle(module_graph(tmp_path, tmp_path)) == ["one", "two", "three"]


def test_a_circle_in_a_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "lib.rs").write_text("mod one;\n")
    (tmp_path / "one.rs").write_text("mod deep;\nmod flat;\npub(super) use flat::Flat;\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/deep.rs").write_text("use super::Flat;\n")
    (tmp_path / "one/flat.rs").write_text("use crate::one::other;\n")
    assert module_graph(tmp_path, tmp_path / "one") == {"deep": {"flat"}, "flat": set()}
    (tmp_path / "one/flat.rs").write_text("use crate::one::deep::Deep;\n")
    assert circle(module_graph(tmp_path, tmp_path / "one")) == ["deep", "flat"]
