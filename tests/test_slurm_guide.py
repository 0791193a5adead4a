"""The guide for Slurm, followed on a Slurm: its files and commands, except for names and paths."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end import Kernel
from end_to_end.place import MARK
from end_to_end.ports import free_port
from end_to_end.service import BINARY
from end_to_end.tls import Tls
from end_to_end.waiting import wait_until
from slurm.cluster import SlurmCluster
from slurm.slurm import is_installed

pytestmark = [
    pytest.mark.root("start slurmd"),
    pytest.mark.skipif(not is_installed(), reason="NOT TESTED: Slurm (slurm-wlm) is not installed"),
]

HELD = "%%gpu\nimport os, time\nprint('held', flush=True)\nwhile not os.path.exists('{sign}'): time.sleep(0.05)"
"""A cell right behind another one, which keeps the worker until the test has looked."""
GUIDE = (Path(__file__).parent.parent / "docs/guides/slurm.md").read_text()


class Reader:
    """A reader who follows the guide, with names and paths of this test."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.place = cluster.service.place
        self.port = int(cluster.service.address.rpartition(":")[2])
        for name in ("etc", "shared"):
            (self.place.folder / name).mkdir()
        tls = Tls(self.place.folder / "etc")
        # The guide's machines trust the authority of the broker's certificate.
        self.trusting = {"BATON_CA_FILE": str(tls.ca_file)}
        self.names = {
            "/shared/baton/bin/baton worker": cluster.worker_command(**self.trusting),
            "/shared/baton/bin/baton": str(BINARY),
            "/shared/": f"{self.place.folder}/shared/",
            "/etc/baton/tls/fullchain.pem": str(tls.certificate),
            "/etc/baton/tls/privkey.pem": str(tls.key),
            "/etc/baton": f"{self.place.folder}/etc",
            "/home/ada": f"{self.place.folder}/home",
            "/var/lib/baton": f"{self.place.folder}/data",
            "DNS:login.example.edu": "IP:127.0.0.1",
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

    def runs(self, commands: str, token: str = "", **environment: str) -> str:
        """The output of the commands. `token`: what the reader enters when `baton login` asks."""
        said = subprocess.run(
            ["bash", "-e", "-c", commands],
            env=self.place.environment | self.cluster.environment | environment,
            cwd=self.place.work,
            input=token,
            capture_output=True,
            text=True,
            check=False,
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
    as_admin = reader.trusting | {"XDG_CONFIG_HOME": str(place.folder / "home/admin")}
    wait_until(lambda: "listens" in (place.folder / "broker.log").read_text(), "the broker listens")
    shown = reader.runs(test, admin, **as_admin)
    assert "sbatch --parsable --no-requeue --job-name=slurm-gpu-test --gpus=1 --time=02:00:00" in shown
    assert "is not a program" not in shown

    [kernel] = reader.blocks("3. The first cell", "console")
    *lines, start = kernel.splitlines()
    assert start == "jupyter lab"
    reader.runs("\n".join(lines), student, **reader.trusting)
    notebook = new_kernel(at=place, **reader.trusting)
    [cell] = reader.blocks("3. The first cell", "python")
    sign = place.signs / "seen"
    first, held = notebook.begin(cell), notebook.begin(HELD.format(sign=sign))
    assert first.finish().ok().value
    held.wait_for_text("held")
    assert reader.cluster.jobs() == ["1 RUNNING"]
    sign.touch()
    held.finish().ok()
    assert "slurm-gpu" in reader.runs(f"{BINARY} pools", **as_admin)
    wait_until(lambda: slurm.runs("squeue", "--noheader") == "", "the job has ended")
    assert "slurm-gpu" in reader.runs(f"{BINARY} pools", **as_admin)


def test_a_students_own_jobs(reader: Reader, new_kernel: Callable[..., Kernel]) -> None:
    place = reader.place
    [configuration] = reader.blocks("Students' own jobs", "toml")
    configured = place.folder / "home/.config/baton/config.toml"
    configured.parent.mkdir(parents=True)
    # So that the test finds what its jobs leave.
    configured.write_text(f'{configuration}environment = ["{MARK}"]\n')
    [commands] = reader.blocks("Students' own jobs", "console")
    *lines, broker, start = commands.splitlines()
    reader.runs("\n".join(lines))
    assert (broker, start) == (f"{BINARY} broker &", "jupyter lab")
    reader.starts(broker.removesuffix(" &"))
    wait_until(lambda: "listens" in (place.folder / "broker.log").read_text(), "the broker listens")
    folder = place.folder / "home/course"
    folder.mkdir()
    (folder / "data.txt").write_text("7")
    notebook = new_kernel(at=place, folder=folder)
    notebook.run("factor = 6").ok()
    code = "import os\nwith open('data.txt') as file: number = int(file.read())\nfactor * number, os.getcwd()"
    assert notebook.gpu(code).ok().value == f"(42, {str(folder)!r})"
    assert reader.cluster.jobs() == ["1 RUNNING"]
