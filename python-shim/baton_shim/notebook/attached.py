"""`%gpu_attach`, and the list of what it can attach: background cells whose notebook kernel has ended.

**Invariant:** the results of such a cell are bound completely or not at all, and deleted elsewhere only after that.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from baton_shim.notebook import outputs, results
from baton_shim.notebook.asking import ask
from baton_shim.notebook.call import notify_not_applied
from baton_shim.notebook.cell import NotebookCell
from baton_shim.notebook.loading import load
from baton_shim.state.errors import GpuServiceError
from baton_shim.surroundings import warn

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

SHOWN_DIGITS = 8
OF_CELL = ("parent_header", "message_id", "kernel_session", "captured")


class EarlierJobs:
    """The background cells of this person's earlier kernels. `digits` are the last digits of a job's id."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._taken = set[bytes]()
        """Jobs that have been attached here. The broker may not know that yet."""

    def text(self) -> str:
        """One line for each job; empty if there is none."""
        return "\n".join(map(described, self._jobs()))

    def discard(self, digits: str) -> str:
        """Returns what was done. Raises UsageError."""
        job = self._job(digits)
        ask(self._home, "Discarding", "discard_job", job=job["job"])
        done = "Cancelled" if job["outcome"] is None else "Deleted"
        return f"{done} {title(job)}"

    def attach(self, digits: str) -> Any:
        """Follows the job to its end, binds its results, and returns its value. Raises its error."""
        home, job = self._home, self._job(digits)
        request = NotebookCell(home.shell, "").request()
        name = title(job)
        message = ask(home, f"Attaching {name}", "attach", job=job["job"], **{key: request[key] for key in OF_CELL})
        end, extra = message.body, None
        if end["summary"]:
            home.summarise(end["summary"], of_block=False)
        if end["delta"] is not None:
            about = end["about"]
            try:
                extra, lines = load(home, name, message, unit="%gpu_attach")
            except BaseException as error:
                notify_not_applied(home, end["call"], str(error))
                raise
            lines += [f"Not included: {one}, which {why}" for one, why in sorted(about.get("left_out", {}).items())]
            for kind, content in extra["displays"]:
                outputs.publish_past_capture(home.shell, outputs.plain(kind, content))
            print("\n".join(lines))
        home.link.send("applied", call=end["call"], error=None)
        self._taken.add(job["job"])
        if end["error"] is not None or end["outcome"] != "ok":
            if extra is None and end["outcome"] != "error":
                why = end["error"] or {"value": "It was cancelled", "hint": None}
                raise GpuServiceError(f"{name} left no variables: {why['value']}", why["hint"])
            raise results.exception_of(end["outcome"], end["error"], None, home)
        if extra is None:
            warn(f"{name} left no variables")
            return None
        return extra.get("value")

    def _jobs(self) -> list[dict[str, Any]]:
        jobs = ask(self._home, "Asking", "list_jobs").body["jobs"]
        return [job for job in jobs if job["job"] not in self._taken]

    def _job(self, digits: str) -> dict[str, Any]:
        """The job whose id ends with these digits, or the only one. Raises UsageError."""
        jobs = self._jobs()
        if not jobs:
            raise UsageError("There is no background cell of an earlier kernel\nhint: %gpu_states lists saved states")
        wanted = digits.replace("-", "")
        found = [job for job in jobs if job["job"].hex().endswith(wanted)]
        if len(found) != 1:
            which = "one of them" if found else "one of these"
            lines = "\n".join(map(described, found or jobs))
            raise UsageError(f"Add the digits of {which}:\n{lines}")
        return found[0]


def digits_of(job: dict[str, Any]) -> str:
    digits: str = job["job"].hex()
    return digits[-SHOWN_DIGITS:]


def title(job: dict[str, Any]) -> str:
    number = f"In[{job['execution_count']}]" if job["execution_count"] else "a cell"
    return f"{number} of {job['notebook']}" if job["notebook"] else f"{number} of an earlier kernel"


def described(job: dict[str, Any]) -> str:
    when = datetime.datetime.fromtimestamp(job["submitted_ms"] / 1000).astimezone()
    status = "running" if job["outcome"] is None else WORDS.get(job["outcome"], "failed")
    return f"{title(job)}, submitted {when:%Y-%m-%d %H:%M}: {status}. %gpu_attach {digits_of(job)} attaches its results"


WORDS = {"ok": "done", "cancelled": "cancelled"}
"""By outcome; all others failed."""
