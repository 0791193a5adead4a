"""matplotlib's settings. The figures that pyplot knows are in `figures`, because they are objects of the notebook."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
import sys
import weakref
from importlib.util import find_spec
from typing import Any

from baton_shim.base import late
from baton_shim.surroundings.ipython import shell
from baton_shim.surroundings.kind import Kind, changed, entries, rows

# Settings for windows, programs and folders of one machine, or for the kernel that shows the figures.
OF_THE_MACHINE = re.compile(
    r"backend|backend_fallback|interactive|toolbar|timezone|webagg\..*|animation\..*_path|savefig\.directory|"
    r"tk\..*|keymap\..*|datapath"
)

CYCLE = "axes.prop_cycle"


def parameters(matplotlib: Any) -> dict[str, Any]:
    """Avoids the class's own methods, which are slow and warn about deprecated parameters."""
    found = dict(dict.items(matplotlib.rcParams))
    if CYCLE in found:  # `*=` changes it in place
        found[CYCLE] = copy.copy(found[CYCLE])
    return found


def default_parameters(matplotlib: Any) -> dict[str, Any]:
    """matplotlib's own record of the defaults shares its lists with the parameters, so these are read from its file."""
    found = dict(dict.items(matplotlib.rcParamsDefault))
    with contextlib.suppress(Exception):  # it has no public function for this
        path = matplotlib.cbook._get_data_path("matplotlibrc")
        read = matplotlib._rc_params_in_file(path, transform=uncommented, fail_on_error=True)
        found |= {name: value for name, value in dict.items(read) if name == CYCLE or isinstance(value, list)}
    return found


def uncommented(line: str) -> str:
    """A line of matplotlib's file of defaults."""
    return line.removeprefix("#")


def of_everywhere(before: Any, now: Any) -> Any:
    """Parameters always have a value, so nothing is ever removed."""
    new, _ = changed(before, now)
    return {name: value for name, value in new.items() if not OF_THE_MACHINE.fullmatch(name)}, []


INLINE = "module://matplotlib_inline.backend_inline"
NAMES = {
    INLINE: "inline",
    "module://matplotlib.backends.backend_nbagg": "nbagg",
    "module://ipympl.backend_nbagg": "ipympl",
}
OF_IPYMPL = ("ipympl", "widget")
IN_FRONT_END = ("nbagg", "notebook", *OF_IPYMPL)
# The other backends show windows or widgets of one machine.
PORTABLE = ("inline", "agg", "svg", "pdf", "ps", "cairo", "template")
# Keeps figures for the notebook, which shows them after the cell.
STAND_IN = "agg"


class Backend:
    """The backend: inline shows and closes figures at the end of a cell; the others keep them.

    Figures of `%matplotlib notebook` and `widget` communicate with the front end, which reaches only the notebook
    kernel. A session uses a stand-in for these backends, also if one of its cells chooses them, and the notebook kernel
    shows the figures.
    """

    def __init__(self) -> None:
        self._stands_for: str | None = None
        self._hidden: weakref.WeakSet[Any] = weakref.WeakSet()

    def hides(self, figure: Any) -> bool:
        """Whether a session created it after `plt.ioff()` and it has not been shown explicitly."""
        return figure in self._hidden

    def look(self, matplotlib: Any) -> str | None:
        chosen = dict.get(matplotlib.rcParams, "backend")  # before the choice it is another kind of object
        name = named(chosen) if isinstance(chosen, str) else None
        return self._stands_for if name == STAND_IN and self._stands_for else name

    def give(self, matplotlib: Any, wanted: str | None) -> None:
        if wanted is None or wanted == self.look(matplotlib):
            return
        self._stands_for = None
        if wanted not in PORTABLE:
            if in_session():
                self._stands_for, wanted = wanted, STAND_IN
            elif wanted not in IN_FRONT_END:
                return
        if "matplotlib.pyplot" in sys.modules:
            shown = bool(figure_printers())
            shell().enable_matplotlib(wanted)  # like %matplotlib, which also undoes what inline set up
            show_figures(shown)  # `matplotlib.use` does not do that
        else:
            matplotlib.use(INLINE if wanted == "inline" else wanted)

    def draw_for_the_notebook(self) -> None:
        """Called once, in a session."""
        late.when_imported("matplotlib.pyplot", self._stand_in)

    def _stand_in(self) -> None:
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        switch = pyplot.switch_backend

        @functools.wraps(switch)
        def switch_backend(newbackend: Any) -> None:
            name = named(newbackend) if isinstance(newbackend, str) else None
            if name in IN_FRONT_END and (name not in OF_IPYMPL or find_spec("ipympl") is not None):
                self._stands_for, newbackend = name, STAND_IN
            switch(newbackend)

        pyplot.switch_backend = switch_backend
        make, show = pyplot.new_figure_manager, pyplot.show

        @functools.wraps(make)
        def new_figure_manager(*arguments: Any, **options: Any) -> Any:
            manager = make(*arguments, **options)
            if not pyplot.isinteractive():
                self._hidden.add(manager.canvas.figure)
            return manager

        @functools.wraps(show)
        def shown(*arguments: Any, **options: Any) -> Any:
            self._hidden.clear()
            return show(*arguments, **options)

        pyplot.new_figure_manager, pyplot.show = new_figure_manager, shown


BACKEND = Backend()


def is_interactive(_: Any) -> bool:
    return bool(sys.modules["matplotlib"].is_interactive())


FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg", "application/pdf": "pdf"}


def figure_formats(config: Any) -> dict[str, Any]:
    """How inline figures are shown, according to `%config InlineBackend` or `set_matplotlib_formats`."""
    inline = config.InlineBackend
    chosen = inline.instance() if inline.initialized() else inline()
    formats, options = set(chosen.figure_formats), dict(chosen.print_figure_kwargs)
    shown = figure_printers()
    if shown:
        formats = {name for name, _ in shown.values()}
        (options, *_) = (options for _, options in shown.values())
    return {"figure_formats": formats, "print_figure_kwargs": options, "close_figures": chosen.close_figures}


def give_figure_format(config: Any, name: str, value: Any) -> None:
    inline = config.InlineBackend.instance()
    setattr(inline, name, value)
    inline._update_figure_formatters()  # in case `set_matplotlib_formats` has bypassed these settings


def show_figures_after_import(shown: bool) -> None:
    """Inline needs the complete module pyplot, which itself imports `matplotlib.figure`."""
    spec = getattr(sys.modules.get("matplotlib.pyplot"), "__spec__", None)
    late.when_executed(spec, functools.partial(show_figures, shown))


def show_figures(shown: bool) -> None:
    if shown == bool(figure_printers()):
        return
    from IPython.core.pylabtools import select_figure_formats
    from matplotlib_inline.config import InlineBackend

    backend = InlineBackend.instance()
    formats = backend.figure_formats if shown else ()
    select_figure_formats(shell(), formats, **backend.print_figure_kwargs)


def figure_printers() -> dict[str, tuple[str, dict[str, Any]]]:
    """By output type: the name of the format and the options."""
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
    return NAMES.get(backend, backend.lower()) if backend else backend


PLOTS: tuple[Kind, ...] = (
    entries(
        *("matplotlib.rcParams", "A parameter of matplotlib", "matplotlib", parameters),
        lambda matplotlib, name, value: matplotlib.rcParams.__setitem__(name, value),
        fresh=default_parameters,
        difference=of_everywhere,
    ),
    *rows(
        *("matplotlib's backend", "matplotlib"),
        ("backend", BACKEND.look, BACKEND.give, lambda _: named(os.environ.get("MPLBACKEND"))),
    ),
    # `plt.ioff()`: figures are shown only on request.
    *rows(
        *("matplotlib's interactive mode", "matplotlib.pyplot"),
        ("interactive", is_interactive, lambda _, on: sys.modules["matplotlib"].interactive(on), None),
    ),
    entries(
        *("inline", "A setting of inline figures", "matplotlib_inline.config", figure_formats, give_figure_format),
        fresh={"figure_formats": {"png"}, "print_figure_kwargs": {"bbox_inches": "tight"}, "close_figures": True},
    ),
    # Whether a figure that is a cell's value is shown as an image; set when inline creates its first figure.
    *rows(
        *("The display of figures", "matplotlib.figure"),  # a figure that arrives does not import pyplot
        ("shown", lambda _: bool(figure_printers()), lambda _, shown: show_figures_after_import(shown), None),
    ),
)
