"""The line magics about the session: `%gpu_status`, `%gpu_save` and others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from baton_shim.notebook.home import Home

CONFIG = re.compile(r"(status_line|virtual)=(on|off)")
JOB = re.compile(r"[0-9a-f-]+")
"""The last digits of a job, or the number of its cell."""
WORDS = {
    "gpu_config": ("status_line=on", "status_line=off", "virtual=on", "virtual=off"),
    "gpu_reset": ("--lose",),
    "gpu_undo": ("--list",),
    "gpu_save": ("--strict",),
    "gpu_states": ("--delete",),
    "gpu_jobs": ("--cancel",),
}
"""The words that may follow the line magics."""


def register(shell: Any, home: Home | None, why_not: str) -> None:
    """Adds the magics. Without a `home` they fail with `why_not`."""
    magics = LineMagics(home, why_not)
    for name in vars(LineMagics):
        if name.startswith("gpu_"):
            shell.register_magic_function(getattr(magics, name), "line", name)


class LineMagics:
    """Each method is a magic of its name; its docstring is what the student reads."""

    def __init__(self, home: Home | None, why_not: str) -> None:
        self._home = home
        self._why_not = why_not

    def _required_home(self, *, alone: bool = False) -> Home:
        """`alone`: wait until no cell runs in the background."""
        if self._home is None:
            raise UsageError(self._why_not)
        if alone:
            self._home.wait_for_background()
        return self._home

    def gpu_status(self, line: str) -> None:
        """Show which session runs this notebook's `%%gpu` cells, what it holds, and what the last cell transferred."""
        from baton_shim.notebook.status import text

        print(text(self._required_home()))

    def gpu_output(self, line: str) -> None:
        """Show the output of the last `%%gpu` cell again, or that of In[N]: `%gpu_output N`.

        For a cell whose output arrived while the notebook's page was closed.
        """
        home, number = self._required_home(), line.strip()
        if number and not number.isdecimal():
            raise UsageError(f"%gpu_output {number}: not a number\nhint: write %gpu_output 3 for what In[3] showed")
        home.show_again(int(number) if number else None)

    def gpu_reset(self, line: str) -> None:
        """Drop the session: the next `%%gpu` cell starts from the notebook's variables.

        Waits first for results that have not arrived. `--lose` gives them up: the variables are as before those cells.
        """
        home = self._required_home(alone=True)
        if line.strip() not in ("", "--lose"):
            raise UsageError(f"%gpu_reset {line.strip()}: unknown\nhint: write %gpu_reset or %gpu_reset --lose")
        if line.strip():
            home.deferred.give_up()
        home.deferred.fetch()
        home.void()
        print("The next %%gpu cell starts a new session from the notebook's variables")

    def gpu_undo(self, line: str) -> None:
        """Undo what the last `%%gpu` cell changed: variables, and settings of libraries.

        Used again, it undoes the cell before that. `--list` shows which cells can be undone. Files, packages and output
        are not undone.
        """
        home = self._required_home(alone=True)
        if line.strip() not in ("", "--list"):
            raise UsageError(f"%gpu_undo {line.strip()}: unknown\nhint: write %gpu_undo or %gpu_undo --list")
        if line.strip():
            print(home.undo_log.text())
        else:
            home.undo_log.run()

    def gpu_save(self, line: str) -> None:
        """Save the notebook's variables under a name, beyond the end of this kernel: `%gpu_save NAME`.

        With names of variables after NAME, saves only those. Variables that cannot be saved are reported and left out;
        with `--strict`, nothing is saved in that case. `%gpu_load NAME` restores them in any later kernel of yours.
        """
        words = line.split()
        strict = "--strict" in words
        name, *variables = [word for word in words if word != "--strict"] or [""]
        if not name or name.startswith("-") or any(word.startswith("-") for word in variables):
            raise UsageError(
                "%gpu_save needs a name for the state\n"
                "hint: write %gpu_save NAME, or %gpu_save NAME variable another --strict"
            )
        print(self._required_home(alone=True).saved_states.save(name, variables, strict=strict))

    def gpu_load(self, line: str) -> None:
        """Restore variables that `%gpu_save` saved: `%gpu_load NAME`, or only some: `%gpu_load NAME variable`.

        Variables of the same names are replaced. `%gpu_undo` undoes it.
        """
        name, *variables = line.split() or [""]
        if not name or any(word.startswith("-") for word in (name, *variables)):
            raise UsageError(
                "%gpu_load needs the name of a state\nhint: write %gpu_load NAME; %gpu_states lists the names"
            )
        print(self._required_home(alone=True).saved_states.load(name, variables))

    def gpu_states(self, line: str) -> None:
        """List what `%gpu_save` has saved, or delete one state: `%gpu_states --delete NAME`."""
        words = line.split()
        if words and (words[0] != "--delete" or len(words) != 2):
            raise UsageError(
                f"%gpu_states {line.strip()}: unknown\nhint: write %gpu_states or %gpu_states --delete NAME"
            )
        kept = self._required_home(alone=True).saved_states
        print(kept.delete(words[1]) if words else kept.text())

    def gpu_jobs(self, line: str) -> None:
        """List the cells that `%%gpu --background` has run, and those of your earlier kernels that continue.

        `%gpu_jobs --cancel N` cancels the cell In[N]. `%gpu_jobs --cancel 8f62a1b3` cancels a cell of an earlier kernel
        and deletes its results.
        """
        words, home = line.split(), self._required_home()
        if words and (words[0] != "--cancel" or len(words) != 2 or not JOB.fullmatch(words[1])):
            raise UsageError(
                f"%gpu_jobs {line.strip()}: unknown\nhint: write %gpu_jobs, or %gpu_jobs --cancel 3 to cancel In[3]"
            )
        background = home.background
        if words and background is not None and background.has_number(words[1]):
            print(background.cancel_number(int(words[1])))
        elif words:
            print(self._required_home(alone=True).earlier_jobs.discard(words[1]))
        else:
            own = background.text() if background is not None else ""
            earlier = home.earlier_jobs.text() if background is None or background.is_empty else ""
            print("\n".join(filter(None, [own, earlier])) or "No cell has run in the background")

    def gpu_attach(self, line: str) -> Any:
        """Get the results of a background cell of an earlier kernel: `%gpu_attach 8f62a1b3`.

        Waits until the cell has ended, and shows its output meanwhile. Then binds its variables, as `%gpu_load` does,
        and returns the value of its last line. `%gpu_jobs` lists the cells.
        """
        words = line.split()
        if len(words) > 1 or not all(map(JOB.fullmatch, words)):
            raise UsageError(
                f"%gpu_attach {line.strip()}: these are not the digits of one job\n"
                "hint: write %gpu_attach 8f62a1b3, with the digits that %gpu_jobs shows"
            )
        return self._required_home(alone=True).earlier_jobs.attach(words[0] if words else "")

    def gpu_config(self, line: str) -> None:
        """Change settings of this notebook: status_line=on or off, virtual=on or off."""
        from baton_shim.virtual import SWITCH

        home = self._required_home()
        for part in line.split():
            found = CONFIG.fullmatch(part)
            if not found:
                known = "status_line=on or status_line=off, virtual=on or virtual=off"
                raise UsageError(f"%gpu_config {part}: unknown\nhint: write {known}")
            setting, value = found.groups()
            if setting == "status_line":
                home.quiet = value == "off"
            else:
                SWITCH.turn(value == "on")
        print(f"status_line={'off' if home.quiet else 'on'} virtual={'on' if SWITCH.on else 'off'}")
