"""A script as a job: its output goes to `baton run` as it is written, and its exit status at the end."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import threading

from baton_shim.session.programs.report import ProgramFailed, Report
from baton_shim.state.errors import GpuServiceError

READ_BYTES = 1 << 16


class ScriptUnreadable(GpuServiceError):
    """The script is outside the folder of the session."""


def run_script(arguments: list[str]) -> None:
    """Runs `python *arguments` in the session's folder and with its GPU.

    Raises:
        ScriptUnreadable: The session cannot read the script.
        ProgramFailed: The exit status is not 0. `baton run` has already been informed.
    """
    check_readable(arguments[0])
    report = Report()
    command = [sys.executable, "-P", "-m", "baton_shim.session.programs.script_start", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        try:
            pass_on(process, report)
        except KeyboardInterrupt:
            signal_group(process, signal.SIGINT)
            pass_on(process, report)
            raise
        finally:
            end_group(process)
        status = process.wait()
    # As shells do it for a script that a signal has ended.
    report.message("exit", {"status": status if status >= 0 else 128 - status})
    if status == -signal.SIGKILL:
        raise ProgramFailed(f"{arguments[0]} was killed; often the machine's memory ran out")
    if status < 0:
        raise ProgramFailed(f"{arguments[0]} was ended by signal {-status}")
    if status > 0:
        raise ProgramFailed(f"{arguments[0]} ended with status {status}")


def check_readable(script: str) -> None:
    try:
        open(script, "rb").close()
    except OSError as error:
        raise ScriptUnreadable(
            f"{script} cannot be read on the worker: {error.strerror}",
            "a job can read the current folder and all below it: change to the folder of the script",
        ) from error


def pass_on(process: subprocess.Popen[bytes], report: Report) -> None:
    """Passes output on until the script ends. As in a batch system, processes that it leaves behind end with it."""
    decode = codecs.getincrementaldecoder("utf-8")
    ended = when_ended(process)
    try:
        with selectors.DefaultSelector() as streams:
            streams.register(ended, selectors.EVENT_READ)
            for name in ("stdout", "stderr"):
                streams.register(getattr(process, name), selectors.EVENT_READ, (name, decode(errors="replace")))
            while not pass_on_ready(streams, ended, report):
                pass
            end_group(process)
            pass_on_rest(streams, ended, report)
    finally:
        os.close(ended)


def pass_on_ready(streams: selectors.BaseSelector, ended: int, report: Report) -> bool:
    """Waits for output or the end of the script. Returns whether the script has ended."""
    has_ended = False
    for key, _ in streams.select():
        if key.fd == ended:
            has_ended = True
        elif not pass_on_once(key, report):
            streams.unregister(key.fileobj)
    return has_ended


def pass_on_rest(streams: selectors.BaseSelector, ended: int, report: Report) -> None:
    """Passes on what the pipes hold, at most what a pipe can hold: a process that has left the script's group may write
    for ever."""
    streams.unregister(ended)
    for key in list(streams.get_map().values()):
        left = fcntl.fcntl(key.fd, fcntl.F_GETPIPE_SZ)
        os.set_blocking(key.fd, False)
        while left > 0 and (read := pass_on_once(key, report)):
            left -= read
        name, decoder = key.data
        if text := decoder.decode(b"", final=True):
            report.stream(name, text)


def pass_on_once(key: selectors.SelectorKey, report: Report) -> int:
    """Returns how many bytes it has read: 0 if there are none at present, or at the end of the stream."""
    name, decoder = key.data
    try:
        data = os.read(key.fd, READ_BYTES)
    except BlockingIOError:
        return 0
    if text := decoder.decode(data, final=not data):
        report.stream(name, text)
    return len(data)


def when_ended(process: subprocess.Popen[bytes]) -> int:
    """Returns a pipe that is readable once the process has ended. The process is not waited for, so its group is still
    its own. (Old kernels have no `pidfd_open`.)"""
    ended, write = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.close(write)

    threading.Thread(target=wait, name="baton script", daemon=True).start()
    return ended


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the script, if it still runs, and all processes of its group. See :func:`signal_group`."""
    signal_group(process, signal.SIGKILL)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Must be called before the script is waited for, because its group may get another owner after that."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
