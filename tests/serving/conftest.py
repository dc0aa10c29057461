from __future__ import annotations

from serving_fixtures import bundle, server, x

__all__ = ["bundle", "server", "x"]
