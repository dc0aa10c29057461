"""What processes of a Ray cluster tell the command that started them, while it waits for Ray."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

from l2h.errors import L2HError
from l2h.experiments.clusters import RayCluster


@contextlib.contextmanager
def message_queue(cluster: RayCluster, take: Callable[..., None]) -> Iterator[Any]:
    """Give a queue for processes of the cluster: a thread calls ``take`` with each tuple that is put into it.

    At the end of the block everything is taken; what ``take`` raised is raised then.
    """
    from ray.util.queue import Queue

    queue, ended = Queue(actor_options={"num_cpus": 0}), threading.Event()
    failures: list[Exception] = []

    def listen() -> None:
        while True:
            try:
                take(*queue.get(timeout=0.2))
            except Empty:
                if ended.is_set():
                    return
            except (L2HError, OSError, ValueError, cluster.ray.exceptions.RayError) as error:
                failures.append(error)
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        ended.set()
        thread.join()
        queue.shutdown()
    if failures:
        raise failures[0]
