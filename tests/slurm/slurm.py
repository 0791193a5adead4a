"""A Slurm on this machine: `slurmctld`, `munged`, and a `slurmd` for each node, each as a separate process.

All of them are in Debian's package `slurm-wlm`. Root is needed, because `slurmd` needs it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from end_to_end.ports import free_ports
from end_to_end.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
URGENT = "urgent"
"""A partition of the same nodes with a higher priority."""

DEVICES = ("/dev/null", "/dev/zero")


def is_installed() -> bool:
    return all(shutil.which(program) for program in PROGRAMS)


class Slurm:
    """Its files are in one folder; commands find it through `SLURM_CONF`. Each of its nodes has two GPUs by default."""

    def __init__(self, folder: Path, *, nodes: int = 1, gpus: int = 2, **lines: object) -> None:
        """`lines`: additional lines of `slurm.conf`."""
        self.folder = folder
        self.nodes = [f"node{number}" for number in range(nodes)]
        self._lines = lines
        self._gpus = gpus
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(parents=True)
        self.config = folder / "slurm.conf"
        self.config.write_text(self._config())
        # Slurm counts devices and never opens them.
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in DEVICES[:gpus]))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = folder / "munge/key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.config)}

    def start(self) -> None:
        munge = self.folder / "munge"
        self._start(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={munge}/key",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        wait_until((munge / "socket").exists, "munged listens")
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.config))
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "the nodes are ready")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.config))

    def kill_node(self, node: str) -> None:
        """Simulates a power failure: `slurmd` and everything that it has started are dead at once."""
        daemon = self._processes.pop(node)
        for process in [psutil.Process(daemon.pid), *self._processes_of_jobs(node)]:
            with suppress(psutil.Error):
                process.kill()
        daemon.wait(timeout=120)

    def give_up(self, node: str) -> None:
        """Makes Slurm give up the node, as it does itself after a silence of `SlurmdTimeout`."""
        self.runs("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def _processes_of_jobs(self, node: str) -> set[psutil.Process]:
        """Includes the steps that started them, which are not children of `slurmd`."""
        marks = self.environment | {"SLURMD_NODENAME": node}
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if marks.items() <= process.environ().items() and (step := process.parent()):
                    found |= {step, *step.children(recursive=True)}
        return found

    def node_of(self, pid: int) -> str:
        """The node on which a process of a job runs."""
        process = psutil.Process(pid)
        names = [one.environ().get("SLURMD_NODENAME") for one in process.parents() if one.pid != 1]
        return next(name for name in names if name)

    def states(self) -> dict[str, str]:
        """The state of each node, according to Slurm."""
        lines = self.runs("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def runs(self, *command: str) -> str:
        """The output of a Slurm command; empty if it fails."""
        said = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        return said.stdout if said.returncode == 0 else ""

    def close(self) -> None:
        for node in self.nodes:
            if node not in self._processes:
                self.give_up(node)
        self.runs("scancel", "--user=root")
        wait_until(lambda: not self.runs("squeue", "--noheader").strip(), "the jobs have ended")
        for process in reversed(self._processes.values()):
            process.terminate()
            process.wait(timeout=120)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _config(self) -> str:
        host = socket.gethostname().partition(".")[0]
        control, *ports = free_ports(1 + len(self.nodes))
        lines = {
            "ClusterName": "test",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": control,
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "CredType": "cred/munge",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool/%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "GresTypes": "gpu",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "MpiDefault": "none",
            "ReturnToService": 2,
            "SlurmdParameters": "config_overrides",
            "MinJobAge": 2,
            "KillWait": 30,
            # A command whose daemon answers later than this fails.
            "MessageTimeout": 99,
            "SchedulerParameters": "sched_interval=2,bf_interval=2",
            **self._lines,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        for name, port in zip(self.nodes, ports, strict=True):
            text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:{self._gpus}\n"
        nodes = f"Nodes={','.join(self.nodes)} MaxTime=INFINITE State=UP"
        text += f"PartitionName=gpu {nodes} Default=YES PriorityTier=1\n"
        return text + f"PartitionName={URGENT} {nodes} PriorityTier=2\n"
