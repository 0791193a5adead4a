"""Computation graphs of torch: a graph stays in the kernel that computed it; its tensor is sent with its values.

In the other kernel, the tensor has a node of the same name instead of its graph. Anything that needs the graph (a
backward pass, an access to earlier nodes) raises `StandInError`, which says where the graph is.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple, NoReturn

from baton_shim.state.kinds.bases import new_of_same_base
from baton_shim.state.refusal import StandInError, where_it_is

ONE_CELL = "put the forward pass and its backward() into one cell"
NO_GRADIENT = "The parameters behind it got no gradient from this backward(): their .grad is unchanged, or None"
_HOOK = "baton changed elsewhere"
_OF_BASE = "baton graph of the base"
"""Marks the node of a view whose graph came from the other kernel with that of its base. Its value is the `home`."""


class Graph(NamedTuple):
    """The graph of a computed tensor: the name of its last node, and whether the notebook kernel has the graph."""

    node: str
    home: bool


def node_of(tensor: Any) -> Any:
    """The last node of its computation graph; None without a valid one."""
    return None if has_invalid_graph(tensor) else tensor.grad_fn


def has_invalid_graph(tensor: Any) -> bool:
    """Whether torch shows `grad_fn=<Invalid>`: for a view from `no_grad` mode whose base has changed."""
    try:
        tensor.grad_fn  # noqa: B018 - it is computed
    except RuntimeError:
        return True
    return False


def is_computed(tensor: Any) -> bool:
    """Whether it has a computation graph, valid or not. For such a tensor, torch warns of access to its gradient."""
    return has_invalid_graph(tensor) or tensor.grad_fn is not None


def graph_of(tensor: Any, home: bool) -> Graph | None:
    """`home`: whether this is the notebook kernel."""
    node = node_of(tensor)
    if node is None:
        return None
    if is_stand_in(node):
        home = node.home
    home = node.metadata.get(_OF_BASE, home)
    name = type(node).__name__
    return Graph(node.name().rpartition("::")[2] if name == "CppFunction" else name, home)


def set_graph(tensor: Any, graph: Graph, home: bool) -> None:
    """Gives the tensor its graph, which this kernel has already if it is the one that computed it."""
    if tensor._base is not None and follow_base(tensor, graph, home):
        return
    node = node_of(tensor)
    if node is None:
        leave_graph(tensor, graph, home)
    elif is_stand_in(node):
        # torch cannot give a tensor that retains its gradient another node.
        if graph_of(tensor, home) != graph and not tensor.retains_grad:
            drop_graph(tensor)
            leave_graph(tensor, graph, home)
    else:
        hook = node.metadata.pop(_HOOK, None)
        if hook is not None:
            hook.remove()
        if graph.home != home:
            text = f"This tensor and its computation graph were changed in {_cells(graph.home)} cells"
            node.metadata[_HOOK] = node.register_prehook(functools.partial(_stop, text))


def follow_base(view: Any, graph: Graph, home: bool) -> bool:
    """Gives a view the graph that follows from that of its base, which has its own already. Returns whether it did."""
    base, node = view._base, node_of(view)
    if node is not None and _OF_BASE not in node.metadata and not is_stand_in(node_of(base)):
        return False
    if node is None and base.requires_grad:  # torch computes the graph of a view after a change of its base
        count_change(base)
    elif node is None:  # the base has lost its graph since
        leave_graph(view, graph, home)
        base.detach_()
    if (node := node_of(view)) is not None:
        node.metadata[_OF_BASE] = graph.home
    return True


def count_change(tensor: Any) -> None:
    """Counts an in-place change that happened in the other kernel, so that earlier graphs here notice it."""
    sys.modules["torch"].autograd.graph.increment_version(tensor)


def drop_graph(tensor: Any) -> None:
    """Makes it a tensor without a graph, in place, which torch does not do for views."""
    if tensor._base is None:
        tensor.detach_()
    else:
        sys.modules["torch"]._C._swap_tensor_impl(tensor, new_of_same_base(tensor))


def leave_graph(tensor: Any, graph: Graph, home: bool) -> None:
    """Makes it a tensor whose graph is in the other kernel."""
    if graph.home == home:
        text = "The computation graph of this tensor is lost; compute it again"
    else:
        text = f"The computation graph of this tensor {where_it_is(graph.home)}; continue with it in "
        text += f"{_cells(graph.home)} cells"
    module = sys.modules["torch"]
    look_behind_gradients()
    preserved = module.autograd._unsafe_preserve_version_counter(tensor)  # views get their graphs with their own state
    with module.inference_mode(False), module.enable_grad(), preserved:
        leaf = module.empty(0, requires_grad=True)
        graph_stand_in(graph.node).apply(leaf, tensor.requires_grad_(False), graph.home, text)


def look_behind_gradients() -> None:
    """Lets backward passes that are limited to some inputs find the graphs of the other kernel.

    torch runs only the nodes that lead to these inputs, so it would skip such a graph, and the gradients of what is
    behind it would be incomplete.
    """
    variable: Any = sys.modules["torch"].autograd.Variable
    if type(variable._execution_engine) is not Engine:
        variable._execution_engine = Engine(variable._execution_engine)


class Engine:
    """torch's engine, which runs each backward pass, however it was started."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(
        self,
        tensors: Any,
        grad_tensors: Any,
        keep_graph: Any,
        create_graph: Any,
        inputs: Any = (),
        *rest: Any,
        **more: Any,
    ) -> Any:
        waiting = nodes_of(tensors) if inputs else []
        met = {None, *nodes_of(inputs or ())}
        while waiting:
            if (node := waiting.pop()) not in met:
                if is_stand_in(node):
                    _stop(node.text)
                met.add(node)
                waiting += [below for below, _ in node.next_functions]
        return self._engine.run_backward(tensors, grad_tensors, keep_graph, create_graph, inputs, *rest, **more)


def nodes_of(tensors_or_edges: Any) -> list[Any]:
    tensor = sys.modules["torch"].Tensor
    return [one.grad_fn if isinstance(one, tensor) else one.node for one in tensors_or_edges]


def is_stand_in(node: Any) -> bool:
    return hasattr(type(node), "_baton_stand_in")


@functools.cache
def graph_stand_in(name: str) -> Any:
    """A torch function whose node has this name and makes each backward pass that reaches it fail."""

    class GraphStandIn(sys.modules["torch"].autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, _: Any, tensor: Any, home: bool, text: str) -> Any:
            context.home, context.text = home, text
            context.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(context: Any, *_: Any) -> NoReturn:
            _stop(context.text)

    def walk(node: Any) -> NoReturn:
        raise StandInError(node.text, ONE_CELL)

    node = GraphStandIn._backward_cls
    node.__name__ = node.__qualname__ = name
    node.__module__ = "builtins"  # as for torch's own, whose text shows no module
    node._baton_stand_in = True
    for looked_at in ("next_functions", "saved_tensors"):
        setattr(node, looked_at, property(walk))
    return GraphStandIn


def _stop(text: str, *_: Any) -> NoReturn:
    raise StandInError(f"{text}. {NO_GRADIENT}", ONE_CELL)


def _cells(home: bool) -> str:
    return "ordinary" if home else "%%gpu"
