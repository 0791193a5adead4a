"""What a cell returns besides its changes: value, exception, payloads, its source.

**Invariant:** runs after the changes have been applied; nothing here may undo them or make them fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from baton_shim.base.closure import Uses
from baton_shim.base.wire import CLEARS_RESULTS
from baton_shim.state import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_shim.notebook.cell import NotebookCell
    from baton_shim.notebook.home import Home

Result = tuple[Any, dict[str, Any], dict[str, Any]]


class Returned(NamedTuple):
    """What a cell returned besides its changes."""

    result: Result | None
    error: bytes | None
    raised: Any
    """The error object itself, if it could be sent."""
    ended: tuple[int, Any] | None
    """For a block: how it ended, and the value of its `return`."""

    @property
    def value(self) -> Any:
        """The value of the cell's last line, or what the call returned."""
        if self.ended is not None:
            return self.ended[1]
        return self.result[0] if self.result is not None else None

    @property
    def shown(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The value as the session formatted it."""
        return self.result[1:] if self.result is not None else None


def take_extra(home: Home, cell: NotebookCell, extra: dict[str, Any]) -> Returned:
    """Records what the session sent in `extra`. Raises GpuServiceError if the session could not send the changes."""
    home.displays_after += extra["displays_after"]
    if "lost" in extra:
        home.void()
        raise errors.GpuServiceError(
            f"The cell ran, but its changes could not be sent from the GPU machine ({extra['lost']})"
        )
    home.shared |= set(extra["names"])
    home.cells += 1
    home.where = extra["where"]
    home.background_uses = Uses(extra["background_names"])
    if cell.block is None:
        for value in extra["earlier"]:
            home.shell.displayhook.update_user_ns(value)
        remember_source(home.shell, extra["file"], cell.number, cell.code, cell.transform)
    for payload in extra["payload"]:
        if payload.get("source") == CLEARS_RESULTS:
            if home.shell.displayhook.do_full_cache:
                home.shell.displayhook.flush()
        elif payload.get("source") != "ask_exit":
            home.shell.payload_manager.write_payload(payload)
    ended = (extra["ended"], extra["returned"]) if cell.block is not None else None
    return Returned(result_of(extra), extra["error"], extra["raised"], ended)


def result_of(extra: dict[str, Any]) -> Result | None:
    """A value that is kept remote becomes a stand-in; in the session's next cells it is the value again."""
    if extra["bundle"] is None:
        return None
    data, metadata = extra["bundle"]
    return extra["value"], data, metadata


def exception_of(outcome: str, error: dict[str, Any] | None, returned: Returned | None, home: Home) -> BaseException:
    """The exception that the cell raised, with the session's traceback."""
    if outcome == "timed_out" and error is not None:
        return errors.with_lines(errors.stand_in(error["name"], error["value"], TimeoutError), error["traceback"])
    if outcome == "cancelled" or error is None:
        lines = error["traceback"] if error else []
        interrupted = KeyboardInterrupt(error["value"]) if error and error["value"] else KeyboardInterrupt()
        if returned is not None and returned.error is not None:
            found = errors.rebuild(returned.error, "KeyboardInterrupt", "", home.namespace)
            interrupted.__traceback__ = found.__traceback__
        return errors.with_lines(interrupted, lines or ["KeyboardInterrupt"])
    raised, description = (returned.raised, returned.error) if returned else (None, None)
    if not isinstance(raised, BaseException):
        raised = errors.rebuild(description or b"", error["name"], error["value"], home.namespace)
    return errors.with_lines(raised, error["traceback"])


def remember_source(shell: Any, file_name: str, number: int, source: str, transform: Callable[[str], str]) -> None:
    """Lets tracebacks and `inspect` show the source of functions that the cell defined."""
    import linecache

    lines = [line + "\n" for line in transform(source).splitlines()]
    linecache.cache[file_name] = (len(source), None, lines, file_name)
    numbers: dict[str, int] | None = getattr(shell.compile, "_filename_map", None)
    if numbers is not None:
        numbers[file_name] = number
