"""Modules beside the notebook: each end runs the source that the other end has loaded.

Installed packages are sent by name. The packages that cells installed (`packages.py`) and the cells under `%%both`
(`both.py`) are sent together with the modules.

A student's own `.py` file may change between two cells, and a module keeps the source that it was loaded from until it
is reloaded. So each end records what it loads, and sends that to the other end before anything of the module is
unpickled there. The other end loads the same source when it imports the module. If it has already loaded another
source, or the module was reloaded, it reloads the module in the same way.

**Invariant:** a module is executed here only when this end imports it, or when the other end has reloaded it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any, NamedTuple

from baton_shim.base import late, module_blocks
from baton_shim.base.both import BothCells
from baton_shim.base.mirror import to_here, to_home
from baton_shim.base.packages import Installed, Packages
from baton_shim.base.undoing import OnUndo

AUTORELOAD = "IPython.extensions.autoreload"
INSTALLED = (os.path.dirname(os.__file__) + os.sep, "/site-packages/", "/dist-packages/")


class Loaded(NamedTuple):
    """The source that a module was last executed from."""

    path: str
    source: bytes
    package: bool
    in_place: bool = False
    """Loaded by `%autoreload`, which also updates functions and classes that other objects hold."""
    patched: bool = False
    """`%autoreload` changed the functions and classes themselves, and did not execute the module."""
    times: int = 1
    """The number of executions."""


class LocalModules(MetaPathFinder):
    """One for each kernel, from the kernel's start."""

    def __init__(self, packages: Packages) -> None:
        self.packages = packages
        self.both = BothCells()
        self.loaded: dict[str, Loaded] = {}
        self._sent: dict[str, Loaded] = {}
        """What the other end knows to be loaded here, or has reported itself."""
        self._given: dict[str, Loaded] = {}
        """What the other end has loaded and this end has not."""
        self._news: dict[str, Loaded] = {}
        self._old_objects: dict[Any, Any] = {}
        self.give_environment: Callable[[bytes, OnUndo], object] = lambda difference, undo: None
        """Applies the `environment` of the other end's `look`."""

    def watch(self) -> None:
        """From now on, this end records what it loads."""
        late.before_execution(self._look)

    def note_loaded(self) -> None:
        """Records the student's modules that were loaded before `watch`."""
        for name, module in list(sys.modules.items()):
            loader = getattr(getattr(module, "__spec__", None), "loader", None)
            path = str(getattr(loader, "path", ""))
            if not isinstance(loader, SourceFileLoader) or not is_own(name, path):
                continue
            with contextlib.suppress(OSError):
                source = loader.get_data(path)
                self.loaded.setdefault(name, Loaded(to_home(path), source, hasattr(module, "__path__")))

    def restart(self) -> None:
        """The other end is a new process."""
        self._sent.clear()
        self.packages.restart()
        self.both.restart()

    def look(self, environment: bytes | None = None) -> bytes | None:
        """What the other end must know before it reads anything else.

        `environment`: variables, many of which have an effect only if they are set before a library is imported.
        """
        self._see_autoreload()
        self._news = {name: loaded for name, loaded in self.loaded.items() if self._sent.get(name) != loaded}
        packages, both = self.packages.look(), self.both.look()
        if packages is None and not self._news and not both and environment is None:
            return None
        modules = {name: tuple(loaded) for name, loaded in self._news.items()}
        return pickle.dumps((packages and tuple(packages), modules, both, environment))

    def commit(self, undo: OnUndo) -> None:
        """The result of the last `look` has been sent."""
        self.packages.commit(undo)
        self.both.commit(undo)
        undo(partial(setattr, self, "_sent", dict(self._sent)))
        self._sent.update(self._news)

    def apply(self, news: bytes, undo: OnUndo) -> None:
        """Raises the error of a module that has to be reloaded here."""
        packages, modules, both, environment = pickle.loads(news)
        if environment is not None:
            self.give_environment(environment, undo)
        if packages is not None:
            self.packages.apply(Installed(*packages), undo)
        undo(partial(vars(self).update, {name: dict(vars(self)[name]) for name in ("loaded", "_sent", "_given")}))
        for name, fields in modules.items():
            given = Loaded(*fields)
            here = self.loaded.get(name)
            if name not in sys.modules:
                self._give(name, given)
            elif here is not None and (given.source != here.source or name in self._sent):
                module = sys.modules[name]
                undo(partial(self._put_back, module, dict(vars(module)), here, given))
                self._load(module, here, given)
                note_loaded_elsewhere(name, given)
            if name in self.loaded:
                self._sent[name] = self.loaded[name]
        self.both.apply(both)

    # ---- what is loaded here ----

    def _look(self, loader: SourceFileLoader, module: ModuleType) -> None:
        path = str(loader.path)
        if not is_own(module.__name__, path):
            return
        try:
            source = loader.get_data(path)
        except OSError:
            return
        module_blocks.look(loader, source)
        late.when_executed(module.__spec__, partial(self._note, module, path, source))

    def _note(self, module: ModuleType, path: str, source: bytes) -> None:
        name = module.__name__
        before = self.loaded.get(name)
        times = before.times + 1 if before else 1
        package = hasattr(module, "__path__")
        self.loaded[name] = Loaded(to_home(path), source, package, called_from(AUTORELOAD), times=times)
        given = self._given.pop(name, None)
        if given is not None and given.source == source:
            self._sent[name] = self.loaded[name]
            note_loaded_elsewhere(name, given)

    def _see_autoreload(self) -> None:
        """Records edits that `%autoreload` applied to a module without executing it."""
        reloader = autoreloader()
        if reloader is None:
            return
        for name, loaded in self.loaded.items():
            try:
                if reloader.modules_mtimes.get(name) != os.stat(loaded.path).st_mtime:
                    continue
                with open(loaded.path, "rb") as file:
                    source = file.read()
            except OSError:
                continue
            if source != loaded.source:
                self.loaded[name] = patched(loaded, source)

    # ---- what the other end has loaded ----

    def _give(self, name: str, given: Loaded) -> None:
        self._given[name] = given
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        given = self._given.get(name)
        if given is None:
            return None
        place: str = to_here(given.path)
        loader = GivenLoader(name, place, given.source)
        folders = [os.path.dirname(place)] if given.package else None
        return spec_from_file_location(name, place, loader=loader, submodule_search_locations=folders)

    def _put_back(self, module: ModuleType, content: dict[str, Any], before: Loaded, given: Loaded) -> None:
        """Restores the module as it was before `given` was loaded, which may have changed what other objects hold."""
        if given.in_place:
            self._load(module, given, before._replace(in_place=True, patched=given.patched))
        vars(module).clear()
        vars(module).update(content)

    def _load(self, module: ModuleType, here: Loaded, given: Loaded) -> None:
        """Loads the source in the same way as the other end did."""
        if given.patched and patch(module, here.source, given.source):
            self.loaded[module.__name__] = patched(here, given.source)
            return
        self._give(module.__name__, given)
        if given.in_place:
            from IPython.extensions.autoreload import superreload

            superreload(module, importlib.reload, self._old_objects)
        else:
            importlib.reload(module)


class GivenLoader(SourceFileLoader):
    """Executes the other end's source without output: that end has already shown what the module prints."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        late.source_is_read(self)
        raise OSError("the file may have another source by now")  # so that no bytecode is used or kept

    def exec_module(self, module: ModuleType) -> None:
        with quiet():
            super().exec_module(module)


def patched(before: Loaded, source: bytes) -> Loaded:
    return before._replace(source=source, in_place=True, patched=True, times=before.times + 1)


def patch(module: ModuleType, before: bytes, now: bytes) -> bool:
    """Changes the module's functions and classes as `%autoreload` of IPython 9 does, if it can."""
    with quiet(), contextlib.suppress(Exception):  # as IPython does; an older one lacks it
        from IPython.extensions.deduperreload.deduperreload import DeduperReloader

        reloader, old, new = DeduperReloader(), ast.parse(before), ast.parse(now)
        reloader._build_dependency_graph(new)
        return bool(
            reloader.detect_autoreload(old, new) and reloader._check_dependents() and reloader._patch_namespace(module)
        )
    return False


def is_own(name: str, path: str) -> bool:
    """Whether the module is the student's own."""
    return not is_installed(path) and name != "__main__" and name.partition(".")[0] not in ("baton", "baton_shim")


def is_own_module(name: str) -> bool:
    """Whether a loaded module of this name is the student's own."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and is_own(name, file)


def is_installed(path: str) -> bool:
    """Whether this source belongs to Python, or to a package that is not the student's."""
    return path.startswith(INSTALLED[0]) or INSTALLED[1] in path or INSTALLED[2] in path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def called_from(module: str) -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def note_loaded_elsewhere(name: str, loaded: Loaded) -> None:
    """`%autoreload` knows this source: only later edits of the file are to be loaded."""
    magics = autoreload_magics()
    if magics is None:
        return
    with contextlib.suppress(OSError), open(to_here(loaded.path), "rb") as file:
        if file.read() == loaded.source:
            magics._reloader.modules_mtimes[name] = os.fstat(file.fileno()).st_mtime
            magics.loaded_modules.add(name)


def autoreloader() -> Any:
    """The state of `%autoreload`, if a notebook has loaded it."""
    return getattr(autoreload_magics(), "_reloader", None)


def autoreload_magics() -> Any:
    if AUTORELOAD not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell.magics_manager.registry.get("AutoreloadMagics") if shell is not None else None
