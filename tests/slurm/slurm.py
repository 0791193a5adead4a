"""A Slurm of one node on this machine: `slurmctld`, `slurmd` and `munged`, each as a process of its own.

Debian's package `slurm-wlm` has them all. It needs root, because `slurmd` does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from end_to_end.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
GPUS = ("/dev/null", "/dev/zero")


def is_installed() -> bool:
    return os.geteuid() == 0 and all(shutil.which(program) for program in PROGRAMS)


class Slurm:
    """Its files lie in one folder; commands find it with `SLURM_CONF`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(parents=True)
        self.config = folder / "slurm.conf"
        self.config.write_text(self._config())
        # Slurm counts devices and never opens them.
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in GPUS))
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
            "--foreground",
            "--force",
            f"--key-file={munge}/key",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        wait_until((munge / "socket").exists, "munged listens")
        self._start("slurmctld", "-D", "-f", str(self.config))
        self._start("slurmd", "-D", "-f", str(self.config))
        wait_until(lambda: self.runs("sinfo", "--noheader", "--format=%T").strip() == "idle", "the node is ready", 60)

    def runs(self, *command: str) -> str:
        """What a command of Slurm prints; empty if it fails."""
        said = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        return said.stdout if said.returncode == 0 else ""

    def close(self) -> None:
        self.runs("scancel", "--user=root")
        wait_until(lambda: not self.runs("squeue", "--noheader").strip(), "the jobs have ended", 60)
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=30)

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def _config(self) -> str:
        host = socket.gethostname().partition(".")[0]
        control, node = free_ports(2)
        lines = {
            "ClusterName": "test",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": control,
            "SlurmdPort": node,
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "CredType": "cred/munge",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd.pid",
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
            "SchedulerParameters": "sched_interval=2,bf_interval=2",
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        node_line = f"NodeName={host} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:{len(GPUS)} State=UNKNOWN\n"
        return text + node_line + f"PartitionName=gpu Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"


def free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
