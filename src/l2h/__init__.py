"""L2H: learning to help around a classifier that cannot change.

``import l2h`` loads nothing heavy: names are looked up when first used, so that a device without torch can import the
package, and floors 0 and 1 (:mod:`l2h.costs`, :mod:`l2h.decision`, :mod:`l2h.metrics`) with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Public name to the module that holds it.
_HOME = {
    "Answer": "l2h.answers",
    "Answers": "l2h.answers",
    "AsyncEdgeClient": "l2h.edge",
    "Costs": "l2h.costs",
    "EdgeClient": "l2h.edge",
    "RateLimit": "l2h.limits",
    "Limiter": "l2h.limits",
    "Dataset": "l2h.data",
    "HelpSystem": "l2h.system",
    "Report": "l2h.metrics",
    "Settings": "l2h.settings",
    "StageSettings": "l2h.settings",
    "StochasticClient": "l2h.classifiers",
    "as_client": "l2h.classifiers",
    "load": "l2h.system",
    "load_dataset": "l2h.data",
}
_MODULES = (
    "bundle",
    "classifiers",
    "costs",
    "data",
    "decision",
    "edge",
    "errors",
    "limits",
    "losses",
    "methods",
    "metrics",
    "models",
    "report",
    "settings",
    "training",
)

__all__ = [
    "Answer",
    "Answers",
    "AsyncEdgeClient",
    "Costs",
    "Dataset",
    "EdgeClient",
    "HelpSystem",
    "Limiter",
    "RateLimit",
    "Report",
    "Settings",
    "StageSettings",
    "StochasticClient",
    "__version__",
    "as_client",
    "load",
    "load_dataset",
]

if TYPE_CHECKING:
    from l2h.answers import Answer, Answers
    from l2h.classifiers import StochasticClient, as_client
    from l2h.costs import Costs
    from l2h.data import Dataset, load_dataset
    from l2h.edge import AsyncEdgeClient, EdgeClient
    from l2h.limits import Limiter, RateLimit
    from l2h.metrics import Report
    from l2h.settings import Settings, StageSettings
    from l2h.system import HelpSystem, load


def __getattr__(name: str) -> Any:
    home = _HOME.get(name) or (f"l2h.{name}" if name in _MODULES else None)
    if home is None:
        raise AttributeError(f"module 'l2h' has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != "l2h":
            from l2h.errors import MissingExtraError

            raise MissingExtraError(
                f"l2h.{name} needs the package {error.name!r}: pip install 'l2h[train,report]'"
            ) from error
        raise
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
