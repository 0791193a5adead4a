"""Views of torch tensors: autograd knows the tensor of which another one is a view, its base.

Both share the count of in-place changes, and a change of one changes the graph of the other. So a view is sent with its
base, from which the other kernel creates it. With a base come its gradient, attributes and hooks, and its whole memory.
"""

from __future__ import annotations

import sys
from typing import Any

from baton_shim.base.storages import range_of, storage_of

Origin = tuple[Any, int]
"""The base of a view, and the number of the mode in which the view was created, which limits changes of it."""


def origin_of(view: Any, base: Any) -> Origin:
    return base, int(_autograd()._get_creation_meta(view))


def shares_memory(view: Any, base: Any) -> bool:
    """Whether it still has the memory of its base. `.data = …` changes that."""
    return range_of(storage_of(view)) == range_of(storage_of(base)) and view.device == base.device


def view_like(tensor: Any, kind: type, origin: Origin) -> Any:
    """A view of the base that looks like a new plain tensor, but has this class; None if there is no such view."""
    module: Any = sys.modules["torch"]
    base, created = origin
    if not isinstance(base, module.Tensor) or base.device != tensor.device or base.layout is not module.strided:
        return None  # it is a stand-in, for example
    with module.no_grad():
        view = _view_of_memory(base, tensor)
        if view is None:  # the base gets its memory later in this message
            view = base.as_strided(base.size(), base.stride(), base.storage_offset())
            view.data = tensor
        view = view if type(view) is kind else view.as_subclass(kind)
    _autograd()._set_creation_meta(view, _autograd().CreationMeta(created))
    return view


def new_of_same_base(view: Any) -> Any:
    """Another view of the same base and the same memory, without a computation graph."""
    with sys.modules["torch"].no_grad():
        values = view.detach()
    return view_like(values, type(view), origin_of(view, view._base))


def _view_of_memory(base: Any, tensor: Any) -> Any:
    """The view of the base with a tensor's form and memory; None if that is not memory of the base."""
    (low, high), (first, end) = range_of(storage_of(base)), range_of(storage_of(tensor))
    start = first + tensor.storage_offset() * tensor.element_size()
    if not (low <= first and end <= high) or (start - low) % tensor.element_size():
        return None
    whole = _with_type_of(base, tensor)
    if whole.dtype != tensor.dtype:
        return None
    return whole.as_strided(tensor.size(), tensor.stride(), (start - low) // tensor.element_size())


def _with_type_of(base: Any, tensor: Any) -> Any:
    """The base itself, or all of its memory as numbers of another kind. torch has views of complex numbers' parts."""
    module: Any = sys.modules["torch"]
    if base.is_complex() == tensor.is_complex():
        whole = base
    elif base.is_complex():
        count = storage_of(base).nbytes() // base.element_size()
        whole = module.view_as_real(base.as_strided((count,), (1,), 0))
    else:
        pairs = storage_of(base).nbytes() // base.element_size() // 2
        whole = module.view_as_complex(base.as_strided((pairs, 2), (2, 1), 0))
    if whole.is_conj() != tensor.is_conj():
        whole = whole.conj()
    return whole._neg_view() if whole.is_neg() != tensor.is_neg() else whole


def _autograd() -> Any:
    return sys.modules["torch"]._C._autograd
