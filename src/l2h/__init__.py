"""L2H: learning to help around a classifier that cannot change.

``import l2h`` loads nothing heavy: names are looked up when first used, so that a device without torch can import the
package.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: The modules of the public face and the names that l2h takes from them.
_NAMES: dict[str, tuple[str, ...]] = {
    "answers": ("Answer", "Answers"),
    "audits": (),
    "bundle": (),
    "classifiers": ("Preprocessing", "StochasticClient", "as_client"),
    "costs": ("Costs",),
    "data": ("Dataset", "load_dataset"),
    "decision": (),
    "edge": ("AsyncEdgeClient", "EdgeClient", "EdgeError"),
    "errors": (),
    "estimator": ("HelpClassifier",),
    "export": (),
    "limits": ("Limiter", "RateLimit"),
    "losses": (),
    "methods": (),
    "metrics": ("Report",),
    "models": (),
    "money": ("Money",),
    "recalibration": (),
    "report": (),
    "remote": ("RemoteServer",),
    "routing": ("Router",),
    "settings": ("Settings", "StageSettings"),
    "system": ("HelpSystem", "load"),
    "training": (),
}
_MODULES = _NAMES.keys() - {"answers", "estimator", "money", "system"}  # only their names are public
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Answer",
    "Answers",
    "AsyncEdgeClient",
    "Costs",
    "Dataset",
    "EdgeClient",
    "EdgeError",
    "HelpClassifier",
    "HelpSystem",
    "Limiter",
    "Money",
    "Preprocessing",
    "RateLimit",
    "RemoteServer",
    "Report",
    "Router",
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
    from l2h.classifiers import Preprocessing, StochasticClient, as_client
    from l2h.costs import Costs
    from l2h.data import Dataset, load_dataset
    from l2h.edge import AsyncEdgeClient, EdgeClient, EdgeError
    from l2h.estimator import HelpClassifier
    from l2h.limits import Limiter, RateLimit
    from l2h.metrics import Report
    from l2h.money import Money
    from l2h.remote import RemoteServer
    from l2h.routing import Router
    from l2h.settings import Settings, StageSettings
    from l2h.system import HelpSystem, load


def __getattr__(name: str) -> Any:
    home = _HOME.get(name) or (name if name in _MODULES else None)
    if home is None:
        raise AttributeError(f"module 'l2h' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"l2h.{home}")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != "l2h":
            from l2h.errors import missing_extra

            raise missing_extra(f"l2h.{name} needs the package {error.name!r}", "train,report") from error
        raise
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
