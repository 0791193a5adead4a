"""The guide for Slurm, followed on a Slurm: its files and commands, except for names and paths."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end import Kernel
from end_to_end.place import MARK
from end_to_end.ports import free_port
from end_to_end.service import BINARY
from end_to_end.waiting import wait_until
from slurm.cluster import SlurmCluster
from slurm.slurm import is_installed

pytestmark = [
    pytest.mark.root("start slurmd"),
    pytest.mark.skipif(not is_installed(), reason="NOT TESTED: Slurm (slurm-wlm) is not installed"),
]

GUIDE = (Path(__file__).parent.parent / "docs/guides/slurm.md").read_text()
STARTS_SECONDS = 60


class Reader:
    """A reader who follows the guide, with names and paths of this test."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.place = cluster.service.place
        self.port = int(cluster.service.address.rpartition(":")[2])
        for name in ("etc", "shared"):
            (self.place.folder / name).mkdir()
        self.names = {
            "/shared/baton/bin/baton worker": cluster.worker_command(),
            "/shared/baton/bin/baton": str(BINARY),
            "/shared/": f"{self.place.folder}/shared/",
            "/etc/baton": f"{self.place.folder}/etc",
            "/home/ada": f"{self.place.folder}/home",
            "/var/lib/baton": f"{self.place.folder}/data",
            "0.0.0.0": "127.0.0.1",
            "login.example.edu": "127.0.0.1",
            "8470": str(self.port),
            "24817": str(self.port),
            'idle = "5m"': 'idle = "8s"',
        }

    def blocks(self, heading: str, language: str) -> list[str]:
        section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        blocks = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        assert blocks, heading
        for old, new in self.names.items():
            blocks = [block.replace(old, new) for block in blocks]
        return blocks

    def runs(self, commands: str, **environment: str) -> str:
        """The output of the commands."""
        own = self.place.environment | self.cluster.environment | environment
        said = subprocess.run(
            ["bash", "-e", "-c", commands], env=own, cwd=self.place.work, capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stderr
        return said.stdout

    def starts(self, command: str, **environment: str) -> None:
        """Starts a command that runs until the test ends."""
        with (self.place.folder / "broker.log").open("ab") as log:
            subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                env=self.place.environment | self.cluster.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@pytest.fixture
def reader() -> Iterator[Reader]:
    cluster = SlurmCluster(free_port())
    yield Reader(cluster)
    cluster.close()


def test_a_course(reader: Reader, new_kernel: Callable[..., Kernel]) -> None:
    slurm, place = reader.cluster.slurm, reader.place
    [configuration] = reader.blocks("2. The broker", "toml")
    (place.folder / "etc/broker.toml").write_text(configuration)
    people, test = reader.blocks("2. The broker", "console")
    *lines, broker = people.splitlines()
    assert broker == f"{BINARY} broker"
    student, admin = reader.runs("\n".join(lines)).splitlines()
    reader.starts(broker, BATON_CONFIG=str(place.folder / "etc/broker.toml"))
    (place.folder / "token").write_text(admin)
    as_admin = {"BATON_TOKEN_FILE": str(place.folder / "token")}
    wait_until(lambda: "listens" in (place.folder / "broker.log").read_text(), "the broker listens")
    shown = reader.runs(test, **as_admin)
    assert "sbatch --parsable --no-requeue --job-name=slurm-gpu-test --gpus=1 --time=02:00:00" in shown
    assert "is not a program" not in shown

    [kernel] = reader.blocks("3. The first cell", "console")
    token = place.folder / "home/.config/baton/token"
    token.parent.mkdir(parents=True)
    token.write_text(student)
    install, *exports, start = kernel.splitlines()
    assert start == "jupyter lab"
    reader.runs(install)
    variables = dict(line.removeprefix("export ").split("=", 1) for line in exports)
    variables["BATON_TOKEN_FILE"] = os.path.expanduser(variables["BATON_TOKEN_FILE"]).replace(
        os.path.expanduser("~"), str(place.folder / "home")
    )
    notebook = new_kernel(at=place, **variables)
    [cell] = reader.blocks("3. The first cell", "python")
    assert notebook.run(cell, seconds=STARTS_SECONDS).ok().value
    assert reader.cluster.jobs() == ["1 RUNNING"]
    address = {"BATON_BROKER_ADDRESS": variables["BATON_BROKER_ADDRESS"]}
    assert "slurm-gpu" in reader.runs(f"{BINARY} pools", **as_admin, **address)
    wait_until(lambda: slurm.runs("squeue", "--noheader") == "", "the job has ended", STARTS_SECONDS)
    assert "slurm-gpu" in reader.runs(f"{BINARY} pools", **as_admin, **address)


def test_a_students_own_jobs(reader: Reader, new_kernel: Callable[..., Kernel]) -> None:
    place = reader.place
    [configuration] = reader.blocks("Students' own jobs", "toml")
    configured = place.folder / "home/.config/baton/config.toml"
    configured.parent.mkdir(parents=True)
    # So that the test finds what its jobs leave.
    configured.write_text(f'{configuration}environment = ["{MARK}"]\n')
    [commands] = reader.blocks("Students' own jobs", "console")
    token, broker, start = commands.splitlines()
    reader.runs(token)
    assert (broker, start) == (f"{BINARY} broker &", "jupyter lab")
    reader.starts(broker.removesuffix(" &"))
    wait_until(lambda: "listens" in (place.folder / "broker.log").read_text(), "the broker listens")
    folder = place.folder / "home/course"
    folder.mkdir()
    (folder / "data.txt").write_text("7")
    notebook = new_kernel(at=place, folder=folder)
    notebook.run("factor = 6").ok()
    code = "import os\nwith open('data.txt') as file: number = int(file.read())\nfactor * number, os.getcwd()"
    assert notebook.gpu(code, seconds=STARTS_SECONDS).ok().value == f"(42, {str(folder)!r})"
    assert reader.cluster.jobs() == ["1 RUNNING"]
