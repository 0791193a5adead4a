"""Let PyPI's torch import and compute on the CPU without the 2.5 GB of CUDA libraries that it is linked against.

PyPI has no CPU build of torch for Linux. After an installation with `--no-deps` the CUDA libraries are missing, and
the loader resolves all of their functions when torch is imported. So this script compiles a small stub for each
missing library, with only the functions that torch names. Each function returns "no device", so torch reports in its
usual words that there is no GPU.

Needs gcc and binutils. Makes no stub for a library that is installed. Fails if this torch needs a library that is not
in the list of known ones, and names it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

KNOWN = set(
    "cublas cublasLt cudart cudnn cufft cufile cupti curand cusparse cusparseLt nccl nvrtc nvshmem_host "
    "nvToolsExt".split()
)
OF_CUDA = re.compile(r"(__)?(cuda|cublas|cudnn|cufft|cuFile|cupti|curand|cusparse|nccl|nvrtc|nvshmem|nvtx)")
NO_DEVICE = 100  # CUDA's error number
TRIAL = "import torch; assert (torch.ones(2, 2) @ torch.ones(2)).tolist() == [2, 2]; torch.cuda.is_available()"


class Unknown(Exception):
    """This torch needs something for which there is no stub."""


def main() -> int:
    try:
        folder, own = libraries_of_torch()
        stubs = make_stubs(folder, own)
        try_torch()
    except (Unknown, PackageNotFoundError, subprocess.CalledProcessError) as error:
        print(f"No stubs for the CUDA libraries of torch: {error}", file=sys.stderr)
        print("hint: pin the last torch that worked, or teach scripts/stub_cuda.py the new one", file=sys.stderr)
        return 1
    print(f"Stubs for {len(stubs)} CUDA libraries of torch: {', '.join(stubs) or 'none is missing'}")
    return 0


def libraries_of_torch() -> tuple[Path, list[Path]]:
    """The folder where torch looks for libraries, and the libraries that its wheel contains."""
    installed = distribution("torch")
    names = [Path(str(file.locate())) for file in installed.files or () if re.search(r"\.so(\.|$)", file.name)]
    return Path(str(installed.locate_file("torch/lib"))).resolve(), [name.resolve() for name in names]


def make_stubs(folder: Path, own: list[Path]) -> list[str]:
    for old in set(folder.glob("*.so*")).difference(own):
        old.unlink()
    missing = missing_libraries(own)
    unknown = sorted(name for name in missing if name.partition(".so")[0].removeprefix("lib") not in KNOWN)
    if unknown:
        raise Unknown(f"it wants {', '.join(unknown)}")
    functions, nodes = wanted_functions(own, missing)
    for name in missing:
        compile_stub(folder / name, functions[name], nodes.get(name))
    return missing


def missing_libraries(own: list[Path]) -> list[str]:
    """The libraries that `import torch` loads and that the loader does not find."""
    loaded = [path for path in own if path.name.startswith(("_C.", "libtorch_global_deps."))]
    return sorted(set(re.findall(r"(\S+) => not found", output_of("ldd", *loaded))))


def wanted_functions(own: Iterable[Path], missing: list[str]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """For each missing library, the functions that it must have and the symbol version that they must carry.

    The loader accepts a function without a version from any library.
    """
    functions: dict[str, set[str]] = defaultdict(set)
    nodes = {library: node for path in own for library, node in needed_versions(path) if library in missing}
    library_of = {node: library for library, node in nodes.items()}
    unversioned = next((name for name in missing if name not in nodes), next(iter(missing), ""))
    defined = {name for path in own for name, _ in symbols(path, "--defined-only")}
    for name, node in (symbol for path in own for symbol in symbols(path, "--undefined-only")):
        if node in library_of:
            functions[library_of[node]].add(name)
        elif not node and OF_CUDA.match(name) and name not in defined:
            functions[unversioned].add(name)
    return functions, nodes


def needed_versions(path: Path) -> Iterable[tuple[str, str]]:
    library = ""
    for line in output_of("readelf", "--version-info", "--wide", path).splitlines():
        if found := re.search(r"File: (\S+)", line):
            library = found[1]
        elif found := re.search(r"Name: (\S+) +Flags", line):
            yield library, found[1]


def symbols(path: Path, which: str) -> Iterable[tuple[str, str]]:
    """Names and versions of the symbols that this library defines or needs (`which`), without weak references."""
    for line in output_of("nm", "--dynamic", which, path).splitlines():
        *_, kind, symbol = line.split()
        name, _, node = symbol.partition("@")
        if kind != "w":
            yield name, node


def compile_stub(path: Path, functions: set[str], node: str | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, versions = Path(scratch, "stub.c"), Path(scratch, "versions")
        source.write_text("".join(f"{stub(name)}\n" for name in sorted(functions)))
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
        if node is not None:
            versions.write_text(f"{node} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run(command, check=True)


def stub(function: str) -> str:
    if "String" in function or "ErrorName" in function:
        return f'const char *{function}(void) {{ return "this torch has no CUDA libraries"; }}'
    return f"int {function}(void) {{ return {NO_DEVICE}; }}"


def try_torch() -> None:
    tried = subprocess.run([sys.executable, "-W", "error", "-c", TRIAL], capture_output=True, text=True)
    if tried.returncode:
        raise Unknown((tried.stderr.strip().splitlines() or [f"its import ended with {tried.returncode}"])[-1])


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
