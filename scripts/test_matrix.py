"""Run tests of the Python package with other versions of Python and of the libraries.

Each file in `requirements/matrix/` is an environment. Its first lines name the Python, the tests in
`python-shim/tests/` (`Tests`) and those in `tests/` (`EndToEnd`); the rest pins every package. The end-to-end tests run
the Baton that is installed for this script's Python.

`python scripts/test_matrix.py` runs all environments, and `... oldest newest` runs these two. `--ends` also runs these
two, but only the tests that depend most on versions (`make test`). uv makes the environments in `.venv/matrix/`, and a
second run uses them again. `--remove` removes each one after its tests; the large ones take 5 GB.

The script looks for a Python on the PATH, then with pyenv, then with uv, and never downloads one. A missing Python is
an error, except with `--ends`, which prints a line and continues.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "requirements" / "matrix"
ENVIRONMENTS = ROOT / ".venv" / "matrix"
ENDS = ("oldest", "newest")
TELLING = (
    *("shim/test_cells.py", "state/test_views_replace_views.py", "state/test_newer_pythons.py", "state/test_arrow.py"),
    *("state/test_errors.py", "state/test_libraries.py", "state/test_rebuilding.py"),
)
"""The longest ones first."""
PROCESSES = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
"""They run the files in their order. Tests wait for their kernels, so three processes suit two processors."""
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


class Environment(NamedTuple):
    name: str
    python: str
    tests: list[str]
    end_to_end: list[str]
    file: Path


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", help="of files in requirements/matrix, without .txt")
    arguments.add_argument("--ends", action="store_true")
    arguments.add_argument("--remove", action="store_true")
    asked = arguments.parse_args()
    names = asked.names or (ENDS if asked.ends else sorted(file.stem for file in FILES.glob("*.txt")))
    failed = [name for name in names if not passes(described(name), ends=asked.ends, remove=asked.remove)]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def described(name: str) -> Environment:
    """Raises OSError if there is no such file, and KeyError if its first lines lack the Python or the tests."""
    file = FILES / f"{name}.txt"
    said = dict(re.findall(r"^# (\w+): (.+)$", file.read_text(), re.MULTILINE))
    return Environment(name, said["Python"], said["Tests"].split(), said.get("EndToEnd", "").split(), file)


def passes(environment: Environment, *, ends: bool, remove: bool) -> bool:
    python = find_python(environment.python)
    if python is None:
        print(f"NOT TESTED: {environment.name}, because this machine has no Python {environment.python}", flush=True)
        return ends
    print(f"=== {environment.name}: Python {environment.python} ({python})", flush=True)
    folder = made(environment, python)
    tests = TELLING if ends else environment.tests
    try:
        passed = run_tests(folder, tests)
        if not ends and environment.end_to_end:
            passed = run_end_to_end(folder, environment.end_to_end) and passed
        return passed
    finally:
        if remove:
            shutil.rmtree(folder)


def find_python(version: str) -> str | None:
    return next((python for python in candidates(version) if is_version(python, version)), None)


def candidates(version: str) -> Iterator[str]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
    command = [UV, "python", "find", "--no-python-downloads", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        yield found.stdout.strip()


def is_version(python: str, version: str) -> bool:
    """Runs it, because pyenv has shims on the PATH for all its versions, and the shim of an inactive one fails."""
    command = [python, "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.returncode == 0 and said.stdout.strip() == version


def made(environment: Environment, python: str) -> Path:
    folder = ENVIRONMENTS / environment.name
    needed = [environment.file, *(ROOT / "requirements").glob("*.txt")]
    mark, is_now = folder / ".installed", hashlib.sha256(b"".join(file.read_bytes() for file in needed)).hexdigest()
    if mark.exists() and mark.read_text() == is_now:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([UV, "venv", "--quiet", "--python", python, folder], check=True)
    inside = folder / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--python", inside, "-r", environment.file]
    subprocess.run(install, check=True)
    if list(folder.glob("lib/python*/site-packages/torch")):
        subprocess.run([inside, ROOT / "scripts" / "stub_cuda.py"], check=True)
    mark.write_text(is_now)
    return folder


def run_tests(folder: Path, tests: list[str] | tuple[str, ...]) -> bool:
    files = [str(Path("python-shim", "tests", test)) for test in tests]
    command = [folder / "bin" / "python", "-m", "pytest", "-m", "not gpu", *PROCESSES, *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python-shim")}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def run_end_to_end(folder: Path, tests: list[str]) -> bool:
    """Copies the installed wheel into the environment. The wheel works with any version of Python."""
    (packages,) = folder.glob("lib/python*/site-packages")
    for file in importlib.metadata.files("baton-jupyter") or []:
        place = packages.joinpath(*file.parts)
        place.parent.resolve().mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.locate(), place)
    command = [folder / "bin" / "python", "-m", "pytest", *(str(Path("tests", test)) for test in tests)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
