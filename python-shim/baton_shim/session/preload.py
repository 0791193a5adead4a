"""Libraries that a zygote loads before its sessions begin, so that importing them in a session costs nothing.

After the load they are removed from `sys.modules`, so a session begins with the same modules as any other. When a
program imports one of them, the finder here checks what the import system would find now. If that is the same file, the
module returns to `sys.modules` together with everything that it had imported; otherwise it is imported as usual.

**Invariant:** before a program imports a library, it sees what it would see in a fresh process, except for memory use.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import shutil
import sys
import tempfile
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from types import ModuleType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from baton_shim.base import late

READ_ONCE = ("MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that students set, and that numerical libraries read only when they are loaded."""
SUFFIXES = frozenset(("", *all_suffixes()))
ANOTHER = (
    "warning: This session had already loaded a different {0}. This notebook's {0} is used from now on\n"
    "hint: if it does not work, ask your course staff to set worker.warm_starts = false\n"
)
BACKEND, INLINE = "MPLBACKEND", "module://matplotlib_inline.backend_inline"
NUMPY_RANDOM = "numpy.random"


class Recorder:
    """Records which module imports which others, while libraries are loaded."""

    def __init__(self) -> None:
        self.needs: dict[str, set[str]] = {}
        self._import = builtins.__import__
        self._import_module = importlib.import_module

    def __enter__(self) -> Recorder:
        builtins.__import__ = self._recording_import
        importlib.import_module = self._recording_import_module
        return self

    def __exit__(self, *_: object) -> None:
        builtins.__import__ = self._import
        importlib.import_module = self._import_module

    def _recording_import(
        self,
        name: str,
        globals: Any = None,  # noqa: A002 - the name that the import system uses
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> ModuleType:
        module: ModuleType = self._import(name, globals, locals, fromlist, level)
        if level:
            package = (globals or {}).get("__package__") or (globals or {}).get("__name__", "")
            package = package.rsplit(".", level - 1)[0]
            name = f"{package}.{name}" if name else package
        names = (name, *(f"{name}.{part}" for part in fromlist or ()))
        self.note(name for name in names if name in sys.modules)
        return module

    def _recording_import_module(self, name: str, package: str | None = None) -> ModuleType:
        module = self._import_module(name, package)
        self.note([module.__name__])
        return module

    def note(self, names: Iterable[str]) -> None:
        """Records names for the module whose execution imports them, also through functions of other modules."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            importer = frame.f_globals.get("__name__")
            if frame.f_code.co_name == "<module>" and importer in sys.modules:
                self.needs.setdefault(importer, set()).update(names)
                return
            frame = frame.f_back


class Traces:
    """What imports change besides modules."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.filters = list(warnings.filters)

    def take(self, before: Traces) -> None:
        """Undoes the changes since `before`, and keeps them for `leave`."""
        changed = {name: value for name, value in os.environ.items() if before.environment.get(name) != value}
        self.environment = changed
        for name in changed:
            if name in before.environment:
                os.environ[name] = before.environment[name]
            else:
                del os.environ[name]
        self.filters = [found for found in warnings.filters if found not in before.filters]
        set_filters(before.filters)

    def leave(self) -> None:
        """Makes the changes again, in a session that imports the library."""
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        if self.filters:
            set_filters([*self.filters, *(found for found in warnings.filters if found not in self.filters)])


def set_filters(filters: Iterable[Any]) -> None:
    wanted = list(filters)
    warnings.resetwarnings()  # also makes Python forget which warnings it has shown
    warnings.filters[:] = wanted  # type: ignore[index]


class InKernel:
    """The surroundings in which libraries are loaded. Some libraries look at these only once: pandas checks whether it
    is in a kernel, matplotlib reads its backend, and multiprocessing records the program and folder of its children.
    """

    def __init__(self) -> None:
        self._main, self._folder = sys.modules["__main__"], tempfile.mkdtemp()
        self._streams = sys.stdout, sys.stderr
        self._backend = os.environ.get(BACKEND, "")

    def __enter__(self) -> InKernel:
        from ipykernel.zmqshell import ZMQInteractiveShell
        from traitlets.config import Config

        shell = ZMQInteractiveShell.__new__(ZMQInteractiveShell)  # `__init__` would create a complete shell
        shell.config = Config(IPKernelApp=Config())
        InteractiveShell._instance = shell
        vars(builtins).update(get_ipython=lambda: shell, __IPYTHON__=True)
        sys.stdout, sys.stderr = CurrentStream("stdout"), CurrentStream("stderr")
        os.environ[BACKEND] = self._backend or INLINE  # as ipykernel does
        os.chdir(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        os.chdir("/")
        shutil.rmtree(self._folder, ignore_errors=True)  # a library may have left a file there
        sys.stdout, sys.stderr = self._streams
        del os.environ[BACKEND]
        if self._backend:
            os.environ[BACKEND] = self._backend
        del builtins.get_ipython, builtins.__IPYTHON__  # type: ignore[attr-defined]
        InteractiveShell._instance = None

    def noted(self, module: ModuleType) -> list[tuple[str, Callable[[], object]]]:
        """Variables of the module that refer to this process, each with the value that a session sets."""
        found: list[tuple[str, Callable[[], object]]] = []
        for name, value in vars(module).items():
            if value is self._main:
                found.append((name, lambda: sys.modules["__main__"]))
            elif type(value) is str and value == sys.executable:
                found.append((name, lambda: sys.executable))
            elif type(value) is bytes and value == os.fsencode(sys.executable):
                found.append((name, lambda: os.fsencode(sys.executable)))
            elif type(value) is str and value == self._folder:
                found.append((name, os.getcwd))
        return found


class CurrentStream(io.TextIOBase):
    """The `sys.stdout` or `sys.stderr` at the time of each write, because handlers of `logging` keep the object."""

    encoding = "UTF-8"  # that of a kernel's stream

    def __init__(self, name: str) -> None:
        self._name, self._before = name, getattr(sys, name)

    def _now(self) -> Any:
        found = getattr(sys, self._name)
        return self._before if found is self else found

    def write(self, text: str, /) -> int:
        written: int = self._now().write(text)
        return written

    def flush(self) -> None:
        self._now().flush()

    def fileno(self) -> int:
        number: int = self._now().fileno()
        return number

    def writable(self) -> bool:
        return True


class Preloaded(MetaPathFinder):
    """The preloaded libraries of one zygote."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._needs: dict[str, set[str]] = {}
        self._attributes: set[str] = set()
        """Modules that have to become an attribute of their package again when they return."""
        self._noted: dict[str, list[tuple[str, Callable[[], object]]]] = {}
        self._traces: dict[str, Traces] = {}
        """By the library whose import caused them."""
        self._recorder: Recorder | None = None
        """Set while a library is loaded."""
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._links: list[array[int]] = []
        self._path = list(sys.path)
        self._tops: set[str] = set()
        self._environment = dict(os.environ)

    def load(self, library: str) -> None:
        """Imports a library and hides it again. Raises any error of the import."""
        kernel, before, known = InKernel(), Traces(), set(sys.modules)
        self.watch()
        try:
            with kernel, Recorder() as self._recorder:
                importlib.import_module(library)
        finally:
            sys.meta_path.remove(self)
            if self._recorder is not None:
                for name, needs in self._recorder.needs.items():
                    self._needs.setdefault(name, set()).update(needs)
            self._recorder = None
            hidden = self._hide(known)
            new = {name: module for name, module in hidden.items() if name not in self._noted}
            self._noted.update((name, kernel.noted(module)) for name, module in new.items())
            self._link()
            self._detach(hidden)
            self._tops = {name.partition(".")[0] for name in self._modules}
            traces = Traces()
            traces.take(before)
            self._traces[library] = traces

    def watch(self) -> None:
        """From now on, imports find the libraries."""
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def _shadowed(self) -> set[str]:
        """Names that Python would find in folders that were added to its path after the load."""
        found = set()
        for folder in sys.path:
            if folder in self._path:
                continue
            try:
                names = os.listdir(folder or os.curdir)
            except OSError:
                continue
            parts = (name.partition(".") for name in names)
            found |= {stem for stem, dot, rest in parts if stem in self._tops and f"{dot}{rest}" in SUFFIXES}
        return found

    def _hide(self, known: set[str]) -> dict[str, ModuleType]:
        """Hides all modules that are not `known`, except those that cannot be attributed to a library."""
        sys.modules.pop("__mp_main__", None)
        new = {name: module for name, module in sys.modules.items() if name not in known}
        wanted = {part for needs in self._needs.values() for name in needs for part in with_packages(name)}
        hidden: dict[str, ModuleType] = {}
        for name, module in new.items():
            if not hideable(module):
                continue
            parent = name.rpartition(".")[0]
            if name not in wanted and parent in new:  # created by its package, not imported
                self._needs.setdefault(parent, set()).add(name)
            elif name not in wanted and getattr(module, "__spec__", None) is None:
                continue
            self._modules[name] = hidden[name] = module
            del sys.modules[name]
        return hidden

    def _detach(self, hidden: dict[str, ModuleType]) -> None:
        """Removes hidden modules from their packages, except those that always return together with their package."""
        closures: dict[str, set[str]] = {}
        for name, module in hidden.items():
            parent, _, part = name.rpartition(".")
            package = self._modules.get(parent) or sys.modules.get(parent)
            if not isinstance(package, ModuleType) or vars(package).get(part) is not module:
                continue
            if parent in self._modules and parent not in closures:
                closures[parent] = set(self._closure(parent))
            if name not in closures.get(parent, ()):
                self._attributes.add(name)
                delattr(package, part)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._recorder is not None:
            self._recorder.note([fullname])  # also catches libraries in C, which import in their own way
        module = self._modules.get(fullname)
        if module is None or fullname in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if (spec and spec.origin) != origin_of(module):
            if fullname in self._traces:
                sys.stderr.write(ANOTHER.format(fullname))
            return None
        found = ModuleSpec(fullname, Returning(module, self), origin=origin_of(module))
        found.submodule_search_locations = getattr(module, "__path__", None)
        return found

    def show(self, name: str) -> list[str]:
        """Puts what is hidden of a module and of all that it needs into `sys.modules`. Returns these names."""
        # A student's file with a library's name is meant for the student; the library keeps its own module.
        besides = self._shadowed() - {name.partition(".")[0]}
        shown = [
            part for part in self._closure(name) if part not in sys.modules and part.partition(".")[0] not in besides
        ]
        for part in shown:
            sys.modules[part] = self._modules[part]
        for part in self._attributes.intersection(shown):
            package, _, attribute = part.rpartition(".")
            setattr(sys.modules[package], attribute, self._modules[part])
        del sys.modules[name]  # the import system adds it
        return shown

    def _closure(self, name: str) -> list[str]:
        """The module, the modules that it needs, and the packages of all of these, in the order of their load."""
        found, waiting = bytearray(len(self._names)), [self._index[name]]
        while waiting:
            number = waiting.pop()
            if not found[number]:
                found[number] = True
                waiting.extend(self._links[number])
        return [self._names[number] for number, is_found in enumerate(found) if is_found]

    def _link(self) -> None:
        """Stores numbers, not names: reading an object writes its reference count, which costs a fork a page.

        The names that a fork uses are copies, made one after another, so that many share a page.
        """
        self._names = [name.encode().decode() for name in self._modules]
        self._index = {name: number for number, name in enumerate(self._names)}
        self._links = []
        for name in self._names:
            parts = {part for need in (name, *self._needs.get(name, ())) for part in with_packages(need)}
            self._links.append(array("I", sorted(self._index[part] for part in parts if part in self._index)))

    def returned(self, names: list[str]) -> None:
        """Completes the import of modules that are back in `sys.modules`."""
        if self._recorder is not None:
            return
        for name in names:
            for attribute, now in self._noted.get(name, ()):
                setattr(sys.modules[name], attribute, now())
        if "multiprocessing" in names:
            sys.modules["__mp_main__"] = sys.modules["__main__"]
            sys.modules["multiprocessing"].current_process().authkey = os.urandom(32)
        for name in names:
            if (traces := self._traces.pop(name, None)) is not None:
                self._announce(name)
                traces.leave()
        if NUMPY_RANDOM in names:
            sys.modules[NUMPY_RANDOM].seed()
        if "torch" in names:  # it takes the seed of its CPU generator from the system when it is loaded
            sys.modules["torch"].default_generator.seed()
        for name in names:
            late.arrived(name)

    def _announce(self, library: str) -> None:
        """Reports, once, variables that the student has set since the load."""
        late = [name for name in READ_ONCE if os.environ.get(name) != self._environment.get(name)]
        self._environment.update((name, os.environ[name]) for name in late if name in os.environ)
        if late:
            sys.stderr.write(
                f"{library} was loaded before this session knew {', '.join(late)}, which may have no effect here\n"
                "hint: call a function of the library instead, or ask your course staff to set it for the worker\n"
            )


class Returning(Loader):
    """Executes nothing, because the module has already been executed."""

    def __init__(self, module: ModuleType, preloaded: Preloaded) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)
        self._preloaded = preloaded
        self._shown: list[str] = []

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._shown = self._preloaded.show(spec.name)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._preloaded.returned(self._shown)


def with_packages(name: str) -> Iterator[str]:
    """For `a.b.c`: itself, `a.b` and `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def origin_of(module: ModuleType) -> str | None:
    origin: str | None = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin


def hideable(module: Any) -> bool:
    """Whether hiding helps. Modules built into Python cost nothing, and are found before this finder is asked."""
    return origin_of(module) not in ("built-in", "frozen")


def make_anew() -> None:
    """Renews what each fresh Python process has of its own and Python does not renew after a fork."""
    if (logging := sys.modules.get("logging")) is not None:
        vars(logging)["_startTime"] = time.time()
    if (tempfile := sys.modules.get("tempfile")) is not None:
        vars(tempfile)["tempdir"] = None  # depends on variables, which the session has set
