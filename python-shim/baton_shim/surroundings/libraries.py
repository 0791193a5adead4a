"""Settings of numpy, pandas, polars, mpmath, sympy, scikit-learn, Keras and torch."""

from __future__ import annotations

import collections
import os
import sys
from typing import Any

from baton_shim.surroundings.formats import FLOATS, is_of_notebook
from baton_shim.surroundings.jax_settings import JAX_SETTINGS
from baton_shim.surroundings.kind import Kind, entries, frozen, rows


def numpy_errors(numpy: Any) -> dict[str, Any]:
    return {**numpy.geterr(), "buffer": numpy.getbufsize()}


def give_numpy_error(numpy: Any, name: str, value: Any) -> None:
    numpy.setbufsize(value) if name == "buffer" else numpy.seterr(**{name: value})


def numpy_printing(numpy: Any) -> dict[str, Any]:
    options: dict[str, Any] = numpy.get_printoptions()
    if options.get("formatter") is None and options.get("override_repr") is None:
        return options
    return {name: value for name, value in options.items() if not is_of_notebook(value)}


class PandasOptions:
    """Options that differ from the library's defaults. The library is not asked for each option, because that warns."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] | None = None
        self._found: dict[str, Any] = {}

    def look(self, _: Any) -> dict[str, Any]:
        config: Any = sys.modules["pandas._config.config"]
        if self._seen != config._global_config:
            self._seen = frozen(config._global_config)
            options = ((config._registered_options.get(name), name, value) for name, value in flat(self._seen))
            changed = {name: value for option, name, value in options if option and value != option.defval}
            self._found = {name: one for name, one in changed.items() if name != FLOATS or not is_of_notebook(one)}
        return self._found


def flat(tree: dict[str, Any], above: str = "") -> Any:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def polars_printing(config: Any) -> dict[str, Any]:
    """What `polars.Config` stores in the library. The rest of it is in the environment."""
    return {name: find() for name, find in getattr(config, "_POLARS_CFG_DIRECT_VARS", {}).items()}


def torch_device(torch: Any) -> str:
    here = getattr(torch, "get_default_device", None)  # torch 2.3 and newer
    return str(here()) if here else "cpu"


def torch_threads(torch: Any) -> int | None:
    """None if torch uses its default."""
    found: int = torch.get_num_threads()
    return None if found in machine_threads() else found


def machine_threads() -> tuple[int, ...]:
    """Possible defaults of torch: one thread for each core, or for each two logical cores that share a physical one."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0))
    return (int(asked),) if asked.isdigit() else (cores, max(1, cores // 2))


def torch_determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def torch_cudnn(torch: Any) -> tuple[bool, bool]:
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic


def give_torch_cudnn(torch: Any, value: tuple[bool, bool]) -> None:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = value


PRINTING = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn", "buffer": 8192}


def assumed(sympy: Any) -> Any:
    return sympy.assumptions.assume.global_assumptions


def sympy_assumptions(sympy: Any, assumptions: frozenset[Any]) -> None:
    assumed(sympy).clear()
    assumed(sympy).update(assumptions)


def keras_policy(kept: Any) -> str | None:
    policy = kept.get_global_attribute("dtype_policy")
    return None if policy is None else str(policy.name)


def set_keras_policy(kept: Any, name: str | None) -> None:
    kept.set_global_attribute("dtype_policy", name and sys.modules["keras"].dtype_policies.get(name))


def keras_names(kept: Any) -> dict[str, int]:
    """How often each name was given to a layer without one. Layers of one model must have different names."""
    return dict(kept.get_global_attribute("object_name_uids") or {})


def set_keras_names(kept: Any, names: dict[str, int]) -> None:
    kept.set_global_attribute("object_name_uids", collections.defaultdict(int, names))


def torch_hooks(torch: Any) -> int:
    """The number of the next hook. A module's hooks are in a dict by number: with the same number, one is lost."""
    following: int = torch.utils.hooks.RemovableHandle.next_id
    return following


def set_torch_hooks(torch: Any, number: int) -> None:
    torch.utils.hooks.RemovableHandle.next_id = max(number, torch_hooks(torch))


LIBRARIES: tuple[Kind, ...] = (
    entries(
        *("numpy.seterr", "numpy's handling of floating-point errors", "numpy", numpy_errors, give_numpy_error),
        fresh=NUMPY_ERRORS,
    ),
    *rows(
        *("numpy's print options", "numpy"),
        ("printing", numpy_printing, lambda numpy, options: numpy.set_printoptions(**options), None),
    ),
    entries(
        *("pandas.options", "An option of pandas", "pandas", PandasOptions().look),
        lambda pandas, name, value: pandas.set_option(name, value),
        lambda pandas, name: pandas.reset_option(name),
        fresh={},
    ),
    entries(
        *("polars", "The number format of polars", "polars.config", polars_printing),
        lambda config, name, value: getattr(config.Config, name)(value),
        fresh={},
    ),
    *rows(
        *("The precision of mpmath", "mpmath"),
        ("precision", lambda mpmath: mpmath.mp.prec, lambda mpmath, bits: setattr(mpmath.mp, "prec", bits), 53),
    ),
    entries(
        *(
            "sympy",
            "A print setting of sympy",
            "sympy.printing.printer",
            lambda sympy: dict(sympy.Printer._global_settings),
        ),
        lambda sympy, name, value: sympy.Printer.set_global_settings(**{name: value}),
        fresh={},
    ),
    *rows(
        *("The assumptions of sympy", "sympy"),
        ("assumptions", lambda sympy: frozenset(assumed(sympy)), sympy_assumptions, frozenset()),
    ),
    entries(
        *("sklearn", "A setting of scikit-learn", "sklearn._config", lambda config: config.get_config()),
        lambda config, name, value: config.set_config(**{name: value}),
        fresh=lambda config: dict(config._global_config),  # each thread changes a copy
    ),
    *rows("A setting of Keras", "keras.src.backend.config", ("floatx", "floatx", "set_floatx", "float32")),
    *rows(
        *("A setting of Keras", "keras.src.backend.common.global_state"),
        ("policy", keras_policy, set_keras_policy, None),
        ("names", keras_names, set_keras_names, {}),
    ),
    *rows(
        *("A setting of torch", "torch"),
        ("device", torch_device, lambda torch, name: torch.set_default_device(None if name == "cpu" else name), "cpu"),
        (
            "dtype",
            lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
            lambda torch, name: torch.set_default_dtype(getattr(torch, name)),
            "float32",
        ),
        ("grad", "is_grad_enabled", "set_grad_enabled", True),
        ("hooks", torch_hooks, set_torch_hooks, 0),
        (
            *("deterministic", torch_determinism),
            lambda torch, value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
            (False, False),
        ),
        ("threads", torch_threads, lambda torch, count: torch.set_num_threads(count or max(machine_threads())), None),
        ("cudnn", torch_cudnn, give_torch_cudnn, (False, False)),
        ("precision", "get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
        (
            "printing",
            lambda torch: dict(vars(torch._tensor_str.PRINT_OPTS)),
            lambda torch, options: vars(torch._tensor_str.PRINT_OPTS).update(options),
            PRINTING,
        ),
        (
            "anomaly",
            lambda torch: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda torch, value: torch.set_anomaly_enabled(*value),
            (False, True),
        ),
    ),
    JAX_SETTINGS,
)
