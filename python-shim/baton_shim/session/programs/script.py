"""A script as a job: its output goes to `baton run` as it is written, and its exit status at the end."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import sys

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
            status = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            pass_on(process, report)
            raise
        finally:
            if process.poll() is None:
                process.kill()
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
    """Passes output on until the script has closed both of its streams."""
    decode = codecs.getincrementaldecoder("utf-8")
    with selectors.DefaultSelector() as streams:
        for name in ("stdout", "stderr"):
            pipe = getattr(process, name)
            if not pipe.closed:
                streams.register(pipe, selectors.EVENT_READ, (name, decode(errors="replace")))
        while streams.get_map():
            for key, _ in streams.select():
                name, decoder = key.data
                data = os.read(key.fd, READ_BYTES)
                if text := decoder.decode(data, final=not data):
                    report.stream(name, text)
                if not data:
                    streams.unregister(key.fileobj)
