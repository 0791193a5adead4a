"""Names that are rebound to a view of their old object: `y = y.detach()`, `x = x[:20]`, `df = df.T`.

Each statement runs once in a control copy of the notebook, without tables, and once in the notebook or in the session.
Afterwards both are equal: values, forms, and who shares memory with whom.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from importlib.util import find_spec
from typing import Any

import pytest
from baton_shim.virtual import SWITCH
from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

ON = "HERE"  # replaced by `x` or `y` in each statement

MAKERS = {
    "arrow": ("import pyarrow as pa", "pa.table({'a': list(range(SIZE)), 'b': [str(n) for n in range(SIZE)]})"),
    "batch": ("import pyarrow as pa", "pa.record_batch({'a': list(range(SIZE))}).replace_schema_metadata({'k': 'v'})"),
    "texts": ("import pyarrow as pa", "pa.array([str(n) for n in range(SIZE)])"),
    "numpy": ("import numpy as np", "np.arange(SIZE * 1.0).reshape(-1, 4)"),
    "torch": ("import torch", "torch.arange(SIZE * 1.0).reshape(-1, 4)"),
    "cuda": ("import torch", "torch.arange(SIZE * 1.0, device='cuda').reshape(-1, 4)"),
    "leaf": ("import torch", "torch.nn.Parameter(torch.arange(SIZE * 1.0).reshape(-1, 4))"),
    "jax": ("import jax.numpy as jnp", "jnp.arange(SIZE * 1.0).reshape(-1, 4)"),
    "pandas": (
        "import numpy as np, pandas as pd",
        "pd.DataFrame(np.arange(SIZE * 1.0).reshape(-1, 4), columns=list('abcd'))",
    ),
    "text": ("import pandas as pd", "pd.DataFrame({'a': [str(n) for n in range(SIZE)], 'b': 'same'})"),
    "polars": ("import polars as pl", "pl.DataFrame({'a': list(range(SIZE)), 'b': ['x'] * SIZE})"),
    "bytes": ("", "memoryview(bytearray(SIZE)).obj"),
}
WAYS = {
    "arrow": (
        "HERE.slice(1)|HERE[:5]|HERE.select(['a'])|HERE.combine_chunks()|HERE.rename_columns([c + 'x' for c in HERE.column_names])|"
        "HERE.drop_columns([HERE.column_names[0]])|pa.concat_tables([HERE, HERE])|HERE.take([0, 1])|pa.table(HERE.to_pydict())|"
        "HERE.select([])"
    ),
    "batch": "HERE.slice(1)|HERE.select(['a'])|HERE.select([])|pa.Table.from_batches([HERE]).to_batches()[0]",
    "texts": "HERE.slice(1)|HERE[:5]|HERE.view(HERE.type)|HERE.dictionary_encode()|pa.concat_arrays([HERE, HERE])",
    "numpy": (
        "HERE.T|HERE[:5]|HERE[::-1]|HERE.reshape(-1)|HERE.view()|HERE[..., None]|HERE.squeeze()|HERE.copy()|"
        "HERE.view('i8').view('f8')|np.asarray(HERE)|np.atleast_2d(HERE)|HERE.astype(float, copy=False)|HERE[HERE > 1]|"
        "np.ascontiguousarray(HERE)|np.ravel(HERE)|np.broadcast_to(HERE, (2, *HERE.shape))|np.swapaxes(HERE, 0, -1)"
    ),
    "torch": (
        "HERE.detach()|HERE.T|HERE[:5]|HERE.reshape(-1)|HERE.view(-1)|HERE.view(2, -1)|HERE.permute(*range(HERE.dim())[::-1])|"
        "HERE.squeeze()|HERE.unsqueeze(0)|HERE.clone()|HERE.contiguous()|HERE.expand(2, *HERE.shape)|HERE.flatten()|"
        "HERE.data|torch.from_numpy(HERE.numpy())|torch.as_tensor(HERE)|HERE.cpu()|HERE[0]|HERE.chunk(2)[1]|HERE + 1|"
        "HERE.view(torch.int32).view(torch.float32)|torch.nn.Parameter(HERE)|HERE.set_(HERE.clone())|HERE.t_()"
    ),
    "cuda": (
        "HERE.detach()|HERE.T|HERE[:5]|HERE.reshape(-1)|HERE.view(2, -1)|HERE.unsqueeze(0)|HERE.clone()|HERE.data|HERE.cuda()|"
        "HERE.cpu().cuda()|HERE.expand(2, *HERE.shape)|HERE[0]|HERE + 1|torch.as_tensor(HERE)|HERE.set_(HERE.clone())|HERE.t_()"
    ),
    "leaf": (
        "HERE.detach()|torch.nn.Parameter(HERE.detach())|HERE.data|torch.nn.Parameter(HERE.data[:5])|HERE.detach().T|"
        "HERE.detach().requires_grad_()|torch.nn.Parameter(HERE.detach().clone())"
    ),
    "jax": "HERE.T|HERE[:5]|HERE.reshape(-1)|HERE.ravel()|HERE.squeeze()|jnp.asarray(HERE)|jnp.array(HERE)|HERE + 1|HERE[0]",
    "pandas": (
        "HERE.T|HERE[:5]|HERE[::-1]|HERE.copy()|HERE.iloc[1:]|HERE.reset_index(drop=True)|HERE.squeeze()|HERE.head(3)|"
        "pd.DataFrame(HERE)|pd.DataFrame(HERE.values)|HERE.loc[:, HERE.columns[:2]]|HERE.drop(columns=HERE.columns[0])|"
        "HERE.assign(new=1.0)|HERE.set_axis(range(len(HERE)))|HERE.rename(columns=str)|HERE.iloc[:, 0].to_frame()"
    ),
    "text": "HERE[:5]|HERE[::-1]|HERE.copy()|HERE.reset_index(drop=True)|HERE[['a']]|HERE.sort_values('a')|HERE.head(3)",
    "polars": "HERE[:5]|HERE.head(3)|HERE.select('a')|HERE.clone()|HERE.rechunk()|HERE.slice(1)|HERE.reverse()",
    "bytes": "bytes(HERE)|bytearray(HERE)|memoryview(HERE).obj|HERE[:5]|HERE[::-1]",
}  # fmt: skip
SIZES = (24, 40_000)
OF_TORCH = ("torch", "cuda", "leaf")

STEP = """
def attempt(statement):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(statement, globals())
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, KeyError, NameError, NotImplementedError) as error:
        return type(error).__name__
"""


def missing(library: str) -> list[str]:
    """The modules that its statements import and that this Python does not have (`oldest` and `newest` differ)."""
    return [module for module in re.findall(r"(?:import|,) (\w+)", MAKERS[library][0]) if find_spec(module) is None]


@st.composite
def histories(draw: Any) -> tuple[str, int, list[tuple[str, str]]]:
    library = draw(st.sampled_from([one for one in MAKERS if not missing(one)]))
    ways = WAYS[library].split("|")
    statements = [f"{to} = {way.replace(ON, source)}" for way in ways for to in "xy" for source in "xy"]
    others = ["x, y = y, x", "del y", "z = [x, y]", "z = None", "x = y", "y = x"]
    if library in OF_TORCH:
        others += ["x.data, y.data = y.data, x.data", "x.data = y.data", "x.data = x.data[:2]", "x.grad = x.detach()"]
    step = st.tuples(st.sampled_from([*statements, *others]), st.sampled_from(("home", "session", "session")))
    return library, draw(st.sampled_from(SIZES)), draw(st.lists(step, min_size=2, max_size=14))


@given(histories(), st.booleans())
def test_views_replace_views(processes: Pair, history: tuple[str, int, list[tuple[str, str]]], away: bool) -> None:
    library, size, steps = history
    check(processes, library, size, steps, away)


ALONE = [(one, way, size) for one in MAKERS for way in WAYS[one].split("|") for size in SIZES[one not in OF_TORCH :]]


@pytest.mark.parametrize(("library", "way", "size"), ALONE)
def test_one_after_the_other(processes: Pair, library: str, way: str, size: int) -> None:
    again = f"x = {way.replace(ON, 'x')}"
    check(processes, library, size, [(again, side) for side in "session session home session".split()], away=False)


def check(pair: Pair, library: str, size: int, steps: list[tuple[str, str]], away: bool) -> None:
    if library != "cuda":
        compare(pair, library, size, steps, away)
        return
    SWITCH.begin(session=False)
    SWITCH.turn(True)
    try:
        compare(pair, library, size, steps, away)
    finally:
        SWITCH.turn(False)


def compare(pair: Pair, library: str, size: int, steps: list[tuple[str, str]], away: bool) -> None:
    imports, maker = MAKERS[library]
    if modules := missing(library):
        pytest.skip(f"this environment lacks {', '.join(modules)}")
    pair.start_anew()
    pair.all_deferred = away
    control: dict[str, Any] = {"__name__": "__main__"}
    setup = f"import warnings\n{imports}\n{STEP}\n"
    exec(setup + f"x = {maker.replace('SIZE', str(size))}", control)
    pair.local(setup)
    makers = {"home": pair.local, "session": lambda code: remotely(pair, code)}
    makers[steps[0][1]](f"x = {maker.replace('SIZE', str(size))}")
    for statement, side in steps:
        code = f"said = attempt({statement!r})"
        exec(code, control)
        makers[side](code)
        if side == "home" or not away:
            assert pair.namespace.get("said") == control["said"]
            assert picture(pair.namespace) == picture(control), (statement, side)
    pair.local("")
    assert picture(pair.namespace) == picture(control)
    pair.all_deferred = False


def remotely(pair: Pair, code: str) -> None:
    names = [name for name in pair.namespace if not name.startswith("__")]
    deleted = [name for name in ("y",) if name not in pair.namespace]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pair.remote(code, *names, deleted=tuple(deleted)) == {"error": None}


def picture(namespace: dict[str, Any]) -> list[Any]:
    import numpy as np

    found: list[Any] = []
    seen: list[Any] = []
    for name in "xyz":
        for value in namespace.get(name) if type(namespace.get(name)) is list else [namespace.get(name)]:
            same = next((number for number, one in enumerate(seen) if one is value), None)
            seen.append(value)
            found.append(same if same is not None else (type(value).__name__, form(value), content(value)))
    arrays = [one for value in seen for one in memory_of(value)]
    return found + [np.shares_memory(left, right) for left in arrays for right in arrays]


def form(value: Any) -> Any:
    return [
        getattr(value, name, None) for name in ("shape", "num_rows", "schema", "dtype", "requires_grad", "is_leaf")
    ] + [value.stride() if type(value).__module__.startswith("torch") else None]


def content(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return repr(value.to_dict())
    if hasattr(value, "to_pydict"):
        return value.to_pydict()
    return value.tolist() if hasattr(value, "tolist") else value


def memory_of(value: Any) -> list[Any]:
    """Its memory, as arrays; none if it does not say where that is."""
    import numpy as np

    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        return [array_at(value.data_ptr(), value.shape, value.stride(), value.element_size())]
    if library == "jaxlib":
        return [array_at(value.unsafe_buffer_pointer(), (value.size,), (1,), value.itemsize)]
    if library == "pandas":
        columns = [value.iloc[:, number] for number in range(min(value.shape[1], 8))] if value.ndim == 2 else [value]
        return [column.to_numpy() for column in columns]
    if library == "polars":
        return [column.to_numpy(allow_copy=False) for column in value if column.dtype.is_numeric()]
    return [value] if isinstance(value, np.ndarray) else []


def array_at(address: int, shape: Any, strides: Any, item_bytes: int) -> Any:
    import numpy as np

    if 0 in shape:
        return np.empty(0)
    extent = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
    memory = np.ctypeslib.as_array((ctypes.c_ubyte * (extent * item_bytes)).from_address(address))
    steps = [stride * item_bytes for stride in strides]
    return np.lib.stride_tricks.as_strided(memory, (*shape, item_bytes), (*steps, 1))
