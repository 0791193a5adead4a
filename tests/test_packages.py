"""`pip install` in a `%%gpu` cell affects only this notebook's sessions."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel, Place, Service
from end_to_end.waiting import wait_until

ENVIRONMENT = Path(sys.prefix)


@pytest.fixture
def kernel(new_kernel: Callable[..., Kernel]) -> Kernel:
    """Only for this test, because a notebook remembers what was installed."""
    return new_kernel()


@pytest.fixture
def wheels(place: Place) -> Path:
    """An index of small packages: two versions of one, and one that needs it and a package that every worker has."""
    folder = Path(tempfile.mkdtemp(dir=place.signs))
    make_wheel(folder, "baton_trial", "1.0")
    make_wheel(folder, "baton_trial", "2.0")
    make_wheel(folder, "baton_needs", "1.0", requires=("baton_trial<2", "ipykernel"))
    return folder


def make_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    information = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\nclass Thing:\n    size = 3\n")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", f"{name}.py,,\n{information}/METADATA,,\n{information}/RECORD,,\n")


def lacks(kernel: Kernel, module: str) -> bool:
    """Whether a `%%gpu` cell cannot import it."""
    return kernel.gpu(f"import {module}").error == ("ModuleNotFoundError", f"No module named '{module}'")


def installed(name: str) -> list[Path]:
    """Files of the package in the environment that workers, notebooks and these tests share."""
    return list(ENVIRONMENT.rglob(f"{name}*"))


@pytest.mark.parametrize(
    "command",
    ["!pip install", "%pip install", "!python -m pip install", "!{sys.executable} -m pip install", "!uv pip install"],
)
def test_a_package_is_for_this_notebook_only(
    kernel: Kernel, new_kernel: Callable[..., Kernel], wheels: Path, command: str
) -> None:
    kernel.run("import sys").ok()
    kernel.gpu("sys.executable")
    said = kernel.gpu(
        f"{command} --no-index --find-links {wheels} baton_trial\nimport baton_trial\nbaton_trial.VERSION"
    )
    assert said.ok().value == "'2.0'", said.stdout
    assert kernel.gpu("import baton_trial; baton_trial.VERSION").ok().value == "'2.0'"
    assert installed("baton_trial") == []
    other = new_kernel()
    assert lacks(other, "baton_trial")


def test_the_next_session_has_the_packages_again(kernel: Kernel, wheels: Path) -> None:
    install = f"!pip install -q --no-index --find-links {wheels}"
    kernel.gpu(f"{install} baton_needs\nimport baton_needs, ipykernel\nfrom baton_needs import Thing\nnumber = 3").ok()
    again = "Installed again in the new session: baton-needs==1.0 baton-trial==1.0\n"
    kernel.kill_session()
    result = kernel.gpu("import baton_needs, baton_trial; baton_needs.VERSION, baton_trial.VERSION, number").ok()
    assert (result.value, result.stdout) == ("('1.0', '1.0', 3)", again)
    kernel.gpu(f"{install} -U baton_trial\n!pip uninstall -q -y baton_needs").ok()
    kernel.kill_session()
    result = kernel.gpu("import baton_trial; baton_trial.VERSION").ok()
    assert (result.value, result.stdout) == ("'2.0'", "Installed again in the new session: baton-trial==2.0\n")
    assert lacks(kernel, "baton_needs")
    for wheel in wheels.iterdir():
        wheel.unlink()
    kernel.kill_session()
    result = kernel.gpu("1").ok()
    assert "warning: baton-trial==2.0 could not be installed again in the new session" in result.stderr
    make_wheel(wheels, "baton_trial", "2.0")
    kernel.kill_session()
    assert kernel.gpu("import baton_trial; baton_trial.VERSION").ok().value == "'2.0'"


def test_an_object_of_a_package_ends_with_its_session_and_an_import_does_not(kernel: Kernel, wheels: Path) -> None:
    install = f"!pip install -q --no-index --find-links {wheels} baton_trial"
    kernel.gpu(f"{install}\nimport baton_trial\nThing = baton_trial.Thing\nthing = Thing()").ok()
    lost = "'thing' (from the package 'baton-trial', which is not installed for ordinary cells)"
    ended = f"warning: Your session ended. Lost with it: {lost}\n"
    assert kernel.run("%gpu_reset").ok().stderr.startswith(ended)


def test_programs_of_a_cell_have_the_packages_and_those_of_the_worker(kernel: Kernel, wheels: Path) -> None:
    result = kernel.gpu(
        f"!pip install -q --no-index --find-links {wheels} baton_trial\n"
        "!python -c 'import baton_trial, ipykernel; print(baton_trial.VERSION)'\n"
        "!pip list --format=freeze"
    )
    lines = result.ok().stdout.splitlines()
    assert lines[0] == "2.0"
    assert "baton-trial==2.0" in lines or "baton_trial==2.0" in lines
    assert any(line.startswith("ipykernel==") for line in lines)


def test_the_workers_own_packages_stay_as_they_are(kernel: Kernel, wheels: Path) -> None:
    make_wheel(wheels, "cloudpickle", "99.0")
    find = "from importlib.metadata import version; version('cloudpickle')"
    before = kernel.evaluate("__import__('importlib.metadata').metadata.version('cloudpickle')")
    result = kernel.gpu(f"!pip install --no-index --find-links {wheels} cloudpickle==99.0\n{find}").ok()
    assert result.value == "'99.0'", result.stdout
    assert kernel.evaluate("__import__('importlib.metadata').metadata.version('cloudpickle')") == before
    kernel.gpu("!pip uninstall -y cloudpickle").ok()
    assert kernel.gpu(find).ok().value == repr(before)
    result = kernel.gpu("!pip uninstall -y ipykernel").ok()
    assert "outside environment" in result.stdout


def test_an_object_of_a_package_that_the_notebook_lacks(kernel: Kernel, wheels: Path) -> None:
    install = f"!pip install -q --no-index --find-links {wheels} baton_trial"
    kernel.gpu(f"{install}\nimport baton_trial\nthing = baton_trial.Thing()\nnumber = 5").ok()
    assert kernel.evaluate("number") == 5
    assert kernel.gpu("thing.size").ok().value == "3"
    error = kernel.run("thing.size")
    assert (
        "'thing' is from the package 'baton-trial', which is not installed for ordinary cells" in error.plain_traceback
    )
    assert "hint: run '%pip install baton-trial' in an ordinary cell" in error.stderr
    folder = wheels / "site-packages"
    kernel.run(f"!pip install -q --no-index --find-links {wheels} --target {folder} baton_trial").ok()
    kernel.run(f"import sys; sys.path.append({str(folder)!r}); import baton_trial").ok()
    assert kernel.gpu("thing = baton_trial.Thing()\nthing.size").ok().value == "3"
    assert kernel.run("thing.size, isinstance(thing, baton_trial.Thing)").ok().value == "(3, True)"


@pytest.mark.parametrize("command", ["!pip install", "%pip install", "!python -m pip install", "!uv pip install"])
def test_a_worker_may_refuse(service: Service, new_kernel: Callable[..., Kernel], wheels: Path, command: str) -> None:
    service.start_broker()
    service.start_worker(BATON_WORKER_INSTALL_PACKAGES="false")
    kernel = service.kernel(new_kernel)
    result = kernel.gpu(f"{command} --no-index --find-links {wheels} baton_trial").ok()
    assert (
        "Cells cannot install packages on this worker; nothing was changed\nhint: ask your course staff"
        in result.stdout.replace("\r", "")
    )
    assert lacks(kernel, "baton_trial")
    assert kernel.gpu("!pip --version").ok().stdout.startswith("pip ")


@pytest.mark.parametrize("command", ["!pip install", "%pip install", "!python -m pip install", "!uv pip install"])
def test_without_a_network_nothing_is_looked_for(
    service: Service, new_kernel: Callable[..., Kernel], wheels: Path, command: str
) -> None:
    service.start_broker()
    make_wheel(service.place.work, "baton_trial", "1.0")
    service.start_worker(BATON_WORKER_SANDBOX="landlock", BATON_WORKER_NETWORK="none")
    kernel = service.kernel(new_kernel)
    said = kernel.gpu(f"{command} baton_trial").ok()
    assert (
        "Packages cannot be installed: cells on this worker have no network; nothing was changed\n"
        "hint: ask your course staff to add it\n"
    ) in said.stdout.replace("\r", "")
    assert said.stderr == ""
    assert lacks(kernel, "baton_trial")
    kernel.gpu(f"{command} --no-index --find-links . baton_trial\nimport baton_trial").ok()


def test_nothing_is_left_of_a_session(kernel: Kernel, wheels: Path) -> None:
    install = f"!pip install -q --no-index --find-links {wheels} baton_trial"
    file = Path(kernel.gpu(f"{install}\nimport baton_trial\nprint(baton_trial.__file__)").ok().stdout.strip())
    assert file.is_file()
    kernel.shutdown()
    wait_until(lambda: not file.exists(), "the packages are gone with their session")


def test_nvidia_smi_says_that_a_worker_has_no_gpu(kernel: Kernel) -> None:
    said = kernel.gpu("!nvidia-smi").ok().stdout
    assert said.strip() == "nvidia-smi: this worker has no GPU, so your %%gpu cells compute on its processor"
