"""Interrupts that arrive while Baton changes the notebook: it completes the change, and only then is the cell stopped."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from baton_shim.base import interrupts
from baton_shim.base.interrupts import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Baton, Cell

HOOKS = """
import select, signal
from baton_shim.notebook.background import Background
from baton_shim.notebook.deferred import Deferred
from baton_shim.notebook.saved_states import SavedStates
from baton_shim.notebook.undo import UndoLog
from baton_shim.state import Table

# The next call of this method is interrupted before it does anything.
def strike_in(owner, name):
    real = getattr(owner, name)
    def strikes(*arguments, **options):
        setattr(owner, name, real)
        signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)
    setattr(owner, name, strikes)

# A `%%gpu` cell prints "waits", and waits until deferred state has arrived, but does not handle it.
def wait_for_deferred_in_gpu_cell():
    real = Deferred.poll
    def poll(deferred, *, in_cell=True):
        if in_cell and deferred.due:
            print("waits", flush=True)
            assert select.select([deferred._home.link], [], [], 100)[0]
        real(deferred, in_cell=in_cell)
    Deferred.poll = poll

# An ordinary cell prints "waits" when it begins to wait for deferred state.
def wait_for_deferred_in_cell():
    real = Deferred._wait
    def wait(deferred, interrupts):
        print("waits", flush=True)
        real(deferred, interrupts)
    Deferred._wait = wait

# This method, if it is that of an ordinary cell, prints "waits", and waits until the background cell has ended.
def wait_for_background_in(name):
    real = getattr(Background, name)
    def waits(background, *arguments):
        if name == "before" or background._code_runs:
            background._code_runs = True
            print("waits", flush=True)
            while not background.is_empty and background._cells[0].end is None:
                assert background.takes(background._home.link.receive(timeout=100))
        return real(background, *arguments)
    setattr(Background, name, waits)

# The broker saves each state at once.
def answer_save():
    from baton_shim.base.link import Message
    from baton_shim.notebook import saved_states
    saved_states.ask = lambda *arguments, **body: Message("state_saved", {"saved": {"bytes": 1}}, None)
"""


def hook(baton: Baton, code: str) -> None:
    """Not as code of the notebook, whose names Baton would follow."""
    assert baton.run(f"exec({HOOKS + code!r}, {{}})").reply["status"] == "ok"


def test_a_second_interrupt_at_the_end_of_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """`signal.signal` runs the old handler for a signal that has arrived, and then does not replace it."""
    set_handler = interrupts.set_handler

    def interrupt_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(interrupts, "set_handler", set_handler_later)

    def set_handler_later(*arguments: Any) -> Any:
        monkeypatch.setattr(interrupts, "set_handler", set_handler)
        signal.raise_signal(signal.SIGINT)
        return set_handler(*arguments)

    with Interrupts() as held:
        with pytest.raises(KeyboardInterrupt), held.raising_the_second():
            interrupt_twice()
        assert signal.getsignal(signal.SIGINT) == held._handle
        assert held.count == 2


def wait_for(descriptor: int) -> bool:
    """Something that never happens."""
    select.select([descriptor], [], [])
    return False


def happens_too_late(descriptor: int) -> bool:
    """The call has just ended."""
    return not wait_for(descriptor)


def test_a_call_that_another_thread_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as held:
        for _ in range(20):
            assert held.raising_until(wait_for, lambda: "answer") == "answer"
            with pytest.raises(KeyboardInterrupt):
                held.raising_until(lambda descriptor: True, lambda: time.sleep(100))
            assert held.raising_until(happens_too_late, lambda: "answer") == "answer"
        assert held.count == 0
        with pytest.raises(KeyboardInterrupt):
            held.raising_until(wait_for, lambda: signal.raise_signal(signal.SIGINT))
        assert held.count == 1
        assert signal.getsignal(signal.SIGINT) == held._handle
    assert signal.getsignal(signal.SIGINT) == before


def test_a_call_that_another_thread_ends_where_interrupts_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupts, "also_ignored", False)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as held:
            assert held.raising_until(wait_for, lambda: signal.raise_signal(signal.SIGINT)) is None
            with pytest.raises(KeyboardInterrupt):
                held.raising_until(lambda descriptor: True, lambda: time.sleep(100))
            assert held.count == 0
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def when_it_asks(baton: Baton, happens: Callable[[], object]) -> Callable[[], bool]:
    """Does this once a cell asks. It is never answered."""

    def look() -> bool:
        if baton.notebook.client.stdin_channel.msg_ready():
            baton.notebook.client.get_stdin_msg(timeout=100)
            happens()
        return False

    return look


def test_a_question_ends_with_its_session(baton: Baton) -> None:
    baton.run("rows = [1]")
    asks = "%%gpu\nrows.append(2); rows.append(input('Name? '))"
    cell = baton.run(asks, [], interrupt_when=when_it_asks(baton, baton.lose_session))
    assert cell.error == "GpuServiceError: The session died"
    baton.notebook.client.input("too late")
    assert baton.run("%%gpu\nrows.append(input()); rows", ["in time"]).result == "[1, 'in time']"


def test_a_question_ends_with_its_cell(baton: Baton) -> None:
    """As at a time limit, whose signal only the session gets."""

    def strike() -> None:
        assert baton.session is not None
        os.kill(baton.session.pid, signal.SIGINT)

    caught = "%%gpu\ntry: input('first? ')\nexcept KeyboardInterrupt: name = "
    cell = baton.run(f"{caught}1", [], interrupt_when=when_it_asks(baton, strike))
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("name") == "1"
    questions: list[str] = []

    def strike_the_first() -> None:
        questions.append("asked")
        if len(questions) == 1:
            strike()
        else:
            baton.notebook.client.input("in time")

    cell = baton.run(f"{caught}input('second? ')", [], interrupt_when=when_it_asks(baton, strike_the_first))
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("name") == "'in time'"
    baton.run("other = 'looked up'")
    cell = baton.run(f"{caught}eval('other')", [], interrupt_when=when_it_asks(baton, strike))
    assert cell.reply["status"] == "ok", cell.traceback
    assert baton.value("name") == "'looked up'"


def test_a_question_ends_with_the_proxy(baton: Baton) -> None:
    def end_proxy() -> None:
        assert baton.home.stream is not None
        baton.home.stream.shutdown(socket.SHUT_RDWR)

    cell = baton.run("%%gpu\ninput()", [], interrupt_when=when_it_asks(baton, end_proxy))
    assert "Baton's proxy, which connects this kernel with the GPU machines, has ended" in cell.error


def test_a_question_that_is_interrupted(baton: Baton) -> None:
    baton.run("rows = [1]")
    asks = "%%gpu\nrows.append(2); rows.append(input('Name? '))"
    cell = baton.run(asks, [], interrupt_when=when_it_asks(baton, baton.interrupt))
    assert cell.error.startswith("KeyboardInterrupt")
    assert baton.value("rows") == "[1, 2]"


def run_until(baton: Baton, event: threading.Event, code: str) -> Cell:
    """Runs a cell, and sets the event when the cell waits."""

    def set_when_it_waits() -> bool:
        if any(kind == "stream" for kind, _ in baton.seen):
            event.set()
        return False

    return baton.run(code, interrupt_when=set_when_it_waits)


@pytest.mark.parametrize("place", ["Table, 'complete'", "UndoLog, 'deferred_arrived'"])
def test_while_deferred_state_is_applied_for_a_gpu_cell(baton_away: Baton, place: str) -> None:
    baton = baton_away
    hook(baton, f"wait_for_deferred_in_gpu_cell(); strike_in({place})")
    baton.run("import numpy as np; x = np.zeros(1000)")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1")
    assert run_until(baton, baton.follow, "%%gpu\nx += 1").error.startswith("KeyboardInterrupt")
    assert baton.followed_up.wait(100)
    assert baton.run("float(x.sum())").result == "1000.0"
    assert baton.run("%%gpu\nx += 1\nfloat(x.sum())").result == "2000.0"
    assert baton.calls[-1]["state"]["messages"] > 0


def test_while_an_ordinary_cell_waits_for_deferred_state(baton_away: Baton) -> None:
    baton = baton_away
    hook(baton, "wait_for_deferred_in_cell(); strike_in(Table, 'complete')")
    baton.run("import numpy as np; x = np.zeros(1000); ran = False")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1")
    assert run_until(baton, baton.follow, "ran = True").error.startswith("KeyboardInterrupt")
    assert baton.run("float(x.sum()), ran").result == "(1000.0, False)"


@pytest.mark.parametrize("place", ["Table, 'roll_back'", "UndoLog, 'deferred_lost'"])
def test_while_deferred_state_is_given_up(baton_away: Baton, place: str) -> None:
    baton = baton_away
    hook(baton, f"strike_in({place})")
    baton.run("import numpy as np; x = np.zeros(1000); rows = [1]")
    baton.follow.clear()
    baton.run("%%gpu\nx += 1; rows.append(2)")
    assert baton.run("%gpu_reset --lose").error.startswith("KeyboardInterrupt")
    cell = baton.run("float(x.sum()), rows")
    assert cell.result == "(0.0, [1])"
    assert cell.text("stderr").startswith("warning: The results of In[3] are lost: They were given up")
    assert baton.run("%%gpu\nfloat(x.sum()), rows").result == "(0.0, [1])"


@pytest.mark.parametrize("place", ["Table, 'roll_back'", "UndoLog, 'table_ends'"])
def test_while_a_cell_is_undone(baton: Baton, place: str) -> None:
    hook(baton, f"strike_in({place})")
    baton.run("rows = [1]; text = 'old'")
    baton.run("%%gpu\nrows.append(2); text = 'new'\n'value'")
    cell = baton.run("%gpu_undo")
    assert cell.text().startswith("Undone: In[3]. rows, text are as before. ")
    assert cell.error.startswith("KeyboardInterrupt")
    assert baton.value("rows, text, Out") == "([1], 'old', {})"
    assert baton.run("%gpu_undo --list").text() == "Nothing to undo\n"
    assert baton.run("%%gpu\nrows, text").result == "([1], 'old')"


def end_of_background_cell(baton: Baton, hooks: str) -> threading.Event:
    """Runs a background cell that ends when the event is set."""
    hook(baton, hooks)
    baton.run("rows = [1]; ran = False")
    end = threading.Event()
    baton.before_finish = end.wait
    assert baton.run("%%gpu --background job\nrows.append(2)").reply["status"] == "ok"
    return end


@pytest.mark.parametrize("place", ["Background, '_finish'", "Table, 'apply'"])
def test_while_a_background_cell_ends_after_a_cell(baton: Baton, place: str) -> None:
    end = end_of_background_cell(baton, f"wait_for_background_in('_code_ended'); strike_in({place})")

    cell = run_until(baton, end, "ran = True")
    assert cell.reply["status"] == "ok", cell.traceback
    assert cell.text("stderr") == ""
    assert baton.value("rows, job.status, ran") == "([1, 2], 'done', True)"


@pytest.mark.parametrize("place", ["Background, '_finish'", "Table, 'apply'"])
def test_while_a_background_cell_ends_before_a_cell(baton: Baton, place: str) -> None:
    end = end_of_background_cell(baton, f"wait_for_background_in('before'); strike_in({place})")
    assert run_until(baton, end, "ran = True").error.startswith("KeyboardInterrupt")
    assert baton.value("rows, job.status, ran") == "([1, 2], 'done', False)"


def test_an_interrupt_while_a_state_is_packed_says_that_nothing_was_saved(baton: Baton) -> None:
    hook(baton, "strike_in(SavedStates, '_whole')")
    cell = baton.run("x = 1\n%gpu_save one")
    assert (
        cell.traceback == "KeyboardInterrupt: Saving one: interrupted. Your variables and saved states are as they were"
    )


def test_an_interrupt_after_a_state_was_saved_says_so(baton: Baton) -> None:
    hook(baton, "answer_save(); strike_in(SavedStates, '_report')")
    cell = baton.run("x = 1\n%gpu_save one x")
    assert cell.traceback == "KeyboardInterrupt: Saving x: interrupted, but it was already done"


def test_a_cell_that_waits_looks_only_once_at_what_it_reaches(baton: Baton) -> None:
    """Not again for each message, and not at all if its names tell that it has to wait."""
    hook(
        baton,
        "def counted(*arguments, real=Background._footprint): Background.looks += 1; return real(*arguments)\n"
        "Background._footprint, Background.looks = counted, 0",
    )
    looks = "__import__('baton_shim').notebook.background.Background.looks"
    baton.run("rows = [1]; alias = [rows]")

    def looks_in(code: str) -> int:
        end = threading.Event()
        baton.before_finish = end.wait
        assert baton.run("%%gpu --background job\nrows.append(len(rows))").reply["status"] == "ok"
        before = int(baton.value(looks))

        def send_and_end_when_it_waits() -> bool:
            if not end.is_set() and any(kind == "stream" for kind, _ in baton.seen):
                for _ in range(20):
                    baton.home.send("released", {"call": 0})
                end.set()
            return False

        assert baton.run(code, interrupt_when=send_and_end_when_it_waits).reply["status"] == "ok"
        baton.before_finish = lambda: None
        return int(baton.value(looks)) - before

    assert looks_in("alias[0].append(5)") == 1
    assert looks_in("rows = [5]") == 0
    assert baton.value("alias, rows") == "([[1, 1, 5, 3]], [5])"
