"""A broker whose pool is a Slurm of this machine."""

from __future__ import annotations

from datetime import datetime

from end_to_end.cluster import Cluster
from end_to_end.waiting import wait_until

from slurm.slurm import URGENT, Slurm


class SlurmCluster(Cluster):
    def __init__(self, port: int, *, nodes: int = 1, gpus: int = 2, sandbox: str = "", **lines: object) -> None:
        """`sandbox`: that of its workers, instead of the tests' own; `lines`: additional lines of `slurm.conf`."""
        super().__init__(port)
        self._sandbox = {"BATON_WORKER_SANDBOX": sandbox} if sandbox else {}
        self.slurm = Slurm(self.service.place.folder / "slurm", nodes=nodes, gpus=gpus, **lines)
        self.environment = self.slurm.environment
        self.slurm.start()

    def start_broker(self, **settings: object) -> None:
        super().start_broker(**{"worker": self.worker_command(**self._sandbox)} | settings)

    def jobs(self) -> list[str]:
        """Jobs that have not ended, with their states."""
        return self.slurm.runs("squeue", "--noheader", "--format=%i %T").splitlines()

    def jobs_described(self) -> str:
        jobs = self.slurm.runs("squeue", "--format=%i %T %S %r %N")
        nodes = self.slurm.runs("sinfo", "--Node", "--format=%N %T %E")
        logs = [path.read_text(errors="replace")[-3000:] for path in sorted(self.slurm.folder.glob("*.log"))]
        return "\n".join([jobs, nodes, *logs])

    def seconds_to_begin(self, job: str) -> float:
        """How long the job has to wait, even if nodes are idle."""
        begin = self.slurm.runs("squeue", "--noheader", "--states=PENDING", f"--jobs={job}", "--format=%S").strip()
        return (datetime.fromisoformat(begin) - datetime.now()).total_seconds() if begin not in ("", "N/A") else 0

    def busy_nodes(self) -> list[str]:
        """Nodes on which jobs run."""
        return self.slurm.runs("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()

    def submit_urgent_job(self) -> str:
        """Submits a job that needs the GPUs of all nodes and precedes those of the pool; returns its id."""
        options = ("--parsable", f"--partition={URGENT}", f"--gpus={len(self.slurm.nodes)}", "--output=/dev/null")
        job = self.slurm.runs("sbatch", *options, "--wrap=sleep infinity").strip()
        wait_until(lambda: f"{job} RUNNING" in self.jobs(), "the urgent job runs")
        return job

    def end_jobs(self) -> None:
        self.slurm.close()
