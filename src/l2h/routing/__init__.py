"""Routing where only outcomes are known: a :class:`Router` says for a text or an embedding who should answer it.

Loading a router and deciding need numpy alone; :func:`fit_router` needs scikit-learn (the extra ``train``).
"""

from l2h.ngrams import NGrams
from l2h.routing.router import Route, Router, Routes
from l2h.routing.training import fit_router

__all__ = ["NGrams", "Route", "Router", "Routes", "fit_router"]
