"""`python -m baton_shim -f connection.json …`: forks the notebook kernel, and becomes `baton kernel`, its proxy.

Jupyter's clients accept a Python module as a kernel. The exec keeps the process id, so signals, the process group and
the exit code remain those of the kernel. The fork saves the start of a second Python.

**Invariant:** only `os`, `sys` and `base.binary` are imported before fork and exec, because `-m` puts the notebook's
folder, and with it the student's own modules, in front of the standard library.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    leave_notebook_folder()
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from baton_shim import __version__

        sys.stdout.write(f"baton_shim {__version__}\n")
        return
    if os.environ.get("BATON_DISABLE", "") not in ("", "0"):
        execute([sys.executable, "-m", "ipykernel_launcher", *arguments])
    from baton_shim.base.binary import NOT_FOUND, find_binary

    binary = find_binary()
    if binary is None:
        sys.stderr.write("{}\nhint: {}\n".format(*NOT_FOUND))
        sys.exit(1)
    command = [binary, "kernel", "--python", sys.executable]
    if sys.platform == "linux":
        words, descriptor = os.pipe()
        kernel = os.fork()
        if kernel == 0:
            os.close(descriptor)
            from baton_shim.notebook import start

            start.forked(words)
            return
        os.close(words)
        os.set_inheritable(descriptor, True)
        command.append(f"--forked={kernel}:{descriptor}")
    execute([*command, *arguments])


def leave_notebook_folder() -> None:
    """As `ipykernel_launcher` does. The kernel puts the folder back once it has loaded its libraries."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def execute(command: list[str]) -> None:
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"Failed to start {command[0]}: {error.strerror}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
