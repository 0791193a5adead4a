"""A folder of wheels instead of a package index: the packages that Baton needs, as installed here, and small ones."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NEEDS = ("cloudpickle", "ipykernel", "ipython", "msgpack")

BACKEND = """
import os, time, zipfile

def build_wheel(folder, *_):
    open("begun", "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    def reached(act):
        try:
            act()
        except OSError:
            return False
        return True
    # What is written there is in the sandbox's own memory.
    reached(lambda: open({secret!r} + ".new", "w"))
    facts = [reached(lambda: open({secret!r}).read()), reached(lambda: open("/usr/new", "w"))]
    name = "{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        information = "{name}-1.0.dist-info"
        wheel.writestr("{name}.py", f"REACHED = {{facts}}\\n")
        wheel.writestr(f"{{information}}/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        wheel.writestr(f"{{information}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{information}}/RECORD", "")
    return name
"""


class Wheels:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def with_what_baton_needs(cls, folder: Path) -> Wheels:
        wheels = cls(folder)
        for package in closure(NEEDS):
            wheels.pack(package)
        return wheels

    def pack(self, package: Distribution) -> None:
        """Packs it as installed, without programs, which an installation creates, and without thousands of stubs."""
        name = package.metadata["Name"].replace("-", "_").replace(".", "_").lower()
        tags = (package.read_text("WHEEL") or "").splitlines()
        parts = zip(*(line.removeprefix("Tag: ").split("-") for line in tags if line.startswith("Tag: ")), strict=True)
        tag = "-".join(".".join(sorted(set(part))) for part in parts)
        files = [file for file in package.files or () if ".." not in file.parts and file.suffix not in (".pyc", ".pyi")]
        record = ""
        with zipfile.ZipFile(self.folder / f"{name}-{package.version}-{tag}.whl", "w") as wheel:
            for file in files:
                if file.name in ("INSTALLER", "REQUESTED", "direct_url.json"):
                    continue
                if file.name == "RECORD":
                    path = str(file)
                    continue
                wheel.write(Path(str(file.locate())), str(file))
                record += f"{file},,\n"
            wheel.writestr(path, f"{record}{path},,\n")

    def make(self, name: str, version: str) -> None:
        """Builds a package with one module that knows its version."""
        information = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(self.folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"VERSION = {version!r}\nclass Thing:\n    size = 3\n")
            wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{information}/RECORD", f"{name}.py,,\n{information}/METADATA,,\n{information}/RECORD,,\n")

    def make_source(self, name: str, go: Path, secret: Path) -> None:
        """Builds a package that runs code during installation: it waits for a file, and tries to reach another."""
        backend = BACKEND.format(name=name, go=str(go), secret=str(secret))
        project = (
            f'[project]\nname = "{name}"\nversion = "1.0"\n'
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        metadata = f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n"
        with tarfile.open(self.folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
            for file, text in (("backend.py", backend), ("pyproject.toml", project), ("PKG-INFO", metadata)):
                entry = tarfile.TarInfo(f"{name}-1.0/{file}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))

    def lock(self, path: Path, **versions: str) -> Path:
        """Writes a requirements file with these packages and their hashes."""
        lines = ["--no-index", f"--find-links {self.folder}"]
        for name, version in versions.items():
            (file,) = self.folder.glob(f"{name}-{version}[-.]*")
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest}")
        path.write_text("\n".join(lines) + "\n")
        return path


def closure(names: tuple[str, ...]) -> list[Distribution]:
    """These packages and everything that they need here."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = distribution(name)
        needs = map(Requirement, found[name].requires or ())
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return list(found.values())


def python_with(folder: Path, wheels: Wheels, name: str, version: str) -> Path:
    """A Python with Baton, as an administrator installs it, and one other package."""
    import venv

    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    here = next(entry for entry in sys.path if entry.endswith("site-packages"))
    (site / "baton.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    with zipfile.ZipFile(wheels.folder / f"{name}-{version}-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    return folder / "bin/python"
