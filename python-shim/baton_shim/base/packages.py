"""Packages that `%%gpu` cells install: for the sessions of this notebook, and for nothing else.

A session has its own folder in the form of a virtual environment (the *overlay*), which precedes the worker's packages
on `sys.path`. Its cells use the overlay's `pip`, `python` and `uv`, which install there. They find the worker's
packages as well, and never change them. The notebook remembers the overlay's contents, and the next session installs
the same versions again.

**Invariant:** the overlay's contents are found by looking; only their origin is written down (`installing.py`).
"""

from __future__ import annotations

import os
import sys
import time
from functools import lru_cache, partial
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from importlib.metadata import Distribution
    from typing import Any

    from baton_shim.base.undoing import OnUndo

FOLDER = "BATON_PACKAGES_FOLDER"
"""Where the worker wants the overlay to be."""
MAY_INSTALL = "BATON_PACKAGES_MAY_INSTALL"
HAS_NETWORK = "BATON_PACKAGES_HAS_NETWORK"
ENVIRONMENT = "BATON_OFFERED_ENVIRONMENT"
"""Set by a worker for a session in an environment that it offers to courses."""
SOURCES = "sources.jsonl"
"""A file of the overlay: the options of `install` that say where packages come from, one option and value per line."""
REFUSAL = (
    "Cells cannot install packages on this worker; nothing was changed\n"
    "hint: ask your course staff to install it for everyone\n"
)
NO_NETWORK = (
    "Packages cannot be installed: cells on this worker have no network; nothing was changed\n"
    "hint: ask your course staff to add it\n"
)
SHARED = ("site-packages", "dist-packages")
SETTLED_NS = 2_000_000_000
"""A folder that changed more recently may change again with the same time: some file systems count in seconds."""


class Allowed(NamedTuple):
    """What cells can do."""

    may_install: bool = False
    has_network: bool = False


class Installed(NamedTuple):
    """What one end reports about its packages."""

    pins: tuple[str, ...] = ()
    """The packages in the overlay as arguments of `pip install`, each with its version."""
    sources: tuple[tuple[str, ...], ...] = ()
    """Where they came from, as options of pip."""
    notebook: tuple[tuple[str, str], ...] = ()
    """The packages of the notebook itself, with their versions."""


NOTHING = Installed()


class Overlay:
    """The virtual environment of this session. It is cheap to create: a few files, and no program is started."""

    def __init__(self, folder: str, allowed: Allowed) -> None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.folder = folder
        self.allowed = allowed
        self.worker_python = sys.executable
        self.python = os.path.join(folder, "bin", "python")
        self.packages = os.path.join(folder, "lib", version, "site-packages")
        self.uv: str | None = None
        self._scanned_at = 0
        self._pins: tuple[str, ...] = ()
        self._modules: dict[str, str] = {}
        self._make(version)
        self._use()

    def _make(self, version: str) -> None:
        programs = os.path.dirname(self.python)
        for path in (programs, self.packages):
            os.makedirs(path)
        if sys.platlibdir != "lib":
            os.symlink("lib", os.path.join(self.folder, sys.platlibdir))
        base = getattr(sys, "_base_executable", sys.executable)
        os.symlink(base, self.python)
        for name in ("python3", version):
            os.symlink("python", os.path.join(programs, name))
        settings = f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n"
        write(os.path.join(self.folder, "pyvenv.cfg"), settings)
        shared = "".join(f"site.addsitedir({entry!r}); " for entry in sys.path if os.path.basename(entry) in SHARED)
        start = f"import site; {shared}from baton_shim.base import installing; installing.begin(*{(*self.allowed,)})\n"
        write(os.path.join(self.packages, "baton.pth"), start)
        for name in ("pip", "pip3"):
            self._make_python(name, "pip()")
        self.uv = which("uv", os.path.dirname(sys.executable))
        if self.uv is not None:
            self._make_python("uv", f"uv({self.uv!r}, *{(*self.allowed,)})")

    def _make_python(self, name: str, call: str) -> None:
        # The system reads 127 bytes of the line that names an interpreter; a shell reads all of it.
        start = f"'''exec' '{self.python}' \"$0\" \"$@\"\n' '''\n"
        self.make_program(name, f"{start}from baton_shim.base import installing\n\ninstalling.{call}\n")

    def make_program(self, name: str, script: str) -> None:
        """Puts a program first on the path of the session's cells."""
        path = os.path.join(self.folder, "bin", name)
        write(path, f"#!/bin/sh\n{script}")
        os.chmod(path, 0o755)

    def _use(self) -> None:
        first = [number for number, entry in enumerate(sys.path) if os.path.basename(entry) in SHARED]
        sys.path.insert(first[0] if first else len(sys.path), self.packages)
        sys.executable = self.python
        os.environ["VIRTUAL_ENV"] = self.folder
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(self.python), os.environ.get("PATH", os.defpath)])

    def pins(self) -> tuple[str, ...]:
        """Each package in the overlay, with its version or the place that it came from."""
        self._scan()
        return self._pins

    def modules(self) -> dict[str, str]:
        """The modules in the overlay, each with its package."""
        self._scan()
        return self._modules

    def _scan(self) -> None:
        changed = os.stat(self.packages).st_mtime_ns
        if changed == self._scanned_at:
            return
        from importlib.metadata import distributions

        found = {canonical(package.metadata["Name"]): package for package in distributions(path=[self.packages])}
        self._pins = tuple(sorted(pin_of(name, package) for name, package in found.items()))
        self._modules = {module: name for name, package in found.items() for module in modules_of(package)}
        self._scanned_at = changed if is_settled(changed) else 0

    def sources(self) -> list[tuple[str, ...]]:
        import json

        try:
            with open(os.path.join(self.folder, SOURCES), encoding="utf-8") as file:
                written = [tuple(json.loads(line)) for line in file]
        except FileNotFoundError:
            return []
        # Only the last index counts; all other places count together.
        return list({option[0] if option[0] == "--index-url" else option: option for option in written}.values())

    def install(self, pins: Iterable[str], sources: Iterable[Iterable[str]]) -> str | None:
        """Installs exactly these packages; their dependencies are among them. Returns the reason if it fails."""
        import importlib
        import subprocess

        options = ["--quiet", "--no-deps", *(word for options in sources for word in options)]
        if self.uv is not None:
            command = [os.path.join(self.folder, "bin", "uv"), "pip", "install", *options]
        else:
            options += ["--no-input", "--disable-pip-version-check"]
            command = [self.python, "-m", "pip", "install", *options]
        plain = os.environ | {"NO_COLOR": "1"}
        ended = subprocess.run(
            [*command, *pins], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=plain
        )
        if ended.returncode == 0:
            importlib.invalidate_caches()  # uv may finish within one tick of the folder's clock
            return None
        lines = [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with exit status {ended.returncode}"


class Comparison:
    """In a session: finds packages whose version differs from the notebook's. Each is reported once, before the first
    cell that imports something of it or is given such a thing.
    """

    def __init__(self, environment: str) -> None:
        self._environment = environment
        self._own: frozenset[str] | None = None  # what a session needs itself, whatever the notebook has
        self._differing: dict[str, tuple[str, str]] = {}
        self._modules: dict[str, list[str]] = {}

    def begin(self, notebook: dict[str, str]) -> None:
        """Called with the notebook's packages; the first call precedes any state of the notebook."""
        if self._own is None:
            self._own = frozenset(sys.modules)
        here = found(sys.path)
        both = ((name, version, notebook[name]) for name, version in here if name in notebook)
        self._differing = {name: (own, its) for name, own, its in both if own and its and own != its}

    def news(self, imported: Container[str]) -> list[str]:
        """`imported`: modules that the coming cell imports."""
        return [self._line(name) for name in [*self._differing] if self._is_used(name, imported)]

    def _is_used(self, name: str, imported: Container[str]) -> bool:
        if name not in self._modules:
            from importlib.metadata import PackageNotFoundError, distribution

            try:
                self._modules[name] = [*dict.fromkeys(modules_of(distribution(name)))]
            except PackageNotFoundError:  # it has been removed since
                self._modules[name] = []
        return any(
            module in imported or (module in sys.modules and module not in (self._own or ()))
            for module in self._modules[name]
        )

    def _line(self, name: str) -> str:
        own, its = self._differing.pop(name)
        where = f"the environment {self._environment} of your course" if self._environment else "the worker"
        hint = (
            f"run 'baton env sync {self._environment}' in a terminal and select the kernel that it names"
            if self._environment
            else f"run '%pip install {name}=={own}' in an ordinary cell and restart the kernel"
        )
        return (
            f"This notebook has {name} {its}, but {where} has {own}; its objects may behave differently\nhint: {hint}"
        )


class Packages:
    """What the notebook's sessions have besides the worker's packages; both ends know it.

    The notebook's end has no overlay. It remembers what the session reported, passes that on to the next session, and
    reports which packages the notebook itself has. Objects of any other package stay in the session.
    """

    def __init__(self, overlay: Overlay | None = None, environment: str = "") -> None:
        self.overlay = overlay
        self._comparison = Comparison(environment)
        self.notes: list[str] = []
        """For the student: what was installed again."""
        self.troubles: list[str] = []
        self.missing: dict[str, str] = {}
        """In a session: modules that the notebook lacks, each with its package."""
        self._known = NOTHING
        self._news = NOTHING
        self._sent: Installed | None = None
        self._failed: tuple[str, ...] = ()
        """What could not be installed again. The next session tries it again."""

    @property
    def allowed(self) -> Allowed:
        return Allowed() if self.overlay is None else self.overlay.allowed

    def copy(self) -> Packages:
        """In the notebook: a copy for one more session."""
        copied = Packages()
        copied._known = self._known
        return copied

    def restart(self) -> None:
        """The other end is a new process."""
        self._sent = None

    def look(self) -> Installed | None:
        """What the other end does not know yet; None: nothing."""
        self._news = (
            self._look(self.overlay) if self.overlay is not None else self._known._replace(notebook=found(sys.path))
        )
        return self._news if self._news != self._sent else None

    def commit(self, undo: OnUndo) -> None:
        """The result of the last `look` has been sent."""
        undo(partial(setattr, self, "_sent", self._sent))
        self._sent = self._news

    def apply(self, news: Installed, undo: OnUndo) -> None:
        """Never raises: what cannot be installed again is among the `troubles`."""
        undo(partial(vars(self).update, {"_known": self._known, "_sent": self._sent}))
        notebook = news.notebook if self.overlay is not None else self._known.notebook
        self._known = self._sent = news._replace(notebook=notebook)
        if self.overlay is not None:
            self._comparison.begin(dict(notebook))
            self._install(self.overlay, news)

    def has_newly_installed(self) -> bool:
        """In the notebook: whether it has since installed a package that only the session had."""
        had, self._known = self._known, self._known._replace(notebook=found(sys.path))
        new = dict(self._known.notebook).keys() - dict(had.notebook).keys()
        return any(name_of(pin) in new for pin in had.pins)

    def take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes

    def take_troubles(self, imported: Container[str]) -> list[str]:
        """`imported`: modules that the coming cell imports."""
        troubles, self.troubles = [*self.troubles, *self._comparison.news(imported)], []
        return troubles

    def _look(self, overlay: Overlay) -> Installed:
        from baton_shim.base.mirror import to_home

        here = overlay.pins()
        names = {name_of(pin) for pin in here}
        self.missing.clear()
        notebook = dict(self._known.notebook)
        for module, package in overlay.modules().items():
            if package not in notebook:
                self.missing[module] = package
        failed = [pin for pin in self._failed if name_of(pin) not in names]
        if not here and not failed:
            return NOTHING._replace(notebook=self._known.notebook)
        pins = [with_path(pin, to_home) for pin in here]
        sources = [tuple(to_home(word) for word in options) for options in overlay.sources()]
        return Installed(tuple(sorted([*pins, *failed])), tuple(sources), self._known.notebook)

    def _install(self, overlay: Overlay, news: Installed) -> None:
        from baton_shim.base.mirror import to_here

        here = {with_path(pin, to_here): pin for pin in news.pins}
        wanted = [pin for pin in here if pin not in overlay.pins()]
        if not wanted:
            return
        shown = " ".join(here[pin] for pin in wanted)
        sources = [tuple(to_here(word) for word in options) for options in news.sources]
        remember(overlay.folder, sources)
        failure = overlay.install(wanted, sources)
        if failure is None:
            self.notes.append(f"Installed again in the new session: {shown}")
            return
        self._failed = tuple(here[pin] for pin in wanted)
        self.troubles.append(
            f"{shown} could not be installed again in the new session ({failure}); a cell that needs it fails\n"
            "hint: install it again in a %%gpu cell"
        )


def begin() -> Packages:
    """In a session, before importing anything else that looks at `sys.path` or `sys.executable`."""
    folder, environment, *allowed = (os.environ.pop(n, "") for n in (FOLDER, ENVIRONMENT, MAY_INSTALL, HAS_NETWORK))
    yes = Allowed(*(word == "1" for word in allowed))
    return Packages(Overlay(folder, yes) if folder else None, environment)


def shared(path: Iterable[str]) -> frozenset[str]:
    """The names of all packages that are installed on the path."""
    return frozenset(dict(found(path)))


def found(path: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """All packages that are installed on the path, with the version that Python finds first."""
    folders = tuple((entry, changed_ns(entry)) for entry in path if os.path.basename(entry) in SHARED)
    newest = max((changed for _, changed in folders), default=0)
    return (packages_in if is_settled(newest) else packages_in.__wrapped__)(folders)


@lru_cache(maxsize=4)
def packages_in(folders: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    """`folders`: each with the time at which its entries last changed."""
    packages: dict[str, str] = {}
    for folder, _ in folders:
        for name in listed(folder):
            stem, extension = os.path.splitext(name)
            if extension in (".dist-info", ".egg-info"):
                package, _, version = stem.partition("-")
                packages.setdefault(canonical(package), version.partition("-")[0])
    return tuple(sorted(packages.items()))


def is_settled(changed: int) -> bool:
    """Whether a later change of a folder certainly gets another time."""
    return changed < time.time_ns() - SETTLED_NS


def changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def modules_of(package: Distribution) -> Iterable[str]:
    for file in package.files or ():
        first = file.parts[0]
        if not first.endswith((".dist-info", ".data")) and first not in ("..", "__pycache__"):
            yield first.partition(".")[0]


def pin_of(name: str, package: Distribution) -> str:
    import json

    origin = package.read_text("direct_url.json")
    return f"{name} @ {url_of(json.loads(origin))}" if origin else f"{name}=={package.version}"


def url_of(origin: dict[str, Any]) -> str:
    """The origin in pip's notation, from that of PEP 610."""
    url = str(origin["url"])
    if version_control := origin.get("vcs_info"):
        return f"{version_control['vcs']}+{url}@{version_control['commit_id']}"
    return url


def name_of(pin: str) -> str:
    return pin.partition(" @ ")[0].partition("==")[0]


def with_path(pin: str, move: Any) -> str:
    start, scheme, path = pin.partition(" @ file://")
    return f"{start}{scheme}{move(path)}"


def remember(folder: str, sources: Iterable[Iterable[str]]) -> None:
    import json

    with open(os.path.join(folder, SOURCES), "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(list(options))}\n" for options in sources)


def which(program: str, first: str) -> str | None:
    for folder in (first, *os.environ.get("PATH", os.defpath).split(os.pathsep)):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
