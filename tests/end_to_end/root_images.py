"""The root file system of an image, made of the Python that runs the tests and the libraries that it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from end_to_end.wheels import NEEDS, Wheels

PYTHON = "opt/python"
PROGRAMS = ("sh", "cat", "env", "setsid", "sleep")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "config-3*")


def make_image(root: Path, wheels: Wheels, uv: Path, *packages: str) -> Path:
    """Returns the path of its Python inside the image."""
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = root / PYTHON
    (home / "bin").mkdir(parents=True)
    shutil.copy(base / "bin" / version, home / "bin" / version)
    shutil.copytree(base / "lib" / version, home / "lib" / version, ignore=LEFT_OUT)
    site = home / "lib" / version / "site-packages"
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", site, "--no-index"]
    subprocess.run([*command, "--find-links", wheels.folder, *NEEDS, *packages], check=True)
    programs = root / "usr/bin"
    programs.mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(str(shutil.which(program)), programs / program)
    libraries = libraries_of([home / "bin" / version, *programs.iterdir(), *home.rglob("*.so")])
    for library in libraries:
        copied = root / library.relative_to("/")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, copied)
    folder = root / next(path.parent for path in libraries if path.name.startswith("libc.so")).relative_to("/")
    for library in base.glob("lib/libpython*.so*"):
        shutil.copy(library, folder)
    for name in ("bin", "lib", "lib64"):
        if not (root / name).exists() and Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    (root / "etc").mkdir()
    (root / "etc/image").write_text("of the image")
    (root / "home/guest").mkdir(parents=True)
    return Path("/", PYTHON, "bin", version)


def libraries_of(files: list[Path]) -> set[Path]:
    """System libraries that they need, at their real paths, including the loader."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(", said, re.MULTILINE)}
    prefix = Path(sys.base_prefix)
    system = {path for path in found if not path.is_relative_to(prefix) and not path.is_relative_to("/tmp")}
    return {path.parent.resolve() / path.name for path in system}
