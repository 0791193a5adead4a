"""matplotlib's settings. Which figures pyplot knows is in `figures`, since they are objects of the notebook."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

from baton_shim.surroundings.ipython import shell
from baton_shim.surroundings.kind import Kind, Settings, each

# What has to do with windows, programs and folders of one machine, or with the kernel that shows the figures.
OF_THE_MACHINE = re.compile(
    r"backend|backend_fallback|interactive|toolbar|timezone|webagg\..*|animation\..*_path|savefig\.directory|"
    r"tk\..*|keymap\..*|datapath"
)


class Parameters(Settings):
    name, title, module = "matplotlib.rcParams", "A parameter of matplotlib", "matplotlib"

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        """Past the class's own methods, which are slow and warn of what is deprecated."""
        parameters = sys.modules["matplotlib"].rcParams
        if not dict.__eq__(self._seen, parameters):
            self._seen = dict(dict.items(parameters))
        return self._seen

    def fresh(self) -> dict[str, Any]:
        return dict(dict.items(sys.modules["matplotlib"].rcParamsDefault))

    def difference(self, before: Any, now: Any) -> Any:
        new, _ = super().difference(before, now)
        return {name: value for name, value in new.items() if not OF_THE_MACHINE.fullmatch(name)}

    def apply(self, difference: Any) -> list[str] | None:
        parameters = sys.modules["matplotlib"].rcParams
        return each(difference.items(), lambda item: parameters.__setitem__(*item), self.title)


INLINE = "module://matplotlib_inline.backend_inline"
# The others show windows or widgets of one machine.
PORTABLE = ("inline", "agg", "svg", "pdf", "ps", "cairo", "template")
# Keeps figures for the notebook, which shows them after the cell.
STAND_IN = "agg"


class Backend(Kind):
    """Who draws: inline shows and closes figures at the end of a cell, the others keep them."""

    name, title, module, whole = "matplotlib.backend", "matplotlib's backend", "matplotlib", True

    def look(self) -> str | None:
        chosen = dict.get(sys.modules["matplotlib"].rcParams, "backend")  # not yet chosen: another kind of object
        return named(chosen) if isinstance(chosen, str) else None

    def fresh(self) -> str | None:
        return named(os.environ.get("MPLBACKEND"))

    def apply(self, difference: Any) -> None:
        if difference not in PORTABLE:
            if difference is None or not in_session():
                return
            difference = STAND_IN
        if difference == self.look():
            return
        if "matplotlib.pyplot" in sys.modules:
            shown = bool(figure_printers())
            shell().enable_matplotlib(difference)  # as %matplotlib, which also takes care of what inline began
            show_figures(shown)  # `matplotlib.use` leaves that
        else:
            sys.modules["matplotlib"].use(INLINE if difference == "inline" else difference)


class Interactive(Kind):
    """`plt.ioff()`: no figure is shown that nobody asks for."""

    name, title, module, whole = "matplotlib.interactive", "matplotlib's interactive mode", "matplotlib.pyplot", True

    def look(self) -> bool:
        return bool(sys.modules["matplotlib"].is_interactive())

    def fresh(self) -> None:
        return None

    def apply(self, difference: bool) -> None:
        sys.modules["matplotlib"].interactive(difference)


FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg", "application/pdf": "pdf"}


class FigureFormats(Settings):
    """How inline figures are shown, by `%config InlineBackend` or `set_matplotlib_formats`."""

    name, title, module = "inline", "A setting of inline figures", "matplotlib_inline.config"

    def look(self) -> dict[str, Any]:
        backend = sys.modules["matplotlib_inline.config"].InlineBackend
        chosen = backend.instance() if backend.initialized() else backend()
        formats, options = set(chosen.figure_formats), dict(chosen.print_figure_kwargs)
        shown = figure_printers()
        if shown:
            formats = {name for name, _ in shown.values()}
            (options, *_) = (options for _, options in shown.values())
        return {"formats": formats, "options": options, "close": chosen.close_figures}

    def fresh(self) -> dict[str, Any]:
        return {"formats": {"png"}, "options": {"bbox_inches": "tight"}, "close": True}

    def apply(self, difference: Any) -> list[str] | None:
        new, _ = difference
        backend = sys.modules["matplotlib_inline.config"].InlineBackend.instance()
        names = {"formats": "figure_formats", "options": "print_figure_kwargs", "close": "close_figures"}
        troubles = each(new.items(), lambda item: setattr(backend, names[item[0]], item[1]), self.title)
        backend._update_figure_formatters()  # where `set_matplotlib_formats` has passed these settings over
        return troubles


class ShownFigures(Kind):
    """Whether a figure that is a cell's value is shown as an image: from the first that inline makes."""

    name, title, module, whole = "figures shown", "That figures are shown", "matplotlib.figure", True

    def look(self) -> bool:
        return bool(figure_printers())

    def fresh(self) -> None:
        return None

    def apply(self, difference: bool) -> None:
        show_figures(difference)


def show_figures(shown: bool) -> None:
    if shown == bool(figure_printers()):
        return
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib_inline.config import InlineBackend

    backend = InlineBackend.instance()
    formats = backend.figure_formats if shown else ()
    select_figure_formats(shell(), formats, **backend.print_figure_kwargs)


def figure_printers() -> dict[str, tuple[str, dict[str, Any]]]:
    """By type of output the name of the format and the options."""
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    found = {}
    for kind, name in FORMATS.items():
        printer = shell().display_formatter.formatters[kind].type_printers.get(figure)
        if isinstance(printer, functools.partial):
            retina = getattr(printer.func, "__name__", "") == "retina_figure"
            options = {key: value for key, value in printer.keywords.items() if key not in ("fmt", "base64")}
            found[kind] = ("retina" if retina else name), options
    return found


def in_session() -> bool:
    return "baton_shim.session.kernel" in sys.modules


def named(backend: str | None) -> str | None:
    return "inline" if backend == INLINE else backend and backend.lower()


PLOTS: tuple[Kind, ...] = (Parameters(), Backend(), Interactive(), FigureFormats(), ShownFigures())
