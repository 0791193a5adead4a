"""Describes every name of a notebook as lines of text, in the notebook kernel: values, types and what is shared.

Objects are visited breadth first; an object that was visited before is written as the path of its first visit. Memory
of arrays and tensors is numbered in the same way, so two views of one array name the same memory. Describing changes
nothing.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import gc
import hashlib
import logging
import pathlib
import re
import sys
import threading
import traceback
import types
import weakref

MOST_OBJECTS = 20_000
ATOMS = (int, float, complex, bool, str, bytes, type(None), range, type(Ellipsis), type(NotImplemented))
OF_IPYTHON = {"In", "get_ipython", "exit", "quit", "open"}
OF_CLASSES = set(
    "__dict__ __weakref__ __module__ __firstlineno__ __static_attributes__ __slotnames__ _abc_impl __abstractmethods__ "
    "__annotations_cache__ __annotate_func__ __classdictcell__".split()
)
DICT_VIEWS = tuple(type(getattr({}, name)()) for name in ("keys", "values", "items"))
WEAK_DICTS = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
ITERATORS = tuple(type(iter(kind())) for kind in (list, tuple, str, bytes, dict, set))
WRITTEN = (pathlib.PurePath, re.Pattern, types.UnionType, types.GenericAlias, types.ClassMethodDescriptorType)
OF_CACHES = ("_inverted_", "_cache")
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def describe(namespace):
    names = sorted(name for name in namespace if not name.startswith("_") and name not in OF_IPYTHON)
    describer = Describer(namespace)
    describer.waiting.extend((name, namespace[name]) for name in names)
    return describer.run()


class Describer:
    def __init__(self, namespace):
        self.namespace = namespace
        self.waiting = collections.deque()
        self.met = {id(namespace): "the namespace"}
        self.kept = []
        self.lines = []
        self.memories = []  # (start, end, path)

    def run(self):
        while self.waiting and len(self.met) < MOST_OBJECTS:
            path, obj = self.waiting.popleft()
            if type(obj) in ATOMS:
                self.lines.append(f"{path} = {short(obj)}")
            elif id(obj) in self.met:
                self.lines.append(f"{path} is {self.met[id(obj)]}")
            else:
                self.met[id(obj)] = path
                self.kept.append(obj)
                try:
                    text = self.text(path, obj)
                except Exception as error:
                    text = f"{kind_of(obj)} that fails: {type(error).__name__}: {error}"
                self.lines.append(ADDRESS.sub("0x...", f"{path}: {text}"))
        return [line.replace("\n", "\\n") for line in self.lines]

    def below(self, path, obj):
        self.waiting.append((path, obj))

    def text(self, path, obj):
        for base, method in self.methods():
            if isinstance(obj, base):
                found = method(path, obj)
                if found is not None:
                    return found
        return self.instance(path, obj)

    def methods(self):
        yield types.ModuleType, lambda path, obj: f"module {obj.__name__}"
        yield types.FunctionType, self.function
        yield types.CellType, self.cell
        yield type, self.type
        yield enum.Enum, self.member
        yield functools._lru_cache_wrapper, self.cached
        yield types.CodeType, lambda path, obj: f"code {digest(obj.co_code)} {obj.co_names} {obj.co_freevars}"
        yield types.MethodType, self.method
        yield types.BuiltinFunctionType, self.builtin
        yield property, self.property
        yield (classmethod, staticmethod), lambda path, obj: self.parts(path, obj, kind_of(obj), {"func": obj.__func__})
        yield weakref.ref, lambda path, obj: self.parts(path, obj, "weakref", {"target": obj()})
        yield DICT_VIEWS, self.dict_view
        yield re.Match, lambda path, obj: f"match {obj.re} {obj.regs} {obj.pos} {obj.endpos} {obj.string!r}"
        yield WRITTEN, lambda path, obj: f"{kind_of(obj)} {obj!r}"
        yield ITERATORS, self.iterator
        yield weakref.WeakSet, lambda path, obj: self.below(f"{path}.elements", set(obj)) or "WeakSet"
        yield WEAK_DICTS, lambda path, obj: self.below(f"{path}.items", dict(obj)) or kind_of(obj)
        yield types.MappingProxyType, lambda path, obj: self.below(f"{path}.copy", dict(obj)) or "mappingproxy"
        yield (type(threading.Lock()), type(threading.RLock()), memoryview), lambda path, obj: kind_of(obj)
        yield (bytearray, array.array), lambda path, obj: self.attributes(path, obj) or f"{kind_of(obj)} {short(obj)}"
        yield logging.Manager, lambda path, obj: kind_of(obj)  # it also holds the loggers of libraries
        yield BaseException, self.exception
        yield from of_libraries(self)

    # ---- Python's own types

    def parts(self, path, obj, text, parts):
        for name, part in parts.items():
            self.below(f"{path}.{name}", part)
        return text

    def attributes(self, path, obj):
        for name, value in sorted(getattr(obj, "__dict__", {}).items(), key=lambda pair: str(pair[0])):
            if name not in OF_CACHES:
                self.below(f"{path}.{name}", value)

    def function(self, path, obj):
        if obj.__module__ != "__main__":
            return f"function {obj.__module__}.{obj.__qualname__}"
        self.below(f"{path}.__code__", obj.__code__)
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False):
            self.below(f"{path}<{name}>", cell)
        for number, value in enumerate(obj.__defaults__ or ()):
            self.below(f"{path}(default {number})", value)
        for name, value in sorted((obj.__kwdefaults__ or {}).items()):
            self.below(f"{path}({name}=)", value)
        self.attributes(path, obj)
        bound = "here" if obj.__globals__ is self.namespace else "ELSEWHERE"
        return f"function {obj.__qualname__} bound {bound} {obj.__doc__!r} {obj.__annotations__!r}"

    def cell(self, path, obj):
        try:
            self.below(f"{path}.contents", obj.cell_contents)
        except ValueError:
            return "empty cell"
        return "cell"

    def type(self, path, obj):
        if obj.__module__ != "__main__":
            return f"class {kind_name(obj)}"
        for name, value in sorted(vars(obj).items()):
            if name not in OF_CLASSES:
                self.below(f"{path}.{name}", value)
        for number, base in enumerate(obj.__bases__):
            self.below(f"{path}.__bases__[{number}]", base)
        abstract = sorted(getattr(obj, "__abstractmethods__", ()))
        return f"class {obj.__qualname__} of {kind_name(type(obj))} abstract {abstract}"

    def member(self, path, obj):
        self.below(f"{path}.__class__", type(obj))
        self.attributes(path, obj)
        return f"member {obj!r} registered {type(obj).__members__.get(obj.name) is obj}"

    def cached(self, path, obj):
        self.below(f"{path}.__wrapped__", obj.__wrapped__)
        return f"lru_cache {obj.cache_parameters()} {obj.cache_info()}"

    def method(self, path, obj):
        return self.parts(path, obj, "method", {"self": obj.__self__, "func": obj.__func__})

    def property(self, path, obj):
        return self.parts(path, obj, "property", {"get": obj.fget, "set": obj.fset, "delete": obj.fdel})

    def builtin(self, path, obj):
        if not isinstance(obj.__self__, (types.ModuleType, type(None))):
            self.below(f"{path}.__self__", obj.__self__)
        return f"builtin {obj.__qualname__}"

    def dict_view(self, path, obj):
        self.below(f"{path}.mapping", next(part for part in gc.get_referents(obj) if isinstance(part, dict)))
        return kind_of(obj)

    def iterator(self, path, obj):
        """The source of an exhausted iterator is invisible."""
        form = obj.__reduce__()
        if not form[1] or (len(form) < 3 and not form[1][0]) or (len(form) > 2 and not len(form[1][0])):
            return f"{kind_of(obj)} at its end"
        return kind_of(obj) + self.reduced(path, obj)

    def exception(self, path, obj):
        self.parts(path, obj, "", {"args": obj.args, "__cause__": obj.__cause__, "__context__": obj.__context__})
        self.attributes(path, obj)
        self.below(f"{path}.__class__", type(obj))
        raised = [(frame.lineno, frame.name) for frame in traceback.extract_tb(obj.__traceback__)]
        return f"{kind_of(obj)} {str(obj)!r} suppress {obj.__suppress_context__} raised at {raised}"

    def instance(self, path, obj):
        known = contents = False
        if isinstance(obj, dict):
            known = contents = True
            base = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
            for number, (key, value) in enumerate(base.items(obj)):
                if type(key) in ATOMS:
                    self.below(f"{path}[{short(key)}]", value)
                else:
                    self.below(f"{path}.key {number}", key)
                    self.below(f"{path}.value {number}", value)
            if isinstance(obj, collections.defaultdict):
                self.below(f"{path}.default_factory", obj.default_factory)
        elif isinstance(obj, (list, tuple, collections.deque)):
            known = contents = True
            base = next(base for base in (list, tuple, collections.deque) if isinstance(obj, base))
            for number, value in enumerate(base.__iter__(obj)):
                self.below(f"{path}[{number}]", value)
        elif isinstance(obj, (set, frozenset)):
            known = contents = True
            for number, value in enumerate(sorted(obj, key=stable)):
                self.below(f"{path}.element {number}", value)
        for kind in type(obj).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    name = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
                    known = True
                    self.below(f"{path}.{name}", getattr(obj, name, "not set"))
        if hasattr(obj, "__dict__"):
            known = True
            self.attributes(path, obj)
        if type(obj).__module__ == "__main__":
            self.below(f"{path}.__class__", type(obj))
        text = kind_of(obj)
        if contents:
            text += f" of {base_length(obj)}"
        if isinstance(obj, collections.deque):
            text += f" at most {obj.maxlen}"
        if isinstance(obj, ATOMS):
            text += f" {short(next(base for base in ATOMS if isinstance(obj, base))(obj))}"
        elif not known:
            text += self.reduced(path, obj)
        return text

    def reduced(self, path, obj):
        form = obj.__reduce_ex__(4)
        if isinstance(form, str):
            return f" by name {form}"
        for number, part in enumerate(form[1]):
            self.below(f"{path}.argument {number}", part)
        if len(form) > 2:
            self.below(f"{path}.state", form[2])
        for number, part in enumerate(list(form[3] or ()) if len(form) > 3 else ()):
            self.below(f"{path}[{number}]", part)
        return " "

    # ---- memory

    def memory(self, path, start, size):
        if not size:
            return "no memory"
        for low, high, owner in self.memories:
            if low <= start and start + size <= high:
                return f"memory of {owner} + {start - low}"
        overlapping = [owner for low, high, owner in self.memories if start < high and low < start + size]
        self.memories.append((start, start + size, path))
        return f"memory overlapping {overlapping}" if overlapping else "memory"


def of_libraries(describer):
    numpy, pandas, torch = (sys.modules.get(name) for name in ("numpy", "pandas", "torch"))
    if numpy is not None:
        yield numpy.ndarray, lambda path, obj: of_array(describer, path, obj)
        yield numpy.generic, lambda path, obj: f"{obj.dtype} {obj!r}"
        yield numpy.dtype, lambda path, obj: f"dtype {obj.descr if obj.names else obj.str} {obj.metadata}"
        yield (
            numpy.random.Generator,
            lambda path, obj: describer.below(f"{path}.bits", obj.bit_generator) or "Generator",
        )
        yield numpy.random.RandomState, lambda path, obj: f"RandomState {digest(repr(obj.get_state()))}"
        yield numpy.random.BitGenerator, lambda path, obj: f"{kind_of(obj)} {obj.state}"
    if pandas is not None:
        yield pandas.DataFrame, lambda path, obj: of_frame(describer, path, obj)
        yield pandas.Series, lambda path, obj: of_series(describer, path, obj)
        yield pandas.Index, lambda path, obj: of_index(path, obj)
    if torch is not None:
        yield torch.Tensor, lambda path, obj: of_tensor(describer, path, obj)
        yield torch.Generator, lambda path, obj: f"torch generator {digest(obj.get_state().numpy().tobytes())}"
        yield (torch.dtype, torch.device), lambda path, obj: repr(obj)
    if "polars" in sys.modules:
        polars = sys.modules["polars"]
        yield polars.DataFrame, lambda path, obj: f"frame {obj.schema} {obj.rows()}"
        yield polars.Series, lambda path, obj: f"series {obj.name} {obj.dtype} {obj.to_list()}"
        yield polars.LazyFrame, lambda path, obj: f"lazy frame {obj.explain(optimized=False)}"
        yield polars.Expr, lambda path, obj: f"expression {obj}"
    if "sympy" in sys.modules:
        sympy = sys.modules["sympy"]
        yield sympy.Basic, lambda path, obj: f"{kind_of(obj)} {sympy.srepr(obj)}"
    if "PIL.Image" in sys.modules:
        yield sys.modules["PIL.Image"].Image, lambda path, obj: of_image(describer, path, obj)
    if "jax" in sys.modules and numpy is not None:
        yield type(sys.modules["jax"].jit(len)), lambda path, obj: kind_of(obj)
        yield sys.modules["jax"].Array, lambda path, obj: of_jax(obj)
    if "matplotlib.figure" in sys.modules:
        yield sys.modules["matplotlib.cbook"].CallbackRegistry, lambda path, obj: f"callbacks {sorted(obj.callbacks)}"
        yield sys.modules["matplotlib.figure"].Figure, lambda path, obj: of_figure(describer, path, obj)
        yield sys.modules["matplotlib.artist"].Artist, lambda path, obj: of_artist(describer, path, obj)
    if "pandas._libs.sparse" in sys.modules:
        yield sys.modules["pandas._libs.sparse"].SparseIndex, lambda path, obj: repr(obj)
    if "sklearn.tree._tree" in sys.modules:
        yield (
            sys.modules["sklearn.tree._tree"].Tree,
            lambda path, obj: describer.below(f"{path}.state", obj.__getstate__()) or kind_of(obj),
        )


def of_array(describer, path, obj):
    describer.attributes(path, obj)
    plain = obj.view(sys.modules["numpy"].ndarray)
    if obj.dtype.hasobject:
        content = "of objects"
        for number, value in enumerate(plain.ravel().tolist()):
            describer.below(f"{path}[{number}]", value)
    else:
        content = f"{short(plain.tolist())} {digest(repr(plain.tolist()) if plain.dtype.names else plain.tobytes())}"
    flags = "".join(name for name in ("C", "F") if getattr(obj.flags, f"{name.lower()}_contiguous"))
    flags += " writeable" if obj.flags.writeable else " read-only"
    low = high = plain.__array_interface__["data"][0]
    for length, stride in zip(obj.shape, obj.strides, strict=True):
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    memory = describer.memory(path, low, high + obj.itemsize - low if obj.size else 0)
    if isinstance(obj.base, sys.modules["numpy"].ndarray):
        describer.below(f"{path}.base", obj.base)
    if hasattr(obj, "mask"):
        describer.below(f"{path}.mask", obj.mask)
    dtype = obj.dtype.descr if obj.dtype.names else obj.dtype.str
    return f"{kind_of(obj)} {dtype} {obj.shape} {obj.strides} {flags} {memory} {content}"


def of_frame(describer, path, obj):
    describer.below(f"{path}.columns", obj.columns)
    describer.below(f"{path}.index", obj.index)
    describer.below(f"{path}.attrs", obj.attrs)
    for number in range(obj.shape[1]):
        column = obj.iloc[:, number]
        describer.lines.append(f"{path}[{number}] {column.dtype} {short(column.tolist())}")
    for number, block in enumerate(obj._mgr.blocks):
        describer.lines.append(f"{path} block {number} {block_memory(describer, path, number, block)}")
    return f"{kind_of(obj)} {obj.shape} {obj.flags}"


def block_memory(describer, path, number, block):
    values = block.values
    memory = ""
    if isinstance(values, sys.modules["numpy"].ndarray) and values.size:
        low, high = sys.modules["numpy"].lib.array_utils.byte_bounds(values)
        memory = describer.memory(f"{path} block {number}", low, high - low)
    return f"{type(values).__name__} {block.mgr_locs.as_array.tolist()} {memory}"


def of_series(describer, path, obj):
    describer.below(f"{path}.index", obj.index)
    describer.below(f"{path}.name", obj.name)
    describer.below(f"{path}.attrs", obj.attrs)
    memory = block_memory(describer, path, 0, obj._mgr.blocks[0])
    return f"{kind_of(obj)} {obj.dtype} {short(obj.tolist())} {memory}"


def of_index(path, obj):
    return f"{kind_of(obj)} {obj.dtype} {list(obj.names)} {short(obj.tolist())}"


def of_tensor(describer, path, obj):
    describer.attributes(path, obj)
    if obj.is_leaf:
        describer.below(f"{path}.grad", obj.grad)
    if obj.is_sparse:
        form = f"{obj.device} {obj.dtype} {tuple(obj.shape)} grad {obj.requires_grad} coalesced {obj.is_coalesced()}"
        return f"sparse {kind_of(obj)} {form} {short(obj.detach().to_dense().tolist())}"
    storage = obj.untyped_storage() if hasattr(obj, "untyped_storage") else obj.storage()  # torch 1.13
    memory = describer.memory(path, storage.data_ptr(), storage.nbytes())
    form = f"{obj.device} {obj.dtype} {tuple(obj.shape)} {obj.stride()} + {obj.storage_offset()}"
    form += f" grad {obj.requires_grad}"
    return f"{kind_of(obj)} {form} {memory} {short(obj.detach().tolist())}"


def of_image(describer, path, obj):
    describer.below(f"{path}.info", obj.info)
    return f"image {obj.mode} {obj.size} {digest(obj.tobytes())} {obj.getpalette() and len(obj.getpalette())}"


def of_jax(obj):
    keys = str(obj.dtype).startswith("key<")
    plain = sys.modules["jax"].random.key_data(obj) if keys else obj
    return f"jax {obj.dtype} {obj.shape} {sys.modules['numpy'].asarray(plain).tolist()}"


def of_figure(describer, path, obj):
    import io

    file = io.BytesIO()
    obj.savefig(file, format="raw", dpi=50)
    describer.below(f"{path}.axes", obj.axes)
    pyplot = sys.modules.get("matplotlib.pyplot")
    numbers = [n for n in pyplot.get_fignums() if pyplot.figure(n) is obj] if pyplot is not None else []
    return f"{kind_of(obj)} {obj.get_size_inches().tolist()} {digest(file.getvalue())} open as {numbers}"


def of_artist(describer, path, obj):
    describer.below(f"{path}.figure", obj.get_figure())
    describer.below(f"{path}.axes", getattr(obj, "axes", None))
    if hasattr(obj, "get_lines"):
        describer.below(f"{path}.lines", list(obj.get_lines()))
    return f"{kind_of(obj)} {obj.get_label()!r}"


def kind_name(kind):
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def kind_of(obj):
    return kind_name(type(obj))


def base_length(obj):
    base = next(base for base in (dict, list, tuple, collections.deque, set, frozenset) if isinstance(obj, base))
    return base.__len__(obj)


def stable(obj):
    return type(obj).__name__, ADDRESS.sub("", repr(obj))


def digest(data):
    return hashlib.blake2b(data if isinstance(data, bytes) else str(data).encode(), digest_size=6).hexdigest()


def short(obj):
    text = ADDRESS.sub("0x...", repr(obj))
    return text if len(text) < 160 else f"{text[:140]}... {len(text)} {digest(text)}"
