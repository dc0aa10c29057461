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
    """Calls ``work``, or replays it.

    Args:
        work: one step on the samples at its first argument, ``chosen``, with everything it needs on the device already:
            it must neither read a value back nor depend on anything of the host that changes from step to step, but
            for its arguments, which are tensors. It gives one tensor.
        device: where it runs.
        batch: the size of a full batch.
        record: False never records.
    """

    def __init__(self, work: Callable[..., Tensor], device: torch.device, batch: int, record: bool = True) -> None:
        self.work, self.device, self.batch = work, device, batch
        self.records = record and device.type == "cuda"
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._out: Tensor | None = None

    def __call__(self, chosen: Tensor, *others: Tensor) -> Tensor:
        """One step; the tensor it gives is overwritten by the next."""
        if not self.records or len(chosen) != self.batch:
            return self.work(chosen, *others)
        if self._graph is None:
            if self._done < WARM:
                self._done += 1
                return self._aside(chosen, *others)
            self._record(chosen, *others)
        assert self._graph is not None
        assert self._out is not None
        for static, given in zip(self._inputs, (chosen, *others), strict=True):
            static.copy_(given)
        self._graph.replay()
        return self._out

    def _aside(self, *given: Tensor) -> Tensor:
        """A real step on a stream of its own, as a recording needs to be preceded by."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            out = self.work(*given)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return out

    def _record(self, *given: Tensor) -> None:
        self._inputs = tuple(tensor.clone() for tensor in given)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self.work(*self._inputs)
