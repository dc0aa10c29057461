"""Records a training step as a CUDA graph and replays it: launching the kernels of a small step is its slowest part.

On CUDA the first full batches run as they are, which also creates the optimizer's state. The next one is recorded as a
CUDA graph, and every full batch after it is one replay: no Python, no launches, no waiting for the host. A last batch
that is not full runs as it is. On other devices nothing is recorded. Random draws inside a step (dropout, augmentation)
follow torch's generator in a replay as they do outside.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM = 3  # steps before the recording, in which libraries pick their kernels and allocate their workspaces


class RecordedStep:
    """Calls ``work``, or replays its recording.

    ``work`` takes one step on the samples that its first argument, ``chosen``, selects, and returns one tensor. All it
    needs must be on the device already. It must not read a value back, and apart from its arguments, which are tensors,
    it must not depend on anything of the host that changes from step to step.
    """

    def __init__(self, work: Callable[..., Tensor], device: torch.device, batch: int, record: bool = True) -> None:
        self.work, self.device, self.batch = work, device, batch
        self.records = record and device.type == "cuda"
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._out: Tensor | None = None

    def __call__(self, chosen: Tensor, *others: Tensor) -> Tensor:
        """Take one step; the next step overwrites the tensor that is returned."""
        if not self.records or len(chosen) != self.batch:
            return self.work(chosen, *others)
        if self._graph is None:
            if self._done < WARM:
                self._done += 1
                return self._run_on_side_stream(chosen, *others)
            self._record(chosen, *others)
        assert self._graph is not None
        assert self._out is not None
        for static, given in zip(self._inputs, (chosen, *others), strict=True):
            static.copy_(given)
        self._graph.replay()
        return self._out

    def _run_on_side_stream(self, *given: Tensor) -> Tensor:
        """Take a real step on a stream of its own, as torch asks for before a recording."""
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
