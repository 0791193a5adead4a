"""The foreign suite `jupyter_kernel_test` against this kernel and against plain ipykernel: the same result.

Plain ipykernel is not tested for its welcome: if it starts while the client connects, "starting" may arrive first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import jupyter_kernel_test
import pytest
from jupyter_kernel_test.msgspec_v5 import validate_message

PATIENCE_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def _history_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The suite counts the entries of the history, which must not include other tests' cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        yield


def get_message(get: Callable[..., dict[str, Any]], timeout: float | None = None) -> dict[str, Any]:
    """The next message of a channel, however soon the suite wants it."""
    return get(timeout=PATIENCE_SECONDS)


class Samples:
    """What the suite needs to know about a Python kernel: the samples that ipykernel uses for it."""

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar[list[dict[str, Any]]] = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar[list[str]] = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar[list[str]] = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar[list[str]] = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result: ClassVar[list[dict[str, str]]] = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data: ClassVar[list[dict[str, str]]] = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    # Not "range": the suite expects the session's number there, and IPython numbers the running session 0.
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls: Any) -> None:
        """The suite waits for parts of a second, which a busy machine may need between two messages."""
        super().setUpClass()
        for channel in (cls.kc.shell_channel, cls.kc.iopub_channel):
            channel.get_msg = partial(get_message, channel.get_msg)

    def flush_channels(self: Any) -> None:
        """All messages about earlier requests come before the end of a new one."""
        last = self.kc.kernel_info()
        for channel, ends in ((self.kc.shell_channel, "kernel_info_reply"), (self.kc.iopub_channel, "idle")):
            word, parent = "", ""
            while (word, parent) != (ends, last):
                message = channel.get_msg()
                validate_message(message)
                word = message["content"].get("execution_state") or message["msg_type"]
                parent = message["parent_header"].get("msg_id", "")

    def test_range_of_history(self: Any) -> None:
        """Replaces the suite's own test."""
        code = "'in a range'"
        asked = {"raw": True, "output": False}
        tail = self.history_helper([code], hist_access_type="tail", n=1, **asked)
        number = tail["content"]["history"][0][1]
        reply = self.history_helper([], hist_access_type="range", session=0, start=number, stop=number + 1, **asked)
        assert reply["content"]["history"] == [[0, number, code]]


class TestPlain(Samples, jupyter_kernel_test.KernelTests):
    kernel_name = "python3"


class TestShared(Samples, jupyter_kernel_test.KernelTests):
    kernel_name = "baton"


class TestSharedWelcome(jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = "baton"
    support_iopub_welcome = True


def test_the_suite_has_no_part_without_samples() -> None:
    """A test of the suite without a sample would be skipped, not passed."""
    settings = vars(jupyter_kernel_test.KernelTests).items()
    samples = [name for name, value in settings if value in ("", [], ()) and not name.startswith("_")]
    assert "completion_samples" in samples
    assert all(getattr(TestShared, name) for name in samples)
