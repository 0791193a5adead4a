"""Calls that need more than "the result is where the inputs are": each has its own rule.

A rule runs with the mode off, so it computes on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from baton_shim.virtual.pytorch.generator import Generator, drawing
from baton_shim.virtual.pytorch.hooks import LabellingHook
from baton_shim.virtual.pytorch.labels import CUDA, Tensor, first_tensor, look, names_cuda, on_cuda, put
from baton_shim.virtual.pytorch.mode import FACTORIES, MIXES, PINNED, RULES, WRITES, Rule, VirtualCuda
from baton_shim.virtual.pytorch.products import type_name

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_FUNCTIONAL = torch.nn.functional
_ASSIGNING = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()


def default_device_constructors() -> set[Any]:
    from torch.utils._device import _device_constructors

    constructors: set[Any] = _device_constructors()
    return constructors


def present(owner: Any, names: str) -> set[Any]:
    """The functions of these names that this version of torch has."""
    return {getattr(owner, name) for name in names.split() if hasattr(owner, name)}


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    def register(handler: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, handler))
        return handler

    return register


FACTORIES.update(default_device_constructors())
MIXES.update(
    present(
        Tensor, "copy_ index_put index_put_ tensor_split view_as expand_as reshape_as resize_as_ is_set_to is_same_size"
    ),
    present(torch, "tensor_split ctc_loss _foreach_copy_ is_same_size index_put"),
    present(torch, "is_tensor result_type"),
    present(_FUNCTIONAL, "ctc_loss"),
)
WRITES.update(
    getattr(Tensor, name)
    for name in dir(Tensor)
    if (name.endswith("_") and not name.startswith("_")) or name.strip("_") in _ASSIGNING
)
WRITES.difference_update(MIXES, FACTORIES)

_QUESTIONS = (
    present(Tensor, "__hash__ __len__ __bool__ __float__ __int__ __index__ __complex__ size stride dim numel nelement")
    | present(Tensor, "element_size storage_offset data_ptr tolist item is_contiguous is_floating_point is_complex")
    | present(Tensor, "is_signed is_shared ndimension requires_grad_ retain_grad untyped_storage storage")
    | {
        getattr(Tensor, name).__get__
        for name in "shape dtype layout requires_grad is_leaf grad_fn ndim itemsize nbytes is_sparse is_quantized "
        "is_meta is_nested is_mkldnn names retains_grad output_nr _version _backward_hooks".split()
        if hasattr(getattr(Tensor, name, None), "__get__")
    }
    | {Tensor.requires_grad.__set__}
    | present(torch, "_has_compatible_shallow_copy_type")
)


@rule(*_QUESTIONS)
def as_it_is(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return function(*args, **kwargs)


# ---- where a tensor is ----


@rule(Tensor.device.__get__)
def device(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return CUDA if mode.holds(args[0]) else function(*args)


@rule(Tensor.is_cuda.__get__)
def is_cuda(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> bool:
    return mode.holds(args[0])


@rule(Tensor.is_cpu.__get__)
def is_cpu(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> bool:
    return bool(function(*args)) and not mode.holds(args[0])


@rule(Tensor.get_device, *present(torch, "get_device"))
def get_device(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> int:
    return 0 if mode.holds(args[0]) else int(function(*args))


# ---- from one device to the other ----


def arrived(result: Any, source: Any, was_cuda: bool, cuda: bool) -> Any:
    """Another device has other memory, so the result is copied, and later writes stay separate."""
    if was_cuda != cuda and result is source:
        lazy = torch.nn.parameter.is_lazy(result)  # without a size, there is nothing to copy
        result = type(result)(result.requires_grad, dtype=result.dtype) if lazy else result.clone()
    return put(result, cuda)


@rule(Tensor.to)
def to(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    source, rest, kwargs = args[0], list(args[1:]), dict(kwargs)
    cuda = was_cuda = mode.holds(source)
    other = kwargs.get("other", rest[0] if rest else None)
    asked = kwargs.get("device", rest[0] if rest else None)
    if isinstance(other, Tensor):
        cuda = mode.holds(other)
    elif isinstance(asked, (str, int, torch.device)) and not isinstance(asked, bool):
        cuda = names_cuda(asked)
        if cuda and "device" in kwargs:
            kwargs["device"] = "cpu"
        elif cuda:
            rest[0] = "cpu"
    return arrived(function(source, *rest, **kwargs), source, was_cuda, cuda)


@rule(Tensor.cuda)
def to_cuda(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    asked = kwargs.get("device", args[1] if len(args) > 1 else None)
    if asked is not None and not names_cuda(asked):
        raise RuntimeError(f"Invalid device, must be cuda device, but got {asked}")
    form = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    return arrived(args[0].cpu(**form), args[0], mode.holds(args[0]), True)


@rule(Tensor.cpu)
def to_cpu(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return arrived(function(*args, **kwargs), args[0], mode.holds(args[0]), False)


@rule(Tensor.type_as)
def type_as(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return arrived(function(*args), args[0], mode.holds(args[0]), mode.holds(args[1]))


@rule(Tensor.type)
def type_name_or_cast(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    source, asked = args[0], args[1] if len(args) > 1 else kwargs.get("dtype")
    cuda = mode.holds(source)
    if asked is None:
        return type_name(source, cuda)
    if isinstance(asked, torch.dtype):
        return put(function(*args, **kwargs), cuda)
    name = asked if isinstance(asked, str) else f"{asked.__module__}.{asked.__name__}"
    plain = name.replace("torch.cuda.", "torch.")
    return arrived(function(source, plain), source, cuda, plain != name)


@rule(torch.tensor)
def tensor(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """From a tensor: on that tensor's device. From numbers, including numbers in tensors: on the default device."""
    data = args[0] if args else kwargs.get("data")
    if kwargs.get("device") is None and not isinstance(data, Tensor):
        return put(function(*args, **kwargs), mode.default_cuda)
    return mode.compute_with(function, args, kwargs)


@rule(*present(torch, "arange range linspace logspace full zeros ones empty eye"))
def made_of_numbers(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Numbers are read, on either device."""
    if kwargs and any(kwargs.get(name) is not None for name in ("device", "out", "pin_memory")):
        return mode.compute_with(function, args, kwargs)
    made = function(*args, **kwargs)
    return put(made, True) if mode.default_cuda else made


@rule(*present(Tensor, "new_tensor new_zeros new_ones new_full new_empty new_empty_strided new"))
def new(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if kwargs.get("device") is not None:
        return mode.compute_with(function, args, kwargs)
    return put(function(*args, **kwargs), mode.holds(args[0]))


@rule(*present(torch, "as_tensor asarray"))
def as_tensor(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """It may return its argument, or share its memory."""
    source = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    asked = kwargs.get("device")
    was_cuda = isinstance(source, Tensor) and mode.holds(source)
    if asked is not None:
        cuda = names_cuda(asked)
        result = mode.made_here(function, args, kwargs)
    else:
        cuda = was_cuda if isinstance(source, Tensor) else mode.default_cuda
        result = function(*args, **kwargs)
    return put(result.clone() if cuda != was_cuda else result, cuda)


@rule(torch._C._nn._parse_to)
def parse_module_to(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """For `module.to(0)`: C++ would take the number for a device of its build."""
    named = [f"cuda:{part}" if type(part) is int else part for part in args]
    for asked in (*named[:1], kwargs.get("device")):
        if isinstance(asked, (str, torch.device)):
            names_cuda(asked)
    return function(*named, **kwargs)


# ---- contents of a tensor ----


@rule(Tensor.data.__set__)
def set_data(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> None:
    function(*args)
    put(args[0], mode.holds(args[1]))


@rule(Tensor.grad.__get__)
def grad(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    gradient = function(*args)
    return put(gradient, True) if gradient is not None and mode.holds(args[0]) else gradient


@rule(Tensor.grad.__set__)
def set_grad(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> None:
    owner, gradient = args
    if isinstance(gradient, Tensor) and mode.holds(owner) != mode.holds(gradient):
        names = ["cuda" if mode.holds(part) else "cpu" for part in (gradient, owner)]
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{names[0]}' to a tensor with device type "
            f"'{names[1]}'. Please ensure that the gradient and the tensor are on the same device"
        )
    function(owner, gradient)


@rule(Tensor.__iter__)
def iterate(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return iter(put(tuple(function(*args)), True)) if mode.holds(args[0]) else function(*args)


@rule(Tensor.numpy, Tensor.__array__)
def to_numpy(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if on_cuda(args[0]) and not kwargs.get("force"):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return function(*args, **kwargs)


@rule(*present(Tensor, "apply_ map_ map2_"))
def cpu_only(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if mode.holds(args[0]):
        raise TypeError(f"{function.__name__} is only implemented on CPU tensors")
    return function(*args, **kwargs)


@rule(Tensor.__repr__)
def representation(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> str:
    if not mode.holds(args[0]):
        return str(function(*args, **kwargs))
    kind = type(args[0])
    plain = kind in (Tensor, torch.nn.Parameter)
    shown = args[0] if plain else put(args[0].as_subclass(Tensor), True)
    with VirtualCuda():  # so that torch formats the device itself, at its place in the text
        text = str(torch._tensor_str._str(shown, **kwargs))
    return text if plain else text.replace("tensor(", f"{kind.__name__}(", 1)


@rule(Tensor.__format__)
def formatted(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> str:
    if args[0].dim() == 0 or not mode.holds(args[0]):
        return str(function(*args))
    return format(representation(mode, None, args[:1], {}), args[1])


if hasattr(Tensor, "__cuda_array_interface__"):

    @rule(Tensor.__cuda_array_interface__.__get__)
    def cuda_array_interface(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
        if mode.holds(args[0]):
            raise AttributeError("__cuda_array_interface__ needs a real GPU\nhint: use it in a %%gpu cell")
        return function(*args)


@rule(*present(Tensor, "pin_memory"))
def pin_memory(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    if mode.holds(args[0]):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    pinned = args[0].clone()
    pinned.__dict__[PINNED] = True
    return pinned


@rule(*present(Tensor, "is_pinned"))
def is_pinned(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> bool:
    return PINNED in args[0].__dict__


@rule(*present(Tensor, "register_hook"))
def register_hook(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    owner, hook = args
    return function(owner, LabellingHook(hook) if mode.holds(owner) else hook)


@rule(*present(torch, "_pack_padded_sequence _pad_packed_sequence"))
def packed(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The lengths stay on the CPU, as they do with a GPU."""
    if function is torch._pack_padded_sequence and mode.holds(args[1]):
        raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor")
    data, lengths = function(*args, **kwargs)
    return put(data, mode.holds(args[0])), lengths


@rule(*present(torch, "lstm gru rnn_tanh rnn_relu"))
def recurrent(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The lengths of a packed sequence, its second argument, stay on the CPU, as they do with a GPU."""
    is_packed = not isinstance(args[3], bool)
    data, hidden, weights = (args[0], args[2], args[3]) if is_packed else args[:3]
    dropout, training = args[6:8] if is_packed else args[5:7]
    cuda = mode.holds(data)
    for kind, tensors in (("hidden", hidden), ("parameter", weights)):
        if any(mode.holds(tensor) != cuda for tensor in ([tensors] if isinstance(tensors, Tensor) else tensors)):
            names = ("cuda:0", "cpu") if cuda else ("cpu", "cuda:0")
            raise RuntimeError(
                f"Input and {kind} tensors are not at the same device, found input tensor at {names[0]} "
                f"and {kind} tensor at {names[1]}"
            )
    if not cuda:
        return put(function(*args), False)
    with drawing() if dropout and training else nullcontext():
        return mode.run(function, args, {})


# ---- random numbers ----

_DRAWS_AS_MADE = present(torch, "rand randn randint randperm normal")
_DRAWS_LIKE_INPUT = (
    present(torch, "rand_like randn_like randint_like bernoulli multinomial poisson binomial dropout feature_dropout")
    | present(torch, "dropout_ alpha_dropout alpha_dropout_ feature_alpha_dropout rrelu rrelu_ native_dropout")
    | present(Tensor, "normal_ uniform_ exponential_ random_ bernoulli bernoulli_ cauchy_ geometric_ log_normal_")
    | present(Tensor, "multinomial")
    | present(_FUNCTIONAL, "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout gumbel_softmax")
    | present(_FUNCTIONAL, "rrelu fractional_max_pool2d fractional_max_pool3d")
    | present(torch, "_standard_gamma _sample_dirichlet")
    | present(torch.nn.init, "uniform_ normal_ kaiming_uniform_ trunc_normal_")
)


@rule(*_DRAWS_AS_MADE)
def draw(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    asked = kwargs.get("device")
    if asked is not None:
        cuda = names_cuda(asked)
    else:
        numbers = function in FACTORIES
        cuda = (mode.default_cuda and numbers) or bool(look(((), kwargs) if numbers else (args, kwargs))[0])
        kwargs = {**kwargs, "device": "cuda"} if cuda and function in FACTORIES else kwargs
    return put(draw_on(cuda, mode, function, args, kwargs), cuda)


@rule(*_DRAWS_LIKE_INPUT)
def draw_like(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    asked = kwargs.get("device")
    source = first_tensor((*args, *kwargs.values()))
    return draw_on(mode.holds(source) if asked is None else names_cuda(asked), mode, function, args, kwargs)


@rule(*present(_FUNCTIONAL, "scaled_dot_product_attention multi_head_attention_forward"))
def attend(mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Random only with dropout."""
    place = 4 if function is not _FUNCTIONAL.multi_head_attention_forward else 10
    dropout = kwargs.get("dropout_p", args[place] if len(args) > place else 0.0)
    if dropout and kwargs.get("training", True):
        return draw_like(mode, function, args, kwargs)
    return mode.compute_with(function, args, kwargs)


def draw_on(cuda: bool, mode: VirtualCuda, function: Any, args: Args, kwargs: Kwargs) -> Any:
    generator: Any = kwargs.get("generator")
    own = isinstance(generator, Generator) and generator.device.type == "cuda"
    if generator is not None and own != cuda:
        names = ("cuda", "cpu") if cuda else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{names[0]}' device type for generator but found '{names[1]}'")
    if own:
        generator.arm()
    elif cuda:
        with drawing():
            return mode.compute_with(function, args, kwargs)
    return mode.compute_with(function, args, kwargs)
