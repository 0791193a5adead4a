"""Requests of the notebook to the broker between its cells: about saved states, and about jobs of earlier kernels.

**Invariant:** an interrupt ends the wait, and its message says whether the request was carried out.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.base.interrupts import Interrupts
from baton_shim.base.link import LinkClosed, Message
from baton_shim.notebook import outputs
from baton_shim.notebook.call import proxy_gone
from baton_shim.state import errors
from baton_shim.state.errors import GpuServiceError

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home
    from baton_shim.state import Table

TICK_SECONDS = 1.0
GIVE_UP_SECONDS = 10.0
"""How long to wait for a proxy that does not answer an interrupt."""
SAID_AFTER_SECONDS = 2.0
CHANGING = {"save_state": "%gpu_states", "delete_state": "%gpu_states", "discard_job": "%gpu_jobs"}
"""Requests that change something at the broker, and the magic that shows whether they did."""
FOLLOWING = "attach"
"""The request that shows output while it waits."""


def ask(home: Home, what: str, request: str, *, table: Table | None = None, **body: Any) -> Message:
    """Sends the message `request` with this body, and returns the answer.

    `what`: the name of the request in messages, such as the magic. `table`: its memory is kept until the proxy has read
    it. The message of a KeyboardInterrupt says whether the request was carried out. After a GpuServiceError it was not.
    """
    with home.between_cells() as free:
        if not free:
            raise UsageError("A %%gpu cell is running\nhint: try again when it has ended")
        try:
            with Interrupts() as interrupts:
                home.calls += 1
                call = home.calls
                if table is not None:
                    home.unreleased[call] = [table]
                home.link.send(request, call=call, **body)
                message = _answer(home, call, what, request, interrupts)
        except LinkClosed:
            raise proxy_gone() from None
    if message is None:
        raise _interrupted(what, request, uncertain=request in CHANGING)
    if message.name == "state_failed":
        error = message.body["error"]
        if error is None or error["name"] == "KeyboardInterrupt":
            raise _interrupted(what, request, uncertain=error is not None)
        raise GpuServiceError(error["value"], error["hint"])
    if interrupts.count and request in CHANGING:
        raise stopped_after(what)
    return message


def _answer(home: Home, call: int, what: str, request: str, interrupts: Interrupts) -> Message | None:
    began, said, give_up_at = time.monotonic(), request == FOLLOWING, None
    while True:
        if interrupts.count and give_up_at is None:
            home.link.send("cancel", call=call)
            give_up_at = time.monotonic() + GIVE_UP_SECONDS
        if give_up_at is not None and time.monotonic() > give_up_at:
            return None
        message = home.link.receive(interrupts, TICK_SECONDS)
        if message is None:
            if not said and time.monotonic() - began > SAID_AFTER_SECONDS:
                said = True
                sys.stderr.write(f"{what} ...\n")
                sys.stderr.flush()
        elif message.body.get("call") != call or message.name == "released":
            home.overdue(message)
        elif message.name == "publish":
            outputs.publish(home.shell, message.body["output"])
        else:
            home.unreleased.pop(call, None)
            return message


def _interrupted(what: str, request: str, *, uncertain: bool) -> BaseException:
    if request == FOLLOWING:
        return _stopped(f"{what}: interrupted. Your variables are as they were, and %gpu_jobs still lists the job")
    if uncertain:
        return _stopped(
            f"{what}: interrupted. Your variables are as they were. The broker was asked already and has not "
            f"answered: {CHANGING[request]} shows whether it was done"
        )
    return stopped_before(what)


def stopped_before(what: str) -> BaseException:
    """The KeyboardInterrupt of a request that was not made."""
    return _stopped(f"{what}: interrupted. Your variables and saved states are as they were")


def stopped_after(what: str) -> BaseException:
    """The KeyboardInterrupt of a request that has been carried out."""
    return _stopped(f"{what}: interrupted, but it was already done")


def _stopped(text: str) -> BaseException:
    return errors.with_lines(KeyboardInterrupt(text), [f"KeyboardInterrupt: {text}"])
