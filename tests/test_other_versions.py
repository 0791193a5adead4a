"""If IPython or ipykernel have moved what Baton attaches to, the kernel starts, and reports what is missing.

A version that has moved something is simulated with the installed one, before anything else runs in its process: an
attribute cannot be set, or a name is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Kernel

FIX = """
def get(self, value={owner}.{name}):
    return value.__get__(self, type(self))
{owner}.{name} = property(get)
"""
DELETE = "del {owner}.{name}"
SHELL, KERNEL = "IPython.core.interactiveshell.InteractiveShell", "ipykernel.kernelbase.Kernel"

MOVED = {
    "the session's send": (FIX, "jupyter_client.session.Session", "send", "an interrupt between two cells"),
    "the shell's run_code": (FIX, SHELL, "run_code", "an interrupt between two cells"),
    "the hook before a request": (FIX, KERNEL, "pre_handler_hook", "an interrupt between two cells"),
    "tracebacks": (FIX, SHELL, "showtraceback", "errors of %%gpu cells show the wrong lines"),
    "custom handlers": (FIX, SHELL, "set_custom_exc", "handlers of set_custom_exc"),
    "the debugger": (FIX, SHELL, "debugger", "%debug shows the wrong lines"),
    "matchers": (DELETE, "IPython.core.completer", "context_matcher", "Tab offers no options of %%gpu"),
    "the format of values": (FIX, "IPython.core.formatters.DisplayFormatter", "format", "%%gpu cells do not run"),
}


@pytest.mark.parametrize("what", MOVED)
def test_a_kernel_does_without(new_kernel: Callable[..., Kernel], tmp_path: Path, what: str) -> None:
    how, owner, name, without = MOVED[what]
    module = owner if how is DELETE else owner.rpartition(".")[0]
    (tmp_path / "sitecustomize.py").write_text(f"import {module}\n" + how.format(owner=owner, name=name))
    kernel = new_kernel(PYTHONPATH=str(tmp_path))

    first = kernel.run("x = 1 + 1\nx").ok()
    assert first.value == "2"
    assert first.stderr.startswith("warning: Baton is not compatible with the installed IPython ")
    assert without in first.stderr
    assert first.stderr.count(" (AttributeError: ") + first.stderr.count(" (ImportError: ") == 1
    assert kernel.run("x").ok().outputs == [("execute_result", "2")]
    assert kernel.run("1 / 0").error[0] == "ZeroDivisionError"

    endless = kernel.begin("print('begun')\nwhile True:\n    pass")
    endless.wait_for_text("begun")
    kernel.interrupt()
    assert endless.finish().error[0] == "KeyboardInterrupt"
    assert kernel.run("x").ok().value == "2"

    cell = kernel.gpu("x = x + 1\nx")
    if without == "%%gpu cells do not run":
        assert "Baton is not compatible with the installed" in cell.stderr
        assert kernel.run("x").ok().value == "2"
    else:
        assert cell.ok().value == "3"
