from __future__ import annotations

from serving_fixtures import bundle, postgres, server, x

__all__ = ["bundle", "postgres", "server", "x"]
