"""One server trained by several processes: each takes a part of every batch, and torch's DDP adds up the gradients.

The batch of the settings is that of all processes together, and what is drawn at random (the order, the changes of
images, dropout) is drawn for the whole batch everywhere. So the training does not depend on how many there are, up to
the rounding of sums. Layers that draw where this cannot be seen are warned of.
"""

import gc
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.nn  # before there is a group: torch would import it later, and keep that group in defaults
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from l2h.errors import ModelError, RunError, SettingsError, about, first_line, warn
from l2h.training.checkpoint import Checkpoint

_LONGEST_WAIT = timedelta(minutes=30)
_CURRENT: ContextVar["Group | None"] = ContextVar("group", default=None)
#: Functions that change rows by draws, that draw as many as a tensor has, that draw into a tensor, and by a shape.
_CHANGED = (F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
_DRAWN = (torch.rand_like, torch.randn_like, torch.bernoulli, Tensor.bernoulli)
_FILLED = (Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_)
_MADE = (torch.rand, torch.randn)


@dataclass(frozen=True)
class Group:
    """The processes that train together, as one of them sees them.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
        restarted: whether ``torchrun`` has started them again after one of them failed.
    """

    rank: int = 0
    size: int = 1
    restarted: bool = False

    @property
    def first(self) -> bool:
        """Whether this process is the one that prints, writes files and trains the rejector."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place; every process gets the same bits."""
        distributed.all_reduce(values)
        return values

    def rows(self, samples: int) -> slice:
        """Return this process's part of so many samples; parts of too few are empty."""
        return slice(self.rank * samples // self.size, (self.rank + 1) * samples // self.size)

    def require_same(self, device: torch.device, **parts: object) -> None:
        """Raise a :class:`RunError` where a process has another value (by its ``repr``) than the first for a part."""
        digests = [list(hashlib.sha256(repr(value).encode()).digest()) for value in parts.values()]
        found = torch.zeros(self.size, len(parts), len(digests[0]), dtype=torch.int32, device=device)
        found[self.rank] = torch.tensor(digests, dtype=torch.int32)
        other = (self.sum(found) != found[0]).any(-1).nonzero().tolist()
        if other:
            process, part = other[0]
            raise RunError(
                f"process {process + 1} of {self.size} differs from the first in its {[*parts][part]}: start all with "
                "the same command and the same data"
            )

    def share(self, saved: Checkpoint | None, device: torch.device) -> Checkpoint | None:
        """Return the first process's checkpoint to all; the others need not see its files."""
        from safetensors.torch import load, save

        mine = saved if self.first else None
        meta = self._send(b"" if mine is None else json.dumps(mine.meta).encode(), device)
        if not meta:
            return None
        return Checkpoint(load(self._send(b"" if mine is None else save(mine.tensors), device)), json.loads(meta))

    def _send(self, data: bytes, device: torch.device) -> bytes:
        size = torch.tensor(len(data), device=device)
        distributed.broadcast(size, 0)
        sent = torch.zeros(int(size), dtype=torch.uint8, device=device)
        if self.first and data:
            sent.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        distributed.broadcast(sent, 0)
        return sent.cpu().numpy().tobytes()


def current_group() -> Group | None:
    """Return the group of the :func:`data_parallel` block around this call, where it has several processes."""
    return _CURRENT.get()


def helps_another() -> bool:
    """Return whether this process trains for another one, which prints and writes."""
    group = _CURRENT.get()
    return group is not None and not group.first


@contextmanager
def data_parallel(device: str = "auto") -> Iterator[Group]:
    """Train every server within the block by all processes that ``torchrun`` or Ray Train has started.

    Each process calls the same in the block. Only the first writes run folders. In a program that was started alone
    the block changes nothing, and its group has one process.

    Args:
        device: as in :class:`l2h.Settings`; each process of a machine takes a GPU of its own.

    Raises:
        SettingsError: there are more processes than GPUs, ``device`` names one of them, or what ``torchrun`` leaves in
            the environment is not whole.
        RunError: another process ended before the training did, or has other data, settings or another network.
    """
    started = distributed.is_available() and distributed.is_initialized()  # by Ray Train, or by the user's program
    told = {"RANK", "WORLD_SIZE"} <= os.environ.keys()  # by torchrun
    size = distributed.get_world_size() if started else _number("WORLD_SIZE") if told else 1
    if size < 2 or not distributed.is_available():
        yield Group()
        return
    rank = distributed.get_rank() if started else _number("RANK")
    if rank >= size:
        raise SettingsError(
            f"RANK={rank} of the environment is not below WORLD_SIZE={size}: start processes by torchrun"
        )
    if not started and not (os.environ.get("MASTER_ADDR") and _number("MASTER_PORT")):
        raise SettingsError(f"RANK and WORLD_SIZE={size} are set, but no MASTER_ADDR: start by torchrun, or unset them")
    group = Group(rank, size, "TORCHELASTIC_RESTART_COUNT" in os.environ and _number("TORCHELASTIC_RESTART_COUNT") > 0)
    with about(None if group.first else f"process {rank + 1} of {size}"):
        token = _CURRENT.set(group)
        try:
            if not started:
                backend = "cpu:gloo,cuda:nccl" if _take_gpu(device) else "gloo"
                store, _, _ = next(rendezvous("env://", timeout=_LONGEST_WAIT))
                # Of a start of its own: addresses of processes that have ended must not be found.
                store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
                distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_LONGEST_WAIT)
            yield group
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            raise RunError(
                "another process of this training ended; the same command with --resume goes on from the last "
                f"checkpoint ({first_line(error)})"
            ) from error
        finally:
            _CURRENT.reset(token)
            if not started and distributed.is_initialized():
                # A model in DDP is a part of cycles. While it lives so do the group's threads, which may abort an exit.
                gc.collect()
                distributed.destroy_process_group()


def _take_gpu(device: str) -> bool:
    """Give this process its own GPU where the device is CUDA, and return whether it is."""
    if device not in ("auto", "cpu", "cuda"):
        raise SettingsError(f"device={device!r}: each process takes a GPU of its own; use 'cuda', 'cpu' or 'auto'")
    if device == "cpu" or not torch.cuda.is_available():
        return False
    local, here = _number("LOCAL_RANK"), torch.cuda.device_count()
    if local >= here:
        raise SettingsError(f"process {local + 1} of this machine has no GPU of its own: it has {here}, start as many")
    torch.cuda.set_device(local)
    return True


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        problem = f"{name}={text!r} of the environment is no number"
        raise SettingsError(f"{problem}: start processes by torchrun, or unset RANK to train in one process")
    return int(text)


def _is_lost(error: RuntimeError) -> bool:
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


class SharedModel:
    """A model in torch's DDP, which starts with the first process's weights: of a batch it runs this process's part."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.group = group
        kinds = {type(module).__name__ for module in model.modules() if _draws_unseen(module)}
        if "SyncBatchNorm" in kinds:
            raise ModelError(
                "SyncBatchNorm in a server: use BatchNorm, which takes its means over the whole batch here"
            )
        if kinds and group.first:
            warn(
                f"{', '.join(sorted(kinds))} of the server: {group.size} processes train a similar server, but not that"
                " of one process, since each draws or measures on its own part of a batch"
            )
        # Else a parameter without a gradient ends the training. torch warns where there is none after all.
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        self.model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)

    def learn(
        self, x: Tensor, loss: Callable[[Tensor, slice], Tensor], reduction: str, autocast: torch.autocast
    ) -> Tensor:
        """Take the gradients of a loss on a whole batch, and return the loss on it.

        Args:
            x: the inputs of the whole batch, the same in every process.
            loss: gives the loss of some of its rows, from their scores and these rows.
            reduction: ``mean`` or ``sum``: what ``loss`` takes over its samples.
            autocast: what the model is run in.
        """
        n, rows = len(x), self.group.rows(len(x))
        share = (rows.stop - rows.start) / n if reduction == "mean" else float(rows.stop > rows.start)
        if rows.start == rows.stop:  # everybody has to take part: with a sample that does not count
            rows = slice(n - 1, n)
        with autocast, _WholeBatch(n, rows, share > 0):
            scores = self.model(x[rows])
        own = loss(scores.float(), rows) * share
        (own * self.group.size).backward()  # DDP divides by their number
        return self.group.sum(own.detach())


def _draws_unseen(module: nn.Module) -> bool:
    """Return whether a layer draws or takes statistics where :class:`_WholeBatch` does not see it."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return not module.track_running_stats
    if isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
        return module.track_running_stats
    return isinstance(module, nn.SyncBatchNorm | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


class _WholeBatch(TorchFunctionMode):
    """Within the block, random draws and batch norm of some rows are what they would be within the whole batch."""

    def __init__(self, samples: int, rows: slice, counts: bool) -> None:
        super().__init__()
        self.samples, self.rows, self.counts = samples, rows, counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        own = self.rows.stop - self.rows.start
        if func in _MADE and args:
            shape = tuple(args[0] if isinstance(args[0], tuple | list) else args)
            return func(self.samples, *shape[1:], **kwargs)[self.rows] if shape[:1] == (own,) else func(*args, **kwargs)
        if func in _CHANGED and len(args[0]) % own == 0:
            return self._of_all(func, args, kwargs)
        # What has as many rows by chance, such as a weight, is the same in every process.
        if (
            func in (*_DRAWN, *_FILLED)
            and args
            and args[0].shape[:1] == (own,)
            and not isinstance(args[0], nn.Parameter)
        ):
            drawn = self._of_all(func, args, kwargs)
            return args[0].copy_(drawn) if func in _FILLED else drawn
        return func(*args, **kwargs)

    def _of_all(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Return a function's rows of the whole batch, in which those of other processes are zero."""
        x, each = args[0], len(args[0]) // (self.rows.stop - self.rows.start)  # rows of this layer per sample
        rows = slice(self.rows.start * each, self.rows.stop * each)
        before, after = (x.new_zeros(n, *x.shape[1:]) for n in (rows.start, self.samples * each - rows.stop))
        out: Tensor = func(torch.cat([before, x, after]), *args[1:], **kwargs)[rows]
        return out

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        own = self.rows.stop - self.rows.start
        if not training or not 0 < p < 1 or len(input) % own:
            return F.dropout(input, p, training, inplace)
        each = len(input) // own  # rows of this layer per sample
        shape = (self.samples * each, *input.shape[1:])
        drawn = torch.empty(shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
        return input * drawn[self.rows.start * each : self.rows.stop * each].div_(1 - p)

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        axes, wide = [0, *range(2, input.ndim)], (1, -1, *(1,) * (input.ndim - 2))
        count = self.samples * input[0, 0].numel()
        if count < 2:  # torch's own error
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        x = input.float()
        mean = _total(x.sum(axes) * self.counts) / count
        x = x - mean.reshape(wide)
        variance = _total(x.square().sum(axes) * self.counts) / count
        with torch.no_grad():
            if running_mean is not None and running_var is not None:
                running_mean.lerp_(mean.to(running_mean), momentum)
                running_var.lerp_((variance * count / max(1, count - 1)).to(running_var), momentum)
        x = x * torch.rsqrt(variance + eps).reshape(wide)
        if weight is not None:
            x = x * weight.reshape(wide)
        if bias is not None:
            x = x + bias.reshape(wide)
        out: Tensor = x.to(input.dtype)
        return out


class _Total(torch.autograd.Function):
    """The sum of a tensor over all processes, and of its gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Total.forward(ctx, gradient)


def _total(part: Tensor) -> Tensor:
    total: Tensor = _Total.apply(part)  # type: ignore[no-untyped-call]
    return total
