"""What a program finds in a stock ipykernel and in ours: the same, except for a list of differences.

Each difference is accepted for a reason. The test fails if one is not in the list, and also if an entry of the list no
longer matches a difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from end_to_end import Kernel

FACTS = """
import atexit, builtins, copyreg, functools, gc, json, logging, signal, sys, threading, types, warnings

shell = get_ipython()
kernel = shell.kernel
found = []


def name(one):
    while isinstance(one, (staticmethod, classmethod, types.MethodType)):
        one = one.__func__
    return getattr(one, "__qualname__", None) or type(one).__qualname__


def note(place, values):
    found.extend(f"{place}: {value}" for value in values)


def code_of(one):
    while isinstance(one, (staticmethod, classmethod, types.MethodType)):
        one = one.__func__
    if isinstance(one, property):
        one = one.fget
    return getattr(one, "__code__", None) if isinstance(one, types.FunctionType) else None


def note_replaced(place, one):
    code = code_of(one)
    if code is not None and "/baton_shim/" in code.co_filename:
        found.append(f"replaced {place}")
    elif isinstance(one, type) and str(one.__module__).startswith("baton_shim"):
        found.append(f"replaced {place}")


note("sys.meta_path", map(name, sys.meta_path))
note("sys.path_hooks", map(name, sys.path_hooks))
note("sys.path", sys.path)
note("sys.modules", (one for one in sys.modules if not one.startswith("encodings.")))  # which caches decide
note("hook", map(name, (sys.displayhook, sys.excepthook, sys.breakpointhook, threading.excepthook, sys.unraisablehook)))
note("stream", (f"{type(one).__module__}.{name(one)}" for one in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__)))
note("builtins", dir(builtins))
note("__main__", vars(sys.modules["__main__"]))
note("signal", ((int(one), str(signal.getsignal(one)).partition(" at 0x")[0]) for one in signal.valid_signals()))
note("thread", (one.name for one in threading.enumerate()))
note("warnings", map(repr, warnings.filters))
note("environment", __import__("os").environ)
note("limit", (sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), sys.flags))
note("logging", map(name, logging.root.handlers))
note("gc", map(name, gc.callbacks))
note("copyreg", copyreg.dispatch_table)
for event, callbacks in shell.events.callbacks.items():
    note(f"event {event}", map(name, callbacks))
for place in ("ast_transformers", "input_transformers_cleanup", "input_transformers_post"):
    note(place, map(name, getattr(shell, place)))
for kind, magics in shell.magics_manager.magics.items():
    note(f"{kind} magic", magics)
note("matcher", map(name, shell.Completer.custom_matchers))
note("configured", (section for section in shell.config if section != "IPKernelApp"))
note("class", (type(one).__qualname__ for one in (shell, kernel, kernel.session, shell.events, shell.compile)))
for module, one in list(sys.modules.items()):
    if not isinstance(one, types.ModuleType) or module.startswith(("__main__", "__mp_main__", "baton_shim")):
        continue
    for key, value in list(vars(one).items()):
        note_replaced(f"{module}.{key}", value)
        if isinstance(value, type) and value.__module__ == module:
            for part, inner in list(vars(value).items()):
                note_replaced(f"{module}.{key}.{part}", inner)
objects = {"shell": shell, "kernel": kernel, "session": kernel.session, "events": shell.events}
objects |= {"formatter": shell.display_formatter, "comms": kernel.comm_manager, "compile": shell.compile}
for place, one in objects.items():
    note(f"{place} has", vars(one))
    for key, value in vars(one).items():
        note_replaced(f"{place}.{key}", value)
for kind, handler in kernel.shell_handlers.items():
    note_replaced(f"handler {kind}", handler)
print(json.dumps(found))
"""

NOTED = "a %%gpu cell is told what a program registered, which the library shows to nobody"
ACCEPTED = {
    # ---- Baton's own features
    r"(cell|line) magic: %?(gpu|gpu_\w+|both)": "the magics",
    r"cell magic: (?i:gpu):?": "spellings of %%gpu that are explained",
    r"matcher: register\.<locals>\.gpu_matcher": "Tab offers their options",
    r"input_transformers_cleanup: (hoist|as_comment)": "how their first line is read",
    r"event (pre|post)_(run_cell|execute): (Watch|Home|BothRecorder)\._?\w+": "hints, %%both, output after a cell",
    r"event pre_run_cell: begin\.<locals>\.cell_begins": "`with gpu:` is looked for in cells that mention `baton`",
    r"sys\.modules: (baton_shim(\..*)?|IPython\.core\.magic_arguments)": "its modules",
    r"environment: BATON_SCANNER": "where the library is that looks for changed memory",
    # ---- another way to start, and a proxy that does some of ipykernel's work
    r"sys\.modules: (psutil(\..*)?|pwd|resource)": "clients reach the proxy, so the kernel looks for no addresses",
    r"configured: Kernel": "no pause of 0.5 ms after each cell, since the proxy misses no output",
    r"stream: (ipykernel\.iostream\.OutStream|baton_shim\.base\.streams\.Stream)": "flushing nothing costs nothing",
    # ---- interrupts strike only the student's code
    r"(shell has: |replaced shell\.)(run_code|user_expressions)": "interrupts",
    r"(kernel has: |replaced kernel\.)pre_handler_hook": "interrupts",
    r"(session has: |replaced session\.)send": "interrupts",
    r"(events has: |replaced events\.)trigger": "interrupts",
    r"replaced handler \w+": "interrupts",
    # ---- results of a %%gpu cell are shown like those of any cell
    r"(shell has: |replaced shell\.)(showtraceback|set_custom_exc|debugger)": "errors of %%gpu cells",
    r"(formatter has: |replaced formatter\.)format": "values of %%gpu cells",
    # ---- the session loads the source that the notebook loaded
    r"replaced _frozen_importlib_external\.(SourceFileLoader\.path_stats|FileFinder\.find_spec)": "own modules",
    # ---- recorded calls
    r"replaced (codecs|encodings|copyreg|csv|shutil|threading|logging|gettext|calendar|mimetypes|os)\.\w+": NOTED,
    r"replaced sqlite3\.register_(adapter|converter)": NOTED,
    r"replaced IPython\.(core\.formatters\.BaseFormatter|lib\.pretty)\.for_type(_by_name)?": NOTED,
}
OF_LIBRARIES = {
    r"replaced PIL\.Image\.frombuffer": "Pillow keeps no reference to the memory that an image shows",
    r"replaced (matplotlib|torch)\.[\w.]+\.(register\w*|unregister|addfont|enable_\w+|preferred_\w+)": NOTED,
    r"replaced torch\.(set_flush_denormal|set_warn_always)": NOTED,
    r"replaced urllib\.request\.install_opener": NOTED,
    r"replaced tqdm\.std\.tqdm\.pandas": NOTED,
}
VIRTUAL = {
    r"replaced (torch|threading|baton_shim)\b.*": "virtual CUDA",
    r"replaced (traceback\._?walk_tb\w*|warnings\._showwarnmsg)": "reports without frames of virtual CUDA",
    r"sys\.modules: .*": "what virtual CUDA loads",
}
LOAD = "import matplotlib.pyplot, numpy, pandas, PIL.Image, torch, tqdm"


@pytest.mark.parametrize("virtual", ["off", "on"])
def test_a_program_finds_the_same(new_kernel: Callable[..., Kernel], virtual: str) -> None:
    stock, ours = (new_kernel(name, BATON_VIRTUAL_CUDA=virtual) for name in ("python3", "baton"))
    check(facts(stock), facts(ours), ACCEPTED)
    for kernel in (stock, ours):
        kernel.run(LOAD).ok()
    check(facts(stock), facts(ours), ACCEPTED | OF_LIBRARIES | (VIRTUAL if virtual == "on" else {}))


def facts(kernel: Kernel) -> set[str]:
    return set(json.loads(kernel.run(FACTS).ok().stdout))


def check(stock: set[str], ours: set[str], accepted: dict[str, str]) -> None:
    """`accepted`: patterns, each with its reason."""
    differences = stock ^ ours
    used = {pattern for pattern in accepted for one in differences if re.fullmatch(pattern, one)}
    alien = [one for one in differences if not any(re.fullmatch(pattern, one) for pattern in accepted)]
    assert not alien, "\n".join(sorted(alien))
    assert not accepted.keys() - used, "\n".join(sorted(accepted.keys() - used))
