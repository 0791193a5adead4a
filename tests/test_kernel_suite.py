"""The foreign suite `jupyter_kernel_test`, whole, against this kernel and against plain ipykernel: the same result.

Plain ipykernel is not asked for its welcome: where it starts while the client connects, "starting" may come first.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jupyter_kernel_test
import pytest


class Samples:
    """What the suite asks of a Python kernel: the samples of ipykernel's own use of it."""

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
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    support_iopub_welcome = True


class TestPlain(Samples, jupyter_kernel_test.KernelTests):
    kernel_name = "python3"


class TestShared(Samples, jupyter_kernel_test.KernelTests):
    kernel_name = "baton"


class TestSharedWelcome(Samples, jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = "baton"


@pytest.mark.parametrize("suite", [TestShared, TestSharedWelcome])
def test_the_suite_has_no_part_without_samples(suite: type) -> None:
    """A test of the suite without a sample would be skipped, not passed."""
    settings = [name for name in dir(jupyter_kernel_test.KernelTests) if name.startswith(("code_", "language_"))]
    assert all(getattr(suite, name) for name in settings)
