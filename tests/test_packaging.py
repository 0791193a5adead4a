"""One wheel contains program, package and kernel; the program installs the kernel elsewhere and explains itself."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from end_to_end import Place
from end_to_end.baton_wheel import build_baton_wheel
from end_to_end.place import OUTER_ENVIRONMENT
from end_to_end.service import run_binary
from jupyter_client.kernelspec import KernelSpecManager
from PIL import Image

ROOT = Path(__file__).parent.parent
EXTENSION = ROOT / "kernelspec/data/share/jupyter/labextensions/baton-jupyter"

# If sources have changed since the installation, building the wheel compiles.
pytestmark = pytest.mark.owner


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The result of `pip wheel .`. The program is built already."""
    return zipfile.ZipFile(build_baton_wheel(tmp_path_factory.mktemp("wheel")))


def test_the_wheel_carries_everything(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    (program,) = (info for info in wheel.infolist() if info.filename.endswith(".data/scripts/baton"))
    assert stat.S_IMODE(program.external_attr >> 16) & 0o111
    kernel = [name.rsplit("/", 1)[1] for name in names if "/data/share/jupyter/kernels/baton/" in name]
    assert sorted(kernel) == ["kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"]
    assert {
        "baton_shim/__main__.py",
        "baton/__init__.py",
        "baton/py.typed",
        "baton_shim/py.typed",
        "baton_shim/state/__init__.py",
    } <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_carries_nothing_else(wheel: zipfile.ZipFile) -> None:
    first = {name.split("/")[0].split("-")[0] for name in wheel.namelist()}
    assert first == {"baton", "baton_shim", "baton_jupyter"}
    unwanted = ("/tests/", "/test_", ".pyc", ".rs")
    assert not [name for name in wheel.namelist() if any(part in name for part in unwanted)]


def test_the_wheel_carries_the_extension_of_jupyterlab(wheel: zipfile.ZipFile) -> None:
    prefix = "/data/share/jupyter/labextensions/baton-jupyter/"
    names = {name.split(prefix)[1]: name for name in wheel.namelist() if prefix in name}
    package = json.loads(wheel.read(names["package.json"]))
    assert package["jupyterlab"]["_build"]["load"] in names
    assert {name: wheel.read(path) for name, path in names.items()} == files_of(EXTENSION)


def test_the_extension_is_the_build_of_its_source(tmp_path: Path) -> None:
    """It is checked in, so that an installation from source does not need Node."""
    subprocess.run([ROOT / "scripts/build-labextension", tmp_path], env=OUTER_ENVIRONMENT, check=True, timeout=400)
    built = files_of(tmp_path / EXTENSION.relative_to(ROOT / "kernelspec"))
    assert built == files_of(EXTENSION), "run: make labextension"


def test_the_extension_has_the_version_of_the_package(place: Place) -> None:
    package = json.loads((EXTENSION / "package.json").read_text())
    assert (package["name"], package["version"]) == ("baton-jupyter", run_binary(place, "--version").stdout.split()[-1])


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_version_is_the_programs(wheel: zipfile.ZipFile, place: Place) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    version = run_binary(place, "--version").stdout.split()[-1]
    assert f"\nVersion: {version}\n" in wheel.read(metadata).decode()
    shim = subprocess.run(
        [sys.executable, "-c", "import baton_shim; print(baton_shim.__version__)"], capture_output=True, text=True
    )
    assert shim.stdout == f"{version}\n"


def test_the_kernel_is_found_after_pip_install() -> None:
    spec = KernelSpecManager().get_kernel_spec("baton")
    assert spec.display_name == "Python (shared GPU)"
    assert spec.argv[1:] == ["-m", "baton_shim", "-f", "{connection_file}"]
    assert spec.interrupt_mode == "message"
    assert spec.metadata == {"debugger": True}
    for pixels in (32, 64):
        with Image.open(Path(spec.resource_dir) / f"logo-{pixels}x{pixels}.png") as logo:
            assert logo.size == (pixels, pixels)


@pytest.mark.parametrize("where", ["user", "prefix"])
def test_install_puts_the_kernel_in_place(place: Place, tmp_path: Path, where: str) -> None:
    options = {"user": ["--user"], "prefix": ["--prefix", str(tmp_path)]}[where]
    result = run_binary(place, "install", *options)
    assert result.returncode == 0, result.stderr
    share = {"user": place.folder / "home/.local/share/jupyter", "prefix": tmp_path / "share/jupyter"}[where]
    folder = share / "kernels/baton"
    kernel = json.loads((folder / "kernel.json").read_text())
    assert kernel["argv"][1:] == ["-m", "baton_shim", "-f", "{connection_file}"]
    assert Path(kernel["argv"][0]).is_absolute()
    shipped = ROOT / "kernelspec/data/share/jupyter/kernels/baton"
    assert {path.name for path in folder.iterdir()} == {path.name for path in shipped.iterdir()}
    assert str(folder) in result.stdout
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_doctor_says_each_thing_in_a_sentence(place: Place) -> None:
    result = run_binary(place, "doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) >= 5
    assert "cloudpickle" in result.stdout


def test_doctor_finds_what_is_wrong_and_how_to_mend_it(place: Place, tmp_path: Path) -> None:
    result = run_binary(place, "doctor", BATON_BROKER_ADDRESS=f"unix:{tmp_path}/nobody.sock")
    assert result.returncode != 0
    assert "nobody.sock" in result.stdout
    assert "fix: " in result.stdout


def test_config_show_says_where_each_value_comes_from(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[worker]\nslots = 3\n")
    shown = run_binary(place, "config", "show", BATON_CONFIG=str(file), BATON_WORKER_NAME="lab").stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.split()}
    assert "3" in lines["worker.slots"]
    assert str(file) in lines["worker.slots"]
    assert "lab" in lines["worker.name"]
    assert "BATON_WORKER_NAME" in lines["worker.name"]
    assert "default" in lines["broker.listen"]


def test_an_unknown_key_is_an_error(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[worker]\nslot = 3\n")
    result = run_binary(place, "config", "show", BATON_CONFIG=str(file))
    assert result.returncode != 0
    assert "worker.slot" in result.stderr
    assert "worker.slots" in result.stderr


def test_the_reference_of_settings_is_current(place: Place) -> None:
    page = run_binary(place, "config", "reference").stdout
    assert (ROOT / "docs/reference/configuration.md").read_text() == page
