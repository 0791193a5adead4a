"""A separate Linux kernel for one command, as an ordinary program: user-mode Linux.

It has what a test may not get from the machine's own kernel: control groups of version 2 with all controllers. A group
is delegated to an ordinary user, as by systemd's `Delegate=yes`. The command sees the machine's files, read-only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from end_to_end.restricted import ROOT, USER, opened

KERNEL = "linux.uml"
GROUPS = "/sys/fs/cgroup/delegated"
TOO_MANY_REGISTERS = "ptrace set fp regs failed"

BOOT = """#!/bin/bash
set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/report
mount -t hostfs -o {report} none /run/report
{opened}
mount -t tmpfs -o mode=1777 tmpfs /tmp
ip link set lo up
mkdir {groups} {groups}/test
echo '+memory +pids +cpu' > /sys/fs/cgroup/cgroup.subtree_control
echo '+memory +pids +cpu' > {groups}/cgroup.subtree_control
chown -R {user} {groups}
echo $$ > {groups}/test/cgroup.procs
set +e
cd {root}
(
    unset BASH_ENV
    export PATH={path} HOME=/tmp BATON_TEST_GROUPS={groups} PYTHONDONTWRITEBYTECODE=1
    exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs {command}
) > /run/report/output 2>&1 < /dev/null
echo $? > /run/report/status
echo o > /proc/sysrq-trigger
sleep infinity
"""


def run(command: list[str], report: Path, memory: str = "3G", seconds: float = 900) -> tuple[int, str]:
    """The command's exit status and output. `report`: a folder for both.

    Skips the test on a processor on which this kernel cannot start.
    """
    kernel = shutil.which(KERNEL)
    assert kernel is not None, "user-mode Linux is missing: run scripts/install-system-packages guest"
    script = report / "boot"
    script.write_text(
        BOOT.format(
            report=report,
            opened=opened(Path("/run")),
            groups=GROUPS,
            user=USER,
            root=ROOT,
            path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            command=shlex.join(command),
        )
    )
    script.chmod(0o755)
    arguments = [kernel, "rootfstype=hostfs", "ro", f"mem={memory}", f"init={script}", "con=null", "con0=null,fd:1"]
    console, output, status = report / "console", report / "output", report / "status"
    with console.open("wb") as console_file:
        options = {"stdin": subprocess.DEVNULL, "stdout": console_file, "stderr": console_file}
        machine = subprocess.Popen(arguments, start_new_session=True, **options)
        try:
            machine.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
    if TOO_MANY_REGISTERS in console.read_text(errors="replace"):
        pytest.skip("user-mode Linux 6.1 cannot start here: this processor has more registers (AMX) than it can save")
    printed = output.read_text() if output.exists() else ""
    assert status.exists(), console.read_text()[-4000:] + printed
    return int(status.read_text()), printed
