"""A training step recorded once and replayed: on a GPU small steps are bound by launching kernels, not by running them.

On CUDA the first full batches run as they are, which also makes the optimizer's state; the next is recorded as a CUDA
graph, and every full batch after it is one replay: no Python, no launches, no waiting for the host. A last batch that
is not full runs as it is. On other devices nothing is recorded. What is drawn inside a step (dropout, augmentation)
follows torch's generator in a replay as it does outside.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM = 3  # steps before the recording: libraries pick their kernels and make their workspaces in them


class RecordedStep:
    """Calls ``work(chosen)``, or replays it.

    Args:
        work: one step on the samples at ``chosen``, with everything it needs on the device already: it must neither
            read a value back nor depend on anything of the host that changes from step to step. It gives one tensor.
        device: where it runs.
        batch: the size of a full batch.
    """

    def __init__(self, work: Callable[[Tensor], Tensor], device: torch.device, batch: int) -> None:
        self.work, self.device, self.batch = work, device, batch
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._chosen: Tensor | None = None
        self._out: Tensor | None = None

    def __call__(self, chosen: Tensor) -> Tensor:
        """One step; the tensor it gives is overwritten by the next."""
        if self.device.type != "cuda" or len(chosen) != self.batch:
            return self.work(chosen)
        if self._graph is None:
            if self._done < WARM:
                self._done += 1
                return self._aside(chosen)
            self._record(chosen)
        assert self._graph is not None
        assert self._chosen is not None
        assert self._out is not None
        self._chosen.copy_(chosen)
        self._graph.replay()
        return self._out

    def _aside(self, chosen: Tensor) -> Tensor:
        """A real step on a stream of its own, as a recording needs to be preceded by."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            out = self.work(chosen)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return out

    def _record(self, chosen: Tensor) -> None:
        self._chosen = chosen.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self.work(self._chosen)
