"""Somebody's API as the server: asked in batches, each input once, with every paid answer kept."""

from l2h.remote.cache import AnswerCache
from l2h.remote.oip import RemoteError
from l2h.remote.server import SKLEARN, RemoteServer, is_remote

__all__ = ["SKLEARN", "AnswerCache", "RemoteError", "RemoteServer", "is_remote"]
