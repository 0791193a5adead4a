"""The text of `%gpu_status`: the session, what it holds, and what the last cell transferred.

In: what `Home` knows. Out: text. It needs no answer from elsewhere, so it works even if the GPU machine is unreachable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home
    from baton_shim.state import Snapshot

MOST_NAMES = 10


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


@dataclass
class TransferStats:
    """What the last `%%gpu` cell sent and returned."""

    reasons: dict[str, str] = field(default_factory=dict)
    """The names that were sent, and why."""
    objects_there: int = 0
    new_memory: int = 0
    known_memory: int = 0
    names_home: list[str] = field(default_factory=list)
    objects_home: int = 0
    memory_home: int = 0

    def left(self, snapshot: Snapshot, names: Iterable[str], known: set[str], keep: Iterable[str]) -> None:
        again = "the session had it; only the changes were sent"
        self.reasons = {name: again if name in known else "new to the session" for name in names}
        self.reasons.update((name, "--keep") for name in keep if name in self.reasons and name not in known)
        self.objects_there = len(snapshot.stream)
        self.new_memory = sum(segment.bytes for segment in snapshot.segments if segment.fresh)
        self.known_memory = sum(segment.bytes for segment in snapshot.segments if not segment.fresh)

    def supplied(self, snapshot: Snapshot, names: Iterable[str], known: set[str]) -> None:
        self.reasons.update((name, "the cell looked it up while it ran") for name in names)
        self.objects_there += len(snapshot.stream)
        self.new_memory += sum(segment.bytes for segment in snapshot.segments if segment.fresh)
        self.known_memory += sum(segment.bytes for segment in snapshot.segments if not segment.fresh)

    def returned(self, delta: dict[str, Any], names: list[str]) -> None:
        self.names_home = names
        self.objects_home = delta["stream"]["bytes"]
        self.memory_home = sum(patch["source"]["bytes"] for part in delta["segments"] for patch in part["patches"])


def text(home: Home) -> str:
    return "\n".join([*job(home), *session(home), *both(home), *transfer(home)])


def job(home: Home) -> list[str]:
    """The last cell's job, by which course staff find it, and what it left of the budget."""
    if home.last_job is None:
        return []
    number, digits, worker = home.last_job
    lines = [f"Last cell: In[{number}], job {digits}, {f'on {worker}' if worker else 'never started'}"]
    return [*lines, f"GPU time after it: {home.gpu_time}"] if home.gpu_time else lines


def both(home: Home) -> list[str]:
    cells = ", ".join(f"In[{cell.number}]" for cell in home.modules.both.cells)
    return [f"Cells under %%both, which each new session runs again: {cells}"] if cells else []


def session(home: Home) -> list[str]:
    if not home.warm:
        return ["Session: none; the next %%gpu cell starts one from the notebook's variables", *missing(home)]
    held = home.table.memory_bytes()
    process = f"process {home.where[1]} on {home.where[0]}" if home.where else "on its way"
    lines = [f"Session: warm, {process}, {home.cells} cells so far", f"It holds {size(held)} of your arrays and tables"]
    return lines + missing(home)


def missing(home: Home) -> list[str]:
    if not home.deferred.due:
        return list(home.deferred.loss)
    what = f"{size(home.deferred.bytes())} of the results of {home.deferred.cells()}"
    return [f"Not here yet: {what}. The next ordinary cell waits for them"]


def transfer(home: Home) -> list[str]:
    last = home.transfer_stats
    if last is None:
        return ["No %%gpu cell has run yet"]
    there = f"Last cell, to the session: {size(last.objects_there)} of objects, {size(last.new_memory)} of new memory"
    if last.known_memory:
        there += f", the changed parts of {size(last.known_memory)}"
    lines = [there]
    weights = {name: weight(home.namespace.get(name)) for name in last.reasons}
    ordered = sorted(last.reasons, key=lambda name: (-weights[name], name))
    lines += [f"  {name} ({size(weights[name])}): {last.reasons[name]}" for name in ordered[:MOST_NAMES]]
    if len(ordered) > MOST_NAMES:
        lines.append(f"  and {len(ordered) - MOST_NAMES} more names")
    lines.append(
        f"Last cell, to the notebook: {size(last.objects_home)} of objects, {size(last.memory_home)} of changed memory"
    )
    return lines


def weight(value: Any) -> int:
    """The bytes of one value's own memory, if they are quickly known."""
    try:
        if isinstance(value, (bytes, bytearray, str)):
            return len(value)
        usage = getattr(value, "memory_usage", None)
        if callable(usage):
            used = usage()
            return int(used.sum() if hasattr(used, "sum") else used)
        parameters = getattr(value, "parameters", None)
        if callable(parameters):
            return sum(int(parameter.nbytes) for parameter in parameters())
        return int(getattr(value, "nbytes", 0))
    except Exception:  # a student's class that has such an attribute
        return 0


def size(count: int) -> str:
    number, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.0f} {units[0]}" if units[0] == "B" or number >= 100 else f"{number:.1f} {units[0]}"
