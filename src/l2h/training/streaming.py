"""Inputs of a training: on the device where they fit there, else read by worker processes a few batches ahead.

torch's DataLoader runs the workers. It gets the order from the stage, which draws it by seed and epoch, so a streamed
training takes the steps of one in memory, to the last bit.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import shutil
import signal
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from l2h.errors import DataError, L2HError, reason
from l2h.rows import Array, RowNumbers, Rows, SelectedRows, batch_rows, free_memory, in_bytes
from l2h.training.augment import Changes

if TYPE_CHECKING:
    from l2h.training.loop import Context

log = logging.getLogger("l2h.training")

#: The share of the free memory of a device that inputs may take: the networks and their steps need the rest.
SHARE = 0.5
#: What a worker reads at a time, in bytes: small batches are read several at once, since each handover takes time.
BLOCK = 2 * 2**20
#: Blocks that each worker reads ahead.
AHEAD = 2
MOST_WORKERS = 8
BATCH = 2048  # samples that a network answers at a time, at most


class StreamedInputs:
    """Inputs that stay where they are until a step needs them, each with the change that was drawn for it, if any."""

    def __init__(self, reader: RowReader, rows: RowNumbers, changes: Changes | None = None) -> None:
        self.reader, self.rows, self.changes = reader, rows, changes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.reader.source.shape[1:])

    def __getitem__(self, index: Tensor) -> StreamedInputs:
        """Return some of the inputs, not read yet."""
        rows = self.rows[index.cpu().numpy()]
        return StreamedInputs(self.reader, rows, None if self.changes is None else self.changes.at(index))

    def changed_as(self, drawn: Changes | None) -> StreamedInputs:
        """Return the inputs with changes drawn for them."""
        if drawn is not None:  # no image is so large that two bytes were too few
            drawn = replace(drawn, down=drawn.down.to(torch.int16), across=drawn.across.to(torch.int16))
        return StreamedInputs(self.reader, self.rows, drawn)

    def finish(self, chosen: Tensor, read: Tensor) -> Tensor:
        """Return the inputs numbered ``chosen`` as a step needs them, from what :meth:`batches` read of them."""
        return read if self.changes is None else self.changes.at(chosen).apply(read)

    def read(self, chosen: Tensor) -> Tensor:
        """Return the inputs numbered ``chosen``, read by this process."""
        return self.finish(chosen, self.reader.read(self.rows[chosen.cpu().numpy()]))

    def batches(self, order: npt.NDArray[np.int64], batch: int) -> Iterator[Tensor]:
        """Give the inputs in this order, a batch at a time and on the device, without their changes."""
        return self.reader.batches(self.rows[order], batch)

    def split(self, batch: int) -> Iterator[Tensor]:
        """Give all inputs in their order, a batch at a time, as ``Tensor.split`` does."""
        chosen = torch.arange(len(self), device=self.reader.device).split(batch)
        for each, read in zip(chosen, self.batches(np.arange(len(self)), batch), strict=True):
            yield self.finish(each, read)

    @staticmethod
    def join(parts: Sequence[StreamedInputs]) -> StreamedInputs:
        """Return inputs of one source after each other."""
        reader = parts[0].reader
        assert all(part.reader is reader for part in parts)
        changes = None
        if any(part.changes is not None for part in parts):
            changes = Changes.join([part.changes or _unchanged(len(part), reader.device) for part in parts])
        return StreamedInputs(reader, np.concatenate([part.rows for part in parts]), changes)


#: (n, ...), a tensor on the device or read when they are needed.
Inputs: TypeAlias = Tensor | StreamedInputs


def take_inputs(X: Array | Rows, context: Context, times: int = 1) -> Inputs:
    """Return samples as inputs of a training: on the device if ``times`` as many of them fit there, else streamed.

    An array in memory is used where it lies. :class:`l2h.data.Rows` are brought to a GPU where they fit, and otherwise
    stay where they are.
    """
    if not _fits(X, context.device, times):
        return stream(X, context)
    if isinstance(X, Rows):
        return _on_gpu(X, context)
    return torch.from_numpy(np.require(X, requirements=["C", "W"])).to(context.device)


def stream(X: Array | Rows, context: Context) -> StreamedInputs:
    """Return samples as inputs that are read when they are needed."""
    source, rows = (X.source, X.rows) if isinstance(X, SelectedRows) else (X, np.arange(len(X)))
    reader = context.readers.get(id(source))
    if reader is None:
        for other in context.readers.values():
            other.rest()
        reader = context.readers[id(source)] = RowReader(source, context.device, context.settings.workers)
    return StreamedInputs(reader, rows)


def pick(x: Inputs, chosen: Tensor, read: Tensor | None = None) -> Tensor:
    """Return the inputs numbered ``chosen``; ``read`` is what was read of them ahead, where they are streamed."""
    if isinstance(x, Tensor):
        return x[chosen]
    return x.read(chosen) if read is None else x.finish(chosen, read)


def steps(x: Inputs, order: Tensor, batch: int) -> Iterator[tuple[Tensor, ...]]:
    """Give what a step on each batch of this order gets: the numbers of its samples and, if streamed, their inputs."""
    batches = order.split(batch)
    if isinstance(x, Tensor):
        return ((chosen,) for chosen in batches)
    return zip(batches, x.batches(order.cpu().numpy(), batch), strict=True)


class RowReader:
    """Reads rows of a source in the order that is asked for, by worker processes that it keeps, and moves them."""

    def __init__(self, source: Array | Rows, device: torch.device, workers: int | None = None) -> None:
        self.source, self.device = source, device
        self.row_bytes = math.prod(source.shape[1:]) * source.dtype.itemsize
        self._wanted = workers
        self._plan: list[RowNumbers] = []
        self._loader: DataLoader[Any] | None = None
        self._finalizer: weakref.finalize[Any, RowReader] | None = None
        self._busy = False

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self.source, self.device, self._wanted)  # in another process it has workers of its own

    def read(self, rows: RowNumbers) -> Tensor:
        """Return rows on the device, read by this process."""
        return torch.from_numpy(self.source[rows]).to(self.device)

    def batches(self, rows: RowNumbers, batch: int) -> Iterator[Tensor]:
        """Give the rows in batches on the device, read ahead; only one such pass has the workers at a time."""
        size = max(1, BLOCK // max(1, batch * self.row_bytes)) * batch
        plan = [rows[start : start + size] for start in range(0, len(rows), size)]
        alone = self._busy or len(plan) < 2 or not self.workers(size)
        blocks = (torch.from_numpy(self.source[block]) for block in plan) if alone else self._ahead(plan, size)
        for block in blocks if self.device.type == "cpu" else self._moved(blocks):
            yield from block.split(batch)

    def rest(self) -> None:
        """End the worker processes, unless they are at work; the next pass starts new ones."""
        if self._finalizer is not None and not self._busy:
            self._finalizer.detach()
            self._finalizer = self._loader = None

    def workers(self, block: int) -> int:
        """Return how many processes read blocks of so many rows; none where this process may have no children."""
        if multiprocessing.current_process().daemon:
            return 0
        wanted = self._wanted
        if wanted is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            wanted = min(MOST_WORKERS, max(1, cores // 2))
        # Blocks are handed over in shared memory, which containers often have little of.
        room = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else free_memory()
        return min(wanted, room // (2 * (AHEAD + 1) * block * max(1, self.row_bytes)))

    def _ahead(self, plan: list[RowNumbers], block: int) -> Iterator[Tensor]:
        if self._loader is None:
            workers = self.workers(block)
            self._loader = DataLoader(
                _Blocks(self.source),
                batch_sampler=_Plan(self._plan),  # type: ignore[arg-type]  # arrays of row numbers, not lists
                collate_fn=_as_read,
                num_workers=workers,
                prefetch_factor=AHEAD,
                persistent_workers=True,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # without one it would draw from torch's own, which the training uses
            )
            # Whoever keeps this reader may be part of a cycle. Were the loader found in it, its queues would be closed
            # before it can tell the workers to end, and it would wait for them in vain.
            self._finalizer = weakref.finalize(self, _let_go, self._loader)
            self._finalizer.atexit = False
            size = in_bytes(len(self.source) * self.row_bytes)
            log.info("inputs (%s) are read in batches by %d worker process%s", size, workers, "es" * (workers > 1))
        self._plan[:], self._busy = plan, True
        try:
            with _interrupts_held():
                reads = iter(self._loader)  # starts the workers
            for read in reads:
                if isinstance(read, L2HError):
                    raise read
                yield read
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DataError(
                f"a process that reads inputs ended: {reason(error)}; fewer (workers=1), or none "
                "(workers=0), need less memory"
            ) from error
        finally:
            self._busy = False

    def _moved(self, blocks: Iterator[Tensor]) -> Iterator[Tensor]:
        """Give the blocks on the GPU. Each is copied while the steps on the one before it run."""
        side: torch.cuda.Stream = torch.cuda.Stream(self.device)
        used: deque[torch.cuda.Event] = deque()
        for block in blocks:
            if len(used) == AHEAD:  # the host must not be far ahead: every block in flight takes memory
                used.popleft().synchronize()
            with torch.cuda.stream(side):
                moved = (block if block.is_pinned() else block.pin_memory()).to(self.device, non_blocking=True)
            here = torch.cuda.current_stream(self.device)
            here.wait_stream(side)
            moved.record_stream(here)
            yield moved
            used.append(here.record_event())


class _Blocks(Dataset[Any]):
    """The source as the DataLoader's data set: its samples are read a whole block at a time."""

    def __init__(self, source: Array | Rows) -> None:
        self.source = source

    def __getitems__(self, rows: RowNumbers) -> Tensor | L2HError:
        # Errors are raised by the one who asks: torch would wrap them into tracebacks. It would also move the block
        # into shared memory, but in a thread whose failure is not told to anyone.
        try:
            block: Tensor = torch.from_numpy(self.source[rows])
        except L2HError as error:
            return error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the code of a user's Rows, which may raise anything
            why = f"{type(error).__name__}: {reason(error)}"
            return DataError(f"inputs cannot be read: {why}; with workers=0 the traceback shows where")
        try:
            block.share_memory_()
        except RuntimeError as error:
            return DataError(
                f"no room to hand over inputs that were read: {reason(error)}; give /dev/shm more, or "
                "read without processes of their own (workers=0)"
            )
        return block


class _Plan:
    """The DataLoader's batch sampler: the blocks that the reader put into ``blocks`` for the next pass."""

    def __init__(self, blocks: list[RowNumbers]) -> None:
        self.blocks = blocks

    def __iter__(self) -> Iterator[RowNumbers]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C, which a terminal sends to all: processes that are started within never hear of it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _let_go(loader: DataLoader[Any]) -> None:
    """Do nothing: whoever is to call this keeps the loader until then."""


def _as_read(block: Any) -> Any:
    return block


def _unchanged(n: int, device: torch.device) -> Changes:
    zero = torch.zeros(n, dtype=torch.int16, device=device)
    return Changes(zero, zero, None)


def _fits(X: Array | Rows, device: torch.device, times: int) -> bool:
    if device.type != "cuda":
        return isinstance(X, np.ndarray) and (times == 1 or X.nbytes * times <= SHARE * free_memory())
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return X.nbytes * times <= SHARE * free


def _on_gpu(X: Rows, context: Context) -> Tensor:
    streamed, batch = stream(X, context), batch_rows(X.shape, 2**20)
    out = torch.empty(X.shape, dtype=getattr(torch, X.dtype.name), device=context.device)
    for place, part in zip(out.split(batch), streamed.split(batch), strict=True):
        place.copy_(part)
    log.info("inputs (%s) stay on %s", in_bytes(X.nbytes), context.device)
    return out
