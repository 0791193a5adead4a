"""`python -m baton_shim -f connection.json …`: forks the notebook kernel, and becomes `baton kernel`, its proxy.

Jupyter's clients accept a kernel that is a module of a Python; the exec keeps the process id, so signals, the process
group and the exit code stay those of the kernel. The fork saves the start of a second Python.

**Invariant:** only `os` and `sys` are imported on the way to fork and exec, because `-m` puts the notebook's folder,
and with it the student's own modules, in front of the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator


def main() -> None:
    leave_notebook_folder()
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from baton_shim import __version__

        sys.stdout.write(f"baton_shim {__version__}\n")
        return
    if os.environ.get("BATON_DISABLE", "") not in ("", "0"):
        execute([sys.executable, "-m", "ipykernel_launcher", *arguments])
    binary = find_binary()
    if binary is None:
        sys.stderr.write(
            "The program 'baton' was not found beside this Python or on PATH\n"
            "hint: install it again with 'pip install --force-reinstall baton-jupyter', "
            "or set BATON_BINARY to its path\n"
        )
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
    """What `ipykernel_launcher` does, too; the kernel puts the folder back once it has loaded its libraries."""
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def execute(command: list[str]) -> None:
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"Failed to start {command[0]}: {error.strerror}\n")
        sys.exit(1)


def find_binary() -> str | None:
    chosen = os.environ.get("BATON_BINARY")
    if chosen:
        return chosen
    for folder in folders():
        path = os.path.join(folder, "baton")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def folders() -> Iterator[str]:
    yield os.path.dirname(sys.executable)
    # Where installers put programs when that is not beside the interpreter (`pip install --user`, system Pythons).
    import sysconfig

    for scheme in (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")):
        yield sysconfig.get_path("scripts", scheme)
    yield from (folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)


if __name__ == "__main__":
    main()
