"""Log records of `%%gpu` cells in the notebook's log files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Baton

FILE_HANDLERS = {
    "basicConfig": ("logging.basicConfig(filename=path, level=logging.INFO)", "logging"),
    "basicConfig of a stream": ("logging.basicConfig(stream=open(path, 'w', buffering=1), level='INFO')", "logging"),
    "named logger": ("log = logging.getLogger('course'); log.addHandler(logging.FileHandler(path, delay=True))", "log"),
    "logger without a variable": (
        "logging.getLogger('course').addHandler(logging.FileHandler(path))\n"
        "logging.getLogger('course').propagate = False",
        "logging.getLogger('course.part')",
    ),
    "rotating": (
        "import logging.handlers\nlog = logging.getLogger('course')\n"
        "log.addHandler(logging.handlers.RotatingFileHandler(path, 'w'))",
        "log",
    ),
}


@pytest.mark.parametrize("case", FILE_HANDLERS)
def test_log_files_get_the_records_of_cells(baton: Baton, tmp_path: Path, case: str) -> None:
    make, log = FILE_HANDLERS[case]
    written = []
    for number, magic in enumerate(("", "%%gpu\n")):
        path = tmp_path / f"{number}.log"
        handlers = "[len(one.handlers) for one in (logging.root, logging.getLogger('course'))]"
        baton.run(f"import logging, itertools\npath = {str(path)!r}\n{make}\n{log}.warning('one')")
        cells = [
            baton.run(f"{magic}{log}.warning('two %s', [1]); {log}.error('three')\n{handlers}"),
            baton.run(f"{log}.warning('four')\n{handlers}"),
            baton.run(f"{magic}try: 1 / 0\nexcept ZeroDivisionError: {log}.exception('five')\nraise KeyError"),
            baton.run(f"{magic}{log}.info('%s', {{'six': 6}}, extra={{'step': 6.0}})\n{handlers}"),
        ]
        lines = [line for line in path.read_text().splitlines() if not line.startswith(" ")]
        written.append((lines, [(cell.result, cell.text(), cell.text("stderr")) for cell in cells]))
        baton.run("logging.root.handlers.clear(); logging.getLogger('course').handlers.clear()")
    assert written[1] == written[0]
    assert len(written[0][0]) > 5


def test_a_cell_removes_the_handler_of_a_log_file(baton: Baton, tmp_path: Path) -> None:
    baton.run(
        f"import logging\nlogging.basicConfig(filename={str(tmp_path / 'log')!r}); log = logging.getLogger('course')"
    )
    baton.run(f"log.addHandler(logging.FileHandler({str(tmp_path / 'other')!r}))")
    look = "[len(one.handlers) for one in (logging.root, log)]"
    assert baton.run(f"%%gpu\nlog.warning('both'); logging.root.handlers.clear()\n{look}").result == "[0, 1]"
    assert baton.run(f"log.warning('other')\n{look}").result == "[0, 1]"
    assert baton.run(f"%%gpu\nlog.warning('more')\n{look}").result == "[0, 1]"
    assert (tmp_path / "log").read_text() == "WARNING:course:both\n"
    assert (tmp_path / "other").read_text() == "both\nother\nmore\n"


def test_a_log_file_gets_plain_values_and_what_a_filter_lets_through(baton: Baton, tmp_path: Path) -> None:
    baton.run(
        "import logging, numpy as np\n"
        f"file = logging.FileHandler({str(tmp_path / 'log')!r}); log = logging.getLogger('course')\n"
        "file.setFormatter(logging.Formatter('%(step)d %(loss).2f %(message)s')); log.addHandler(file)\n"
        "file.addFilter(lambda record: record.step != 2); file.setLevel('ERROR')"
    )
    record = "log.error('a', extra={'step': np.int64(%d), 'loss': np.float32(0.25), 'more': [log]})"
    baton.run(f"%%gpu\n{record % 1}; {record % 2}; {record % 3}; log.warning('b')")
    baton.run("file.setFormatter(logging.Formatter('%(message)s')); file.setLevel('WARNING')")
    baton.run("%%gpu\nlog.warning('c', extra={'step': 4})")
    assert (tmp_path / "log").read_text() == "1 0.25 a\n3 0.25 a\nc\n"


def test_a_log_file_says_how_many_records_of_a_long_cell_it_lacks(baton: Baton, tmp_path: Path) -> None:
    baton.run(
        f"import logging\nfile = logging.FileHandler({str(tmp_path / 'log')!r}); log = logging.getLogger('course')\n"
        "file.setFormatter(logging.Formatter('%(step)d %(message).90s')); log.addHandler(file)"
    )
    cell = baton.run(
        "%%gpu\nfor step in range(9): log.error('x' * (6 << 20), extra={'step': step})\nlog.error('end', extra={'step': 9})"
    )
    assert cell.reply["status"] == "ok", cell.traceback
    line = "Baton dropped 7 log records of %%gpu cells here: it keeps the last 16 MiB"
    assert (tmp_path / "log").read_text() == f"6 {line}\n7 {'x' * 90}\n8 {'x' * 90}\n9 end\n"
    baton.run("%%gpu\nlog.error('more', extra={'step': 10})")
    assert (tmp_path / "log").read_text().endswith("9 end\n10 more\n")


def test_a_session_that_opened_log_files_itself_sends_no_records(baton: Baton, tmp_path: Path) -> None:
    """As under `%%both`, which opens the same file in both kernels."""
    open_log = f"import logging\nlogging.basicConfig(filename={str(tmp_path / 'log')!r})"
    baton.run(f"%%gpu\n{open_log}")
    baton.run(open_log)
    for magic in ("%%gpu\n", "", "%%gpu\n"):
        assert baton.run(f"{magic}logging.warning('a'); len(logging.root.handlers)").result == "1"
    assert (tmp_path / "log").read_text() == "WARNING:root:a\n" * 3


def test_records_of_a_background_cell_count_although_the_notebook_opened_a_log_file(baton: Baton) -> None:
    baton.run("import gc, logging, os\n%gpu_status\nlogging.basicConfig(filename=os.devnull)")
    around = "next(one for one in gc.get_objects() if type(one).__name__ == 'Surroundings')"
    said = "{'log_files': 1, 'handlers': 2}"
    assert baton.value(f"{around}.without_changed_here({said})['log_files']") == "1"
