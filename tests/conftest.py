from __future__ import annotations

import os

import torch
from hypothesis import settings

# Every run tries the same examples, and a busy machine fails none.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# MLflow sends how it is used unless it is told not to; this holds for the processes that tests start as well.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

# A Ray that a test starts is its own: that of another test may be there at the same time, and end before.
os.environ["RAY_ADDRESS"] = "local"

# Small nets are fastest on one thread, and one thread adds up in one order.
torch.set_num_threads(1)

pytest_plugins = ["shared_fixtures"]

# Not searched for doctests: as modules the conftests of several folders would share one name.
collect_ignore_glob = ["*conftest.py"]
