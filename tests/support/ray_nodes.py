"""A Ray cluster of several nodes on this machine, each with its own processes, as commands find it by RAY_ADDRESS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from typing import Any

import pytest
from ray._private import services
from ray.cluster_utils import Cluster
from waiting import STUCK, until

#: Of an object store: the smallest that Ray takes.
STORE = 80 * 2**20
NODE = services.get_node


def patient(*which: Any) -> Any:
    """A node's entry as Ray looks it up; Ray itself gives up after 30 s, when a busy machine still starts it."""
    found = []

    def there() -> bool:
        with suppress(RuntimeError):
            found.append(NODE(*which))
        return bool(found)

    until(there)
    return found[0]


@contextmanager
def ray_nodes(count: int = 2, cpus: int = 1, port: int | None = None, **head: Any) -> Iterator[Cluster]:
    """Start nodes with so many CPUs each; with a port, the head takes the connections of ``ray://`` there."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "60")  # so that a new connection is tried soon
    patch.setattr(services, "get_node", patient)
    patch.setattr(Cluster, "_wait_for_node", partialmethod(Cluster._wait_for_node, timeout=STUCK))
    given = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False, **head}
    cluster = Cluster(True, head_node_args=given | ({} if port is None else {"ray_client_server_port": port}))
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
    finally:
        patch.undo()
        cluster.shutdown()
