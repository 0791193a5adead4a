"""A Grid Engine with one host on this machine: `sge_qmaster` and `sge_execd`, each as a separate process.

They come from Debian's packages `gridengine-master` and `gridengine-exec`. Root is needed, because `sge_execd` needs
it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from end_to_end.waiting import wait_until

PROGRAMS = Path("/usr/lib/gridengine")
DEFAULTS = Path("/usr/share/gridengine")
GPUS = 2


def is_installed() -> bool:
    return (PROGRAMS / "qconf").exists() and shutil.which("sge_qmaster") is not None


class GridEngine:
    """Its files are in one folder; commands find it through the variables in `environment`."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.folder = folder
        self.host = socket.gethostname()
        self._processes: list[subprocess.Popen[bytes]] = []
        master, daemon = ports
        self.environment = {
            "SGE_ROOT": str(folder),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(master),
            "SGE_EXECD_PORT": str(daemon),
            "SGE_ND": "1",
        }
        for name in ("default/common", "spool/db", "spool/execd", "spool/qmaster/job_scripts"):
            (folder / name).mkdir(parents=True)
        (folder / "util").symlink_to(DEFAULTS / "util")
        self._configure()

    def start(self) -> None:
        self._start("sge_qmaster")
        wait_until(lambda: self.runs("qconf", "-sh"), "the master answers")
        self.runs("qconf", "-as", self.host)
        self._start("sge_execd")
        wait_until(lambda: self.host in self.runs("qconf", "-sel"), "the host is known")
        self._give("complexes", self.runs("qconf", "-sc") + "gpu gpu INT <= YES YES 0 0\n", "-Mc")
        often = with_values(self.runs("qconf", "-ssconf"), schedule_interval="0:0:1", flush_submit_sec="1")
        self._give("scheduler", often, "-Msconf")
        self._does("qconf", "-aattr", "exechost", "complex_values", f"gpu={GPUS}", self.host)
        # Without a name, `-sq` prints the template. Without a load threshold, a busy machine accepts jobs, too.
        ours = {"qname": "all.q", "hostlist": self.host, "slots": "8", "shell": "/bin/sh"}
        queue = with_values(self.runs("qconf", "-sq"), **ours, pe_list="NONE", load_thresholds="NONE")
        self._give("queue", queue, "-Aq")
        state = r"^all\.q@\S+ +\S+ +\d+/\d+/8 +\d"
        wait_until(lambda: re.search(state, self.runs("qstat", "-f"), re.MULTILINE), "the queue is ready")

    def runs(self, *command: str) -> str:
        """The output of a command; empty if it fails."""
        said = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        return said.stdout if said.returncode == 0 else ""

    def close(self) -> None:
        self.runs("qdel", "-u", "*")
        wait_until(lambda: not self.runs("qstat", "-u", "*").strip(), "the jobs have ended")
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=120)

    def _start(self, program: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            environment = os.environ | self.environment
            process = subprocess.Popen(
                [program], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        self._processes.append(process)

    def _give(self, name: str, text: str, how: str) -> None:
        path = self.folder / name
        path.write_text(text)
        self._does("qconf", how, str(path))

    def _does(self, *command: str) -> None:
        environment = os.environ | self.environment
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr

    def _configure(self) -> None:
        common, spool = self.folder / "default/common", self.folder / "spool"
        bootstrap = with_values(
            (DEFAULTS / "default-bootstrap").read_text(),
            admin_user="root",
            spooling_method="classic",
            spooling_lib="libspoolc",
            spooling_params=f"{common};{spool}/db",
            binary_path=str(PROGRAMS),
            qmaster_spool_dir=f"{spool}/qmaster",
        )
        (common / "bootstrap").write_text(bootstrap)
        (common / "act_qmaster").write_text(f"{self.host}\n")
        # A host whose name belongs to its loopback address is also called `localhost`.
        (common / "host_aliases").write_text(f"{self.host} localhost\n")
        configuration = self.folder / "configuration"
        text = with_values(
            (DEFAULTS / "default-configuration").read_text(),
            execd_spool_dir=f"{spool}/execd",
            min_uid="0",
            min_gid="0",
            load_report_time="00:00:01",
        )
        configuration.write_text(text)
        resources = DEFAULTS / "util/resources"
        self._does(str(PROGRAMS / "spoolinit"), "classic", "libspoolc", f"{common};{spool}/db", "init")
        for what, value in (
            ("configuration", configuration),
            ("complexes", resources / "centry"),
            ("usersets", resources / "usersets"),
            ("managers", "root"),
        ):
            self._does(str(PROGRAMS / "spooldefaults"), what, str(value))


def with_values(text: str, **replaced: str) -> str:
    """Names and values, one per line, with some of them replaced and without comments."""
    lines = []
    for line in text.splitlines():
        name = line.partition(" ")[0]
        if not line.startswith("#"):
            lines.append(f"{name} {replaced[name]}" if name in replaced else line)
    return "\n".join(lines) + "\n"
