"""Everything undocumented that Baton uses of other packages, in one list: private names, replaced functions.

A `Part` of Baton lists the places that it needs, and what is lost without them. Parts that attach to IPython and
ipykernel are checked when the kernel starts. The first cell shows one line about those that do not fit; the log has the
full errors. Parts of `%%gpu` cells are checked, in both kernels, by the first such cell that finds their library
imported.

A place is written `module:path`. An attribute that a class sets only on its instances must be mentioned by a method of
that class, or by the function that precedes it in the path.

**Invariant:** whatever these packages have moved, the kernel starts, and everything that does not need that part works.
`tests/test_compat.py` checks that the list is complete, and that the package uses everything in it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

UPDATE = "hint: update Baton as you installed it, from its source folder: python -m pip install ."

Result = TypeVar("Result")


class Part(NamedTuple):
    """A feature of Baton, and the undocumented places of other packages that it needs."""

    without: str
    """What the student loses without it, in a few words. Empty if Baton has another way."""
    needs: tuple[str, ...] = ()


_SHELL = "IPython.core.interactiveshell:InteractiveShell"
_KERNEL = "ipykernel.kernelbase:Kernel"
_TENSOR = "torch:Tensor"
_TRACED = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"

# ---- parts that attach when a notebook kernel starts

OWN_MODULES = Part("changes of your own .py files do not reach %%gpu cells")
INTERRUPTS = Part(
    "an interrupt between two cells may lose a cell's reply",
    (
        "jupyter_client.session:Session.send",
        f"{_SHELL}.run_code",
        f"{_SHELL}.user_expressions",
        "IPython.core.events:EventManager.trigger",
        f"{_KERNEL}.pre_handler_hook",
        f"{_KERNEL}.post_handler_hook.saved_sigint_handler",
        f"{_KERNEL}.shell_handlers",
    ),
)
CELLS = Part(
    "%%gpu cells do not run",
    (
        "IPython.core.formatters:DisplayFormatter.format",
        f"{_SHELL}._instance",
        f"{_KERNEL}.get_parent",
    ),
)
ORDER = Part(
    "what a cell prints right before a %%gpu block may appear below the block's output",
    ("ipykernel.iostream:IOPubThread.send_multipart",),
)
MAGICS = Part(
    "%%gpu is unknown",
    (f"{_SHELL}.input_transformers_cleanup", "IPython.core.magic:MagicsManager.lsmagic"),
)
OPTIONS = Part("Tab offers no options of %%gpu", ("IPython.core.completer:context_matcher",))
SWITCHING = Part("'cuda' exists only in %%gpu cells")
HINTS = Part("ordinary cells show no hints")
PAGES = Part("a page that was closed while a %%gpu cell ran shows its output only with %gpu_output")
IN_BACKGROUND = Part('JupyterLab\'s "Run on GPU in the Background" does nothing: use baton run --detach')
TRACEBACKS = Part(
    "errors of %%gpu cells show the wrong lines",
    (f"{_SHELL}.showtraceback", f"{_SHELL}._showtraceback", f"{_SHELL}._get_exc_info"),
)
HANDLERS = Part(
    "handlers of set_custom_exc see the wrong lines of %%gpu cells",
    (f"{_SHELL}.set_custom_exc", f"{_SHELL}.set_custom_exc.CustomTB"),
)
ENDING = Part("variables are not saved when the kernel is shut down", (f"{_KERNEL}.do_shutdown",))
BLOCKS = Part("'with gpu:' and '@gpu' do not run", (f"{_SHELL}.ast_transformers",))
SOCKETS = Part(
    "%%gpu cells do not run",
    (
        "ipykernel.kernelapp:IPKernelApp._bind_socket",
        "ipykernel.kernelapp:IPKernelApp.configure_tornado_logger",
        "ipykernel.kernelapp:IPKernelApp.init_connection_file",
        "ipykernel.kernelapp:IPKernelApp.init_heartbeat",
        "ipykernel.kernelapp:IPKernelApp.init_iopub",
        "ipykernel.kernelapp:IPKernelApp.write_connection_file",
    ),
)
DEBUGGER = Part("%debug shows the wrong lines after a %%gpu cell", (f"{_SHELL}.debugger",))
# ---- parts for libraries

VIRTUAL = {
    "torch": Part(
        "torch has no virtual GPU",
        (
            "torch:_C.DisableTorchFunction",
            "torch:_C.Generator",
            "torch:_C._get_function_stack_at",
            "torch:_C._nn._parse_to",
            "torch:_C._select_conv_backend",
            "torch:_C._set_sdp_use_math",
            "torch:_pack_padded_sequence",
            "torch:_tensor_str._str",
            "torch:_utils._rebuild_tensor",
            "torch:serialization._package_registry",
            "torch:storage._StorageBase.cuda",
            "torch:nn.parameter.UninitializedTensorMixin._allowed_methods",
            "torch:jit._builtins._builtin_table",
            "torch:jit._builtins._register_builtin",
            "torch.utils._device:_device_constructors",
            "torch.utils._python_dispatch:TorchDispatchMode",
            "torch:amp.autocast_mode.autocast.__init__._enabled",
            "torch:amp.autocast_mode.autocast.__init__._cache_enabled",
            "torch.optim.optimizer:Optimizer._optimizer_step_pre_hooks",
            "torch.optim.optimizer:Optimizer._optimizer_step_post_hooks",
            "torch.optim.optimizer:_global_optimizer_pre_hooks",
            "torch.optim.optimizer:_global_optimizer_post_hooks",
            f"{_TENSOR}._reduce_ex_internal",
            "warnings:_showwarnmsg",
        ),
    ),
    "jax": Part("jax has no virtual GPU", ("jax:_src.xla_bridge.backends", "jax:_src.xla_bridge.get_backend")),
    "tensorflow": Part("tensorflow has no virtual GPU"),
}
"""By library; each part is checked before virtual CUDA changes its library."""

OF_CELLS = (
    Part(
        "tracebacks show functions of other cells without their numbers",
        ("IPython.core.compilerop:CachingCompiler._filename_map",),
    ),
    Part(
        "%%capture and hooks miss the output of %%gpu cells",
        ("ipykernel.zmqshell:ZMQDisplayPublisher._hooks", "ipykernel.iostream:OutStream._hooks"),
    ),
    Part(
        "widgets of %%gpu cells do not answer",
        (
            "comm.base_comm:BaseComm.__del__",
            "comm.base_comm:BaseComm._msg_callback",
            "comm.base_comm:BaseComm._close_callback",
            "comm.base_comm:CommManager.unregister_comm",
            "ipywidgets.widgets.widget:_instances",
        ),
    ),
    Part(
        "input() or the output of %%gpu cells does not work",
        (
            "ipykernel.kernelapp:IPKernelApp.init_shell",
            "ipykernel.iostream:IOPubThread.schedule",
            "ipykernel.iostream:IOPubThread.socket",
            f"{_KERNEL}._allow_stdin",
        ),
    ),
    Part(
        "",  # without it cells take longer, or a hint is missing
        (
            "ipykernel.iostream:OutStream._flush",
            "ipykernel.iostream:OutStream._flush_pending",
            "ipykernel.iostream:OutStream._subprocess_flush_pending",
            "ipykernel.iostream:OutStream._is_master_process",
            "ipykernel.iostream:OutStream._should_watch",
            "ipykernel.iostream:OutStream._fid",
            "ipykernel.iostream:OutStream._original_stdstream_copy",
            "ipykernel.iostream:OutStream._exc",
            f"{_KERNEL}._execute_sleep",
            f"{_SHELL}.system._exit_code",
        ),
    ),
    Part(
        "",  # only some versions of torch have these
        (
            "torch:_C._dispatch_has_kernel_for_dispatch_key",
            "torch:_C._len_torch_function_stack",
            "torch:_C._pop_torch_function_stack",
            "torch:_C._push_on_torch_function_stack",
            "torch:_amp_foreach_non_finite_check_and_unscale_",
            "torch:_amp_update_scale_",
            "torch._streambase:_EventBase",
            "torch._streambase:_StreamBase",
            "torch:_trilinear",
            "torch:_foreach_copy_",
            "torch:_pad_packed_sequence",
            "torch:_standard_gamma",
            "torch:_sample_dirichlet",
            "torch:_has_compatible_shallow_copy_type",
            "torch:autograd._engine_run_backward",
            "torch:cuda._exchange_device",
            "torch:cuda._maybe_exchange_device",
            "torch:cuda._initialized",
            "torch:cuda._is_compiled",
            "torch:cuda.memory._record_memory_history",
            "torch:cuda.memory._dump_snapshot",
            "torch:cuda.memory._snapshot",
            "torch:_utils._get_obj_state",
            "torch:UntypedStorage._new_shared",
            "torch:storage.TypedStorage._untyped_storage",
            "torch:storage._warn_typed_storage_removal",
            "torch.nn.attention:_sdpa_kernel",
            "torch.utils.checkpoint:_allowed_determinism_checks_to_fns",
            "torch._dynamo:disable",
            "torch:_ops.OpOverload._schema",
        ),
    ),
    Part("", ("matplotlib:cbook._get_data_path", "matplotlib:_rc_params_in_file")),
    Part(
        "tensors are not sent with %%gpu cells",
        (
            *(f"{_TENSOR}._backward_hooks", f"{_TENSOR}._post_accumulate_grad_hooks"),
            *(f"{_TENSOR}._make_subclass", f"{_TENSOR}._neg_view"),
            *("torch:_C._autograd._get_creation_meta", "torch:_C._autograd._set_creation_meta"),
            *("torch:_C._swap_tensor_impl", "torch:autograd._unsafe_preserve_version_counter"),
            *(f"{_TENSOR}._indices", f"{_TENSOR}._values", f"{_TENSOR}._version"),
        ),
    ),
    Part(
        "optimizers of torch do not call their hooks after %%gpu cells",
        ("torch.optim.optimizer:Optimizer._patch_step_function",),
    ),
    Part(
        "torch's gradient scalers are not sent with %%gpu cells",
        ("torch.amp.grad_scaler:GradScaler.__init__._per_optimizer_states",),
    ),
    Part(
        "errors do not say that the computation graph of a tensor stayed behind",
        ("torch:autograd.Function._backward_cls", "torch:autograd.Variable._execution_engine"),
    ),
    Part("torch's print options are not sent with %%gpu cells", ("torch:_tensor_str.PRINT_OPTS",)),
    Part(
        "torch's data loaders with persistent workers work only in the kernel that used them first",
        ("torch.utils.data:DataLoader.__init__._iterator",),
    ),
    Part(
        "errors do not name a torch DataLoader that cannot be sent",
        (
            "torch.utils.data.dataloader:_SingleProcessDataLoaderIter",
            "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter",
        ),
    ),
    Part(
        "jitted functions of JAX lose their attributes in %%gpu cells",
        (
            "jax:_src.pjit._cpp_pjit",
            "jax:_src.pjit._cpp_pjit._fun",
            "jax:_src.pjit._cpp_pjit._jit_info",
            "jaxlib._jax:PjitFunction",
        ),
    ),
    Part(
        "classes that are registered with jax.tree_util are unknown in %%gpu cells",
        ("jax:_src.tree_util.register_pytree_node",),
    ),
    Part("settings of JAX that a variable holds are not sent", ("jax:_src.config",)),
    Part("functions with custom derivatives are not sent", ("jax:_src.custom_derivatives",)),
    Part(
        "figures are not sent with %%gpu cells",
        (
            "matplotlib.figure:Figure._original_dpi",
            "matplotlib.figure:Figure._set_dpi",
            "matplotlib.figure:Figure.__getstate__._restore_to_pylab",
            "matplotlib.transforms:TransformNode._invalid",
            "matplotlib.cbook:CallbackRegistry._cid_gen",
            "matplotlib.cbook:CallbackRegistry._func_cid_map",
            "matplotlib.cbook:CallbackRegistry._pickled_cids",
            "matplotlib._pylab_helpers:Gcf.figs",
            "matplotlib._pylab_helpers:Gcf._set_new_active_manager",
            "matplotlib.pyplot:_get_backend_mod",
        ),
    ),
    Part(
        "formats of inline figures are not sent with %%gpu cells",
        ("matplotlib_inline.config:InlineBackend._update_figure_formatters",),
    ),
    Part(
        "options of pandas are not sent with %%gpu cells",
        ("pandas:_config.config._global_config", "pandas:_config.config._registered_options"),
    ),
    Part("accessors of pandas are not sent with %%gpu cells", ("pandas:DataFrame._accessors",)),
    Part(
        "frames that share memory are not sent with %%gpu cells",
        (
            "pandas:_libs.internals.BlockValuesRefs.referenced_blocks",
            "pandas:Index._cache",
            "pandas:Index._references",
        ),
    ),
    Part("open .npz files are not sent", ("numpy.lib._npyio_impl:NpzFile",)),
    Part("trees of scipy lose their structure in %%gpu cells", ("scipy.spatial._ckdtree:cKDTree",)),
    Part("trees of scikit-learn are sent with each cell", ("sklearn.tree._tree:Tree",)),
    Part(
        "functions that numba compiles are not sent with %%gpu cells",
        (
            "numba.core.dispatcher:Dispatcher._rebuild",
            "numba.core.dispatcher:Dispatcher._reduce_states",
            "numba.np.ufunc.dufunc:DUFunc._dispatcher",
        ),
    ),
    Part(
        "",
        (
            "PIL.AvifImagePlugin:AvifImageFile._decoder",
            "PIL.Image:Image._im",
            "PIL.Image:Image._mode",
            "PIL.ImageFile:ImageFile._exclusive_fp",
            "PIL.ImageFile:ImageFile._fp",
            "numpy.random:_pickle",
        ),
    ),
    Part("settings of scikit-learn are not sent with %%gpu cells", ("sklearn._config:_global_config",)),
    Part(
        "settings of sympy are not sent with %%gpu cells",
        ("sympy.printing.printer:Printer._global_settings", "sympy.core._print_helpers:Printable"),
    ),
    Part(
        "the seed of TensorFlow is not sent with %%gpu cells",
        ("tensorflow.python.eager.context:Context._seed", "tensorflow.python.eager.context:Context._rng"),
    ),
    Part(
        "models of Keras lose the identity of their parts in %%gpu cells",
        (
            "keras.src.ops.function:make_node_key",
            "keras.src.ops.function:Function.__init__._nodes",
            "keras.src.ops.function:Function.__init__._operations",
            "keras.src.ops.operation:Operation.__init__._inbound_nodes",
            "keras.src.optimizers.base_optimizer:BaseOptimizer._var_key",
            "keras.src.optimizers.base_optimizer:BaseOptimizer._trainable_variables",
            "keras.src.optimizers.base_optimizer:BaseOptimizer._trainable_variables_indices",
            "keras.src.optimizers.multi_optimizer:MultiOptimizer._var_to_optimizer_idx",
            "keras.src.saving.keras_saveable:KerasSaveable.__reduce__",
            "keras.src.utils.tracking:Tracker.__init__.stored_ids",
        ),
    ),
    Part(
        "functions of TensorFlow are not sent with %%gpu cells",
        (
            f"{_TRACED}._name",
            f"{_TRACED}._python_function",
            f"{_TRACED}._created_variables",
            f"{_TRACED}._concrete_variable_creation_fn",
            f"{_TRACED}._function_cache",
            f"{_TRACED}._function_captures",
            f"{_TRACED}._no_variable_creation_config",
            f"{_TRACED}._variable_creation_config",
            "tensorflow.core.function.capture.capture_container:FunctionCaptures",
            "tensorflow.core.function.polymorphism.function_cache:FunctionCache",
            "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction",
        ),
    ),
    Part(
        "variables of TensorFlow are not sent with %%gpu cells",
        (
            "tensorflow.python.distribute.distribute_lib:_DefaultDistributionStrategy",
            "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable",
            "tensorflow.python.ops.resource_variable_ops:ResourceVariable",
        ),
    ),
    Part(
        "errors do not name a class that SQLAlchemy maps",
        ("sqlalchemy.orm.decl_api:_setup_declarative_base._sa_registry",),
    ),
    Part("the print settings of polars are not sent with %%gpu cells", ("polars.config:_POLARS_CFG_DIRECT_VARS",)),
    Part(
        "functions and classes of the notebook are not sent with %%gpu cells",
        (
            "cloudpickle.cloudpickle:_class_setstate",
            "cloudpickle.cloudpickle:_lookup_class_or_track",
            "cloudpickle.cloudpickle:_should_pickle_by_reference",
        ),
    ),
    Part(
        "objects with traits are not sent with %%gpu cells",
        (
            "traitlets.traitlets:HasTraits._trait_notifiers",
            "traitlets.traitlets:HasTraits._trait_validators",
            "traitlets.traitlets:HasTraits._trait_values",
        ),
    ),
    Part(
        "printers of IPython.lib.pretty are not sent with %%gpu cells",
        ("IPython.lib.pretty:_type_pprinters", "IPython.lib.pretty:_deferred_type_pprinters"),
    ),
    Part(
        "edits that %autoreload loads do not reach %%gpu cells",
        ("IPython.extensions.autoreload:AutoreloadMagics._reloader",),
    ),
    Part(
        "classes of modules that %autoreload updates are new ones in the other kernel",
        (
            "IPython.extensions.deduperreload.deduperreload:DeduperReloader._build_dependency_graph",
            "IPython.extensions.deduperreload.deduperreload:DeduperReloader._check_dependents",
            "IPython.extensions.deduperreload.deduperreload:DeduperReloader._patch_namespace",
        ),
    ),
)


class Fit:
    """Which parts do not fit the packages that are installed for this kernel."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        """What has been missing since the kernel's start, and why."""
        self.unfit: set[str] = set()
        """Libraries that have been reported as not fitting."""
        self._unchecked: dict[str, list[tuple[Part, str]]] = {}
        for part in OF_CELLS:
            for place in part.needs if part.without else ():
                self._unchecked.setdefault(place.partition(":")[0], []).append((part, place))

    def attach(self, part: Part, action: Callable[..., Result], *arguments: Any) -> Result | None:
        """Calls `action`, which attaches the part, and returns its result; None if that does not work here."""
        try:
            require(part)
            return action(*arguments)
        except Exception as error:
            traceback.print_exc(file=sys.__stderr__)
            self.missing.append(f"{part.without} ({type(error).__name__}: {error})")
            return None

    def text(self) -> str:
        return f"{does_not_fit(('IPython', 'ipykernel'), self.missing)}\n{UPDATE}"

    def warn(self, shell: Any) -> None:
        """Shows the line with the next cell, because no client shows what a kernel writes before its first cell."""
        if not self.missing:
            return

        def show() -> None:
            shell.events.unregister("pre_execute", show)
            sys.stderr.write(f"warning: {self.text()}\n")

        shell.events.register("pre_execute", show)

    def news(self) -> list[str]:
        """A line for each library that was imported since the last call and has a part that does not fit."""
        arrived = [module for module in self._unchecked if is_whole(module)]
        lost: dict[str, dict[str, str]] = {}
        for module in arrived:
            for part, place in self._unchecked.pop(module):
                if not is_there(place):
                    lost.setdefault(module.partition(".")[0], {}).setdefault(part.without, place)
        self.unfit.update(lost)
        return [
            does_not_fit((library,), [f"{without} ({place} is gone)" for without, place in parts.items()])
            for library, parts in lost.items()
        ]


def require(part: Part) -> None:
    """Raises AttributeError for the first place that does not exist."""
    for place in part.needs:
        if not is_there(place):
            raise AttributeError(f"{place} is gone")


def is_whole(module: str) -> bool:
    """Whether the module has been imported completely."""
    found = sys.modules.get(module)
    return found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False)


def is_there(place: str) -> bool:
    """True also if the module is not imported, because then nothing is known."""
    module, _, path = place.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        return True
    for name in path.split("."):
        if not hasattr(found, name):
            return mentions(found, name)
        found = getattr(found, name)
    return True


def mentions(owner: Any, name: str) -> bool:
    """Whether this function, or a method of this class, mentions the name as an attribute or as text."""
    if isinstance(owner, type):
        return any(mentions(one, name) for kind in owner.__mro__ for one in vars(kind).values() if is_function(one))
    return is_function(owner) and name in (*owner.__code__.co_names, *owner.__code__.co_consts)


def is_function(one: Any) -> bool:
    return isinstance(one, FunctionType)


def does_not_fit(libraries: tuple[str, ...], parts: list[str]) -> str:
    versions = (f"{name} {getattr(sys.modules.get(name), '__version__', '')}".rstrip() for name in libraries)
    return f"Baton is not compatible with the installed {' and '.join(versions)}: {'; '.join(parts)}"


FIT = Fit()
