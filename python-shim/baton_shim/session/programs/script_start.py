"""`python -P -m baton_shim.session.programs.script_start script.py …`: like `python script.py …`, in a job.

Without a GPU, `cuda` is virtual, as in a session. The script sees nothing else of this module: not in `sys.argv`, the
path, `__main__` or its tracebacks.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType

INTERRUPTED = 130
"""The exit status that a shell reports for a program that Ctrl-C ended."""


def main() -> None:
    from baton_shim.base.blocks import RUNTIME, OnGpuMachine
    from baton_shim.base.launch import end_with_parent
    from baton_shim.virtual import SWITCH

    RUNTIME.kernel = OnGpuMachine()
    end_with_parent("SIGKILL")
    sys.argv = sys.argv[1:]
    script = os.path.abspath(sys.argv[0])
    sys.path.insert(0, os.path.dirname(script))  # `-P` omitted it
    SWITCH.begin(session=True)
    try:
        code = read(script)
    except SyntaxError as error:
        show(error, None)
        sys.exit(1)
    run(code, script)


def read(script: str) -> CodeType:
    with open(script, "rb") as file:
        source = file.read()
    return compile(source, script, "exec", dont_inherit=True)


def run(code: CodeType, script: str) -> None:
    """Runs the code in `__main__`, where pickles look for the script's classes."""
    namespace = sys.modules["__main__"].__dict__
    own = {"__name__", "__builtins__", "__doc__", "__loader__", "__package__"}
    for name in set(namespace) - own:
        del namespace[name]
    namespace.update(__file__=script, __spec__=None, __cached__=None, __doc__=None, __package__=None)
    try:
        exec(code, namespace)
    except SystemExit:
        raise
    except BaseException as error:
        show(error, error.__traceback__ and error.__traceback__.tb_next)
        sys.exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)


def show(error: BaseException, trace: TracebackType | None) -> None:
    """Shows an error as Python does, with only the script's own frames."""
    sys.excepthook(type(error), error.with_traceback(trace), trace)


if __name__ == "__main__":
    from baton_shim.session.programs import script_start

    # The imported module, because names of this copy would be the script's.
    script_start.main()
