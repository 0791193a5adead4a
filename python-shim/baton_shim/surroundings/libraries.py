"""Settings of numpy, pandas, scikit-learn, mpmath, sympy and torch."""

from __future__ import annotations

import os
import sys
from typing import Any

from baton_shim.surroundings.formats import FLOATS, is_of_notebook
from baton_shim.surroundings.jaxes import JAX
from baton_shim.surroundings.kind import Kind, Settings, each


class NumpyErrors(Settings):
    name, title, module = "numpy.seterr", "numpy's handling of floating-point errors", "numpy"

    def look(self) -> dict[str, Any]:
        numpy: Any = sys.modules["numpy"]
        return {**numpy.geterr(), "buffer": numpy.getbufsize()}

    def fresh(self) -> dict[str, Any]:
        return {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn", "buffer": 8192}

    def set(self, name: str, value: Any) -> None:
        numpy: Any = sys.modules["numpy"]
        numpy.setbufsize(value) if name == "buffer" else numpy.seterr(**{name: value})


class NumpyPrinting(Kind):
    name, title, module, whole = "numpy.set_printoptions", "numpy's print options", "numpy", True

    def look(self) -> Any:
        options = sys.modules["numpy"].get_printoptions()
        if options.get("formatter") is None and options.get("override_repr") is None:
            return options
        return {name: value for name, value in options.items() if not is_of_notebook(value)}

    def fresh(self) -> Any:
        return None

    def apply(self, difference: Any) -> None:
        sys.modules["numpy"].set_printoptions(**difference)


class PandasOptions(Settings):
    """Those that differ from the library's own; the library itself is asked for nothing, since that warns."""

    name, title, module = "pandas.options", "An option of pandas", "pandas"

    def __init__(self) -> None:
        self._seen: dict[str, Any] | None = None
        self._found: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        config: Any = sys.modules["pandas._config.config"]
        if self._seen != config._global_config:
            self._seen = copied(config._global_config)
            options = ((config._registered_options.get(name), name, value) for name, value in flat(self._seen))
            changed = {name: value for option, name, value in options if option and value != option.defval}
            self._found = {name: one for name, one in changed.items() if name != FLOATS or not is_of_notebook(one)}
        return self._found

    def fresh(self) -> dict[str, Any]:
        return {}

    def apply(self, difference: Any) -> list[str] | None:
        new, gone = difference
        pandas = sys.modules["pandas"]
        troubles = each(new.items(), lambda item: pandas.set_option(*item), self.title)
        return troubles + each(gone, lambda name: pandas.reset_option(name), self.title)


def copied(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: copied(value) if isinstance(value, dict) else value for name, value in tree.items()}


def flat(tree: dict[str, Any], above: str = "") -> Any:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


class SklearnSettings(Settings):
    name, title, module = "sklearn", "A setting of scikit-learn", "sklearn._config"

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = sys.modules["sklearn._config"].get_config()
        return found

    def fresh(self) -> dict[str, Any]:
        return dict(sys.modules["sklearn._config"]._global_config)  # each thread changes a copy

    def apply(self, difference: Any) -> list[str] | None:
        new, _ = difference
        config = sys.modules["sklearn._config"]
        return each(new.items(), lambda item: config.set_config(**dict([item])), self.title)


class PolarsPrinting(Settings):
    """What `polars.Config` keeps in the library. The rest of it is in the environment."""

    name, title, module = "polars", "How polars prints numbers", "polars.config"

    def look(self) -> dict[str, Any]:
        direct = getattr(sys.modules["polars.config"], "_POLARS_CFG_DIRECT_VARS", {})
        return {name: find() for name, find in direct.items()}

    def fresh(self) -> dict[str, Any]:
        return {}

    def set(self, name: str, value: Any) -> None:
        getattr(sys.modules["polars.config"].Config, name)(value)


class MpmathPrecision(Kind):
    name, title, module, whole = "mpmath", "The precision of mpmath", "mpmath", True

    def look(self) -> int:
        found: int = sys.modules["mpmath"].mp.prec
        return found

    def fresh(self) -> int:
        return 53

    def apply(self, difference: int) -> None:
        sys.modules["mpmath"].mp.prec = difference


class SympyPrinting(Settings):
    name, title, module = "sympy", "How sympy prints", "sympy.printing.printer"

    def look(self) -> dict[str, Any]:
        return dict(sys.modules["sympy.printing.printer"].Printer._global_settings)

    def fresh(self) -> dict[str, Any]:
        return {}

    def set(self, name: str, value: Any) -> None:
        sys.modules["sympy.printing.printer"].Printer.set_global_settings(**{name: value})


class TorchSettings(Settings):
    name, title, module = "torch", "A setting of torch", "torch"

    def look(self) -> dict[str, Any]:
        torch: Any = sys.modules["torch"]
        threads = torch.get_num_threads()
        device_here = getattr(torch, "get_default_device", None)  # torch 2.3 and newer
        return {
            "device": str(device_here()) if device_here else "cpu",
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "grad": torch.is_grad_enabled(),
            "deterministic": (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            "threads": None if threads in machine_threads() else threads,
            "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
            "precision": torch.get_float32_matmul_precision(),
            "printing": dict(vars(torch._tensor_str.PRINT_OPTS)),
            "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        }

    def fresh(self) -> dict[str, Any]:
        printing = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}
        return {
            "device": "cpu",
            "dtype": "float32",
            "grad": True,
            "deterministic": (False, False),
            "threads": None,
            "cudnn": (False, False),
            "precision": "highest",
            "printing": printing,
            "anomaly": (False, True),
        }

    def set(self, name: str, value: Any) -> None:
        torch: Any = sys.modules["torch"]
        if name == "device":
            torch.set_default_device(None if value == "cpu" else value)
        elif name == "dtype":
            torch.set_default_dtype(getattr(torch, value))
        elif name == "grad":
            torch.set_grad_enabled(value)
        elif name == "deterministic":
            torch.use_deterministic_algorithms(value[0], warn_only=value[1])
        elif name == "threads":
            torch.set_num_threads(value or max(machine_threads()))
        elif name == "cudnn":
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = value
        elif name == "precision":
            torch.set_float32_matmul_precision(value)
        elif name == "printing":
            vars(torch._tensor_str.PRINT_OPTS).update(value)
        elif name == "anomaly":
            torch.set_anomaly_enabled(*value)


def machine_threads() -> tuple[int, ...]:
    """How many torch takes by itself: each core, or each second one where two share a core's units."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0))
    return (int(asked),) if asked.isdigit() else (cores, max(1, cores // 2))


LIBRARIES: tuple[Kind, ...] = (
    *(NumpyErrors(), NumpyPrinting(), PandasOptions()),
    *(PolarsPrinting(), MpmathPrecision(), SympyPrinting(), SklearnSettings(), TorchSettings(), JAX),
)
