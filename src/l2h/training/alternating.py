"""Algorithms 1 and 2 of the paper: a server step by L1, then a rejector step by L2, on the same batch.

Algorithm 1 gives every rejector the server as it is after its step. Algorithm 2 gives it the last copy that arrived
over its link (:mod:`l2h.training.links`). A link that is always up is Algorithm 1, so one stage trains both. The
server's loss does not depend on the rejectors, so one server is enough for all of them, whatever their costs and links.

The authors' released scripts differ from the algorithms: they judge the server with its dropout on, and the one without
copies steps both nets at once, after the server was judged. Both can be asked for (``dropout`` of a
:class:`l2h.decision.RejectorSpec`, ``joint`` of :class:`l2h.Settings`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from l2h.decision import RejectorSpec
from l2h.errors import SettingsError
from l2h.losses import server_loss
from l2h.rows import batch_rows
from l2h.settings import StageSettings
from l2h.training.accumulating import AccumulatingSGD, server_optimizer
from l2h.training.checkpoint import optimizer_tensors, prefixed, restore_optimizer, under
from l2h.training.links import parse_link
from l2h.training.loop import Context, RecordedStep, Stage, derive, learning_rate, order, set_learning_rate
from l2h.training.rejector_stage import RejectorStep
from l2h.training.rejectors import RejectorBatch
from l2h.training.streaming import Inputs, pick, steps

COPY_BATCH = 2048  # samples per call of a copy, at most


class AlternatingStage(Stage):
    """Trains server and rejectors in turn on the same batches, for ``server_settings.epochs`` epochs.

    Samples are tensors on the device; the inputs ``x`` may also be streamed. ``client_correct`` is (n,), or (R, n)
    where each rejector has its own client. Epochs and batch of the rejectors are the server's.
    """

    def __init__(
        self,
        name: str,
        server: nn.Module,
        rejectors: RejectorBatch,
        specs: Sequence[RejectorSpec],
        x: Inputs,
        y: Tensor,
        view: Tensor,
        client_correct: Tensor,
        server_settings: StageSettings,
        rejector_settings: StageSettings,
        context: Context,
    ) -> None:
        if server_settings.smoothing or server_settings.mix or server_settings.distort:
            raise SettingsError(
                "recipe 'paper' trains the server by L1 alone: smoothing, mix and distort go with 'default'"
            )
        super().__init__(name, server_settings, len(x))
        self.joint = context.settings.joint
        if self.joint and any(str(spec.sync) != "1" for spec in specs):
            raise SettingsError("joint=True steps server and rejector at once: it goes with sync=1 alone")
        self.server, self.rejectors, self.context = server, rejectors, context
        self.x, self.y, self.view, self.client_correct = x, y, view, client_correct
        self.optimizer = server_optimizer(server_settings, server, context)
        self.rejector_step = RejectorStep(rejectors, specs, rejector_settings, context)
        for spec in specs:
            if spec.start >= server_settings.epochs:
                raise SettingsError(
                    f"start={spec.start}: the server trains for {server_settings.epochs} epochs, and the rejector must "
                    "start before the last one"
                )
        judges = [(parse_link(spec.sync, spec.seed), spec.dropout) for spec in specs]
        distinct = list(dict.fromkeys(judges))
        self.group = torch.tensor([distinct.index(judge) for judge in judges], device=context.device)
        #: For each distinct judge, a link with dropout on or off: at which steps it is up, and whether dropout is on.
        self.up = np.stack([link.schedule(self.all_steps, self.steps) for link, _ in distinct])
        self.dropout = [dropout for _, dropout in distinct]
        self.dropped = OwnDropout(server, context.device)
        #: What has arrived over each link; None where it is always up.
        self.copies = [None if up.all() else {n: t.clone() for n, t in server.state_dict().items()} for up in self.up]
        self.step = RecordedStep(self._both, context.device, self.batch, record=not self.rejector_step.draws)
        #: For the rejectors' step and for judging the server, beside the server's step.
        self._streams = [torch.cuda.Stream(context.device) for _ in range(2)] if self.step.records else []
        self._current_step = 0

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        # Nothing in here waits for the host. The rejectors' step on a batch and the gradients of the server's next step
        # depend on the same server and not on each other, so they are one recorded step: on a GPU they run in parallel.
        # A joint step judges the server before its step, so there both are on the same batch.
        device, batch, first = self.context.device, self.batch, epoch * self.steps
        shuffled = order(self.samples, device, self.context.settings.seed, self.name, epoch)
        # Whether the copy at the end of each link is right on the samples, in the epoch's order. A copy stays as it is
        # until the link is up again, so it is run once for all the batches until then.
        begun = bool(self.middle)
        nothing = torch.zeros(len(self.up), self.samples, dtype=torch.bool, device=device)
        copy_correct = self.middle.setdefault("copy_correct", nothing)
        total = self.middle.setdefault("total", torch.zeros(1 + self.rejectors.size + len(self.up), device=device))
        live = torch.from_numpy(self.up[:, first : first + self.steps]).to(device)
        self._current_step = first
        self.rejector_step.begin_epoch(epoch)
        self._set_rate(first)
        batches = steps(self.x, shuffled[self.done * batch :], batch)
        chosen, *read = next(batches)
        if not begun:
            for link in range(len(self.up)):
                self._run_copy(link, first, copy_correct, shuffled)
            if not self.joint:
                total[0] += self._train_server(chosen, *read)
        for i in range(self.done, self.steps):
            self._current_step = step = first + i
            self._update_copies(copy_correct, shuffled)
            correct = copy_correct[:, i * batch : i * batch + len(chosen)], live[:, i : i + 1]
            self._draw_dropout(len(chosen), step)
            following, *ahead = next(batches, (chosen, *read))
            if self.joint or i + 1 < self.steps:
                trained = (chosen, *read) if self.joint else (following, *ahead)
                self._set_rate(step, step if self.joint else step + 1)
                full = len(trained[0]) == batch
                total += (self.step if full else self._both)(chosen, *correct, trained[0], *read, *trained[1:])
            else:
                self._set_rate(step)
                total[1:] += self._train_rejectors(chosen, *correct, *read)
            tick()
            chosen, read = following, ahead
        self.middle = {}
        losses, right = total[1:].split([self.rejectors.size, len(self.up)])
        return {
            "train_loss": float(total[0]) / self.samples,
            "held_out_loss": None,
            **self.rejector_step.row(losses, self.samples, epoch),
            **{f"server_right_{k}": share for k, share in enumerate((right / self.samples).tolist())},
        }

    def _set_rate(self, step: int, servers: int | None = None) -> None:
        """Set the learning rates of a step; on a GPU that is a kernel each, which a constant rate needs once only."""
        for optimizer, settings, at in (
            (self.optimizer, self.settings, step if servers is None else servers),
            (self.rejector_step.optimizer, self.rejector_step.settings, step),
        ):
            if settings.schedule != "constant" or step % self.steps == 0:
                set_learning_rate(optimizer, learning_rate(settings, at, self.all_steps))

    def _both(
        self,
        chosen: Tensor,
        copy_correct: Tensor,
        live: Tensor,
        following: Tensor,
        read: Tensor | None = None,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """Train the rejectors on a batch and the server on the following one, of which ``ahead`` was read.

        Return the summed losses and how often each judge found the server right, (1 + R + judges,).
        """
        if not self._streams or not torch.cuda.is_current_stream_capturing():
            losses = self._train_rejectors(chosen, copy_correct, live, read)
            return torch.cat([self._train_server(following, ahead).reshape(1), losses])
        # The server is judged beside the rejectors' forward pass, and both beside the server's step, which changes no
        # weight before it is judged.
        main, (side, judging) = torch.cuda.current_stream(self.context.device), self._streams
        side.wait_stream(main)
        judging.wait_stream(main)
        with torch.cuda.stream(side):
            losses = self._train_rejectors(chosen, copy_correct, live, read, judging=judging)
        loss = self._train_server(following, ahead, judging=judging)
        main.wait_stream(side)
        return torch.cat([loss.reshape(1), losses])

    def _train_rejectors(
        self,
        chosen: Tensor,
        copy_correct: Tensor,
        live: Tensor,
        read: Tensor | None = None,
        *,
        judging: torch.cuda.Stream | None = None,
    ) -> Tensor:
        """Take a rejector step, by the current server where a link is up.

        Return the summed losses and how often each judge found the server right, (R + judges,).
        """
        x, y = pick(self.x, chosen, read), self.y[chosen]
        judged: list[Tensor] = []

        def judge() -> None:
            # On a GPU one recording stands for all steps, so it runs the server whether a link is up or not.
            correct = copy_correct
            if self.step.records or self.up[:, self._current_step].any():
                right = {dropout: self._right(self.server, x, y, dropout) for dropout in set(self.dropout)}
                correct = torch.where(live, torch.stack([right[dropout] for dropout in self.dropout]), correct)
            judged.extend([correct[self.group], correct.sum(1)])

        if judging is None:
            judge()
            scores = self.rejector_step.scores(x, self.view[chosen], self.name, self._current_step)
        else:
            side = torch.cuda.current_stream(self.context.device)
            judging.wait_stream(side)
            with torch.cuda.stream(judging):
                judge()
            scores = self.rejector_step.scores(x, self.view[chosen], self.name, self._current_step)
            side.wait_stream(judging)
        losses = self.rejector_step.learn(scores, self.client_correct[..., chosen], judged[0])
        return torch.cat([losses, judged[1]])

    def _right(self, server: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, dropout: bool) -> Tensor:
        """Return whether a server is right on samples, with its dropout off or on."""
        self.server.eval()
        with torch.no_grad(), self.context.autocast():
            if not dropout:
                return server(x).argmax(-1) == y
            with self.dropped.on():
                return server(x).argmax(-1) == y

    def _draw_dropout(self, samples: int, *keys: int) -> None:
        if any(self.dropout):
            self.dropped.draw(samples, self.context.settings.seed, self.name, "judge", *keys)

    def _train_server(
        self, chosen: Tensor, read: Tensor | None = None, *, judging: torch.cuda.Stream | None = None
    ) -> Tensor:
        """Take a step by L1 on a batch, once the server is judged on the stream ``judging``; return the summed loss."""
        x, y = pick(self.x, chosen, read), self.y[chosen]
        self.server.train()
        if isinstance(self.optimizer, AccumulatingSGD):
            self.optimizer.readers = () if judging is None else (judging,)
        self.optimizer.zero_grad(set_to_none=True)
        with self.context.autocast():
            scores = self.server(x)
        loss = server_loss(scores.float(), y, reduction=self.settings.reduction)  # type: ignore[arg-type]
        loss.backward()
        if judging is not None:
            torch.cuda.current_stream(self.context.device).wait_stream(judging)
        self.optimizer.step()
        return loss.detach() * (len(y) if self.settings.reduction == "mean" else 1)

    def _update_copies(self, copy_correct: Tensor, shuffled: Tensor) -> None:
        """Copy the server for the links that are up at this step and down at the next."""
        step = self._current_step
        for link, (up, copy) in enumerate(zip(self.up, self.copies, strict=True)):
            if copy is not None and up[step] and (step + 1 == len(up) or not up[step + 1]):
                for name, tensor in self.server.state_dict().items():
                    copy[name].copy_(tensor)
                self._run_copy(link, step + 1, copy_correct, shuffled)

    def _run_copy(self, link: int, step: int, copy_correct: Tensor, shuffled: Tensor) -> None:
        """Run the copy of a link on the batches from ``step`` until the link is up again, within the epoch."""
        copy, first = self.copies[link], self._current_step // self.steps * self.steps
        ahead = self.up[link, step : first + self.steps]
        last = step + (int(ahead.argmax()) if ahead.any() else len(ahead))
        if copy is None or last == step:
            return
        start, end = ((at - first) * self.batch for at in (step, last))
        arrived = partial(functional_call, self.server, copy)
        size = batch_rows(tuple(self.x.shape), COPY_BATCH)
        for at in range(start, min(end, self.samples), size):
            rows = slice(at, min(at + size, end, self.samples))
            x, y = pick(self.x, shuffled[rows]), self.y[shuffled[rows]]
            self._draw_dropout(len(x), step, link, at)
            copy_correct[link, rows] = self._right(arrived, x, y, self.dropout[link])

    def tensors(self) -> dict[str, Tensor]:
        out = prefixed("server/", self.server.state_dict())
        for i, copy in enumerate(self.copies):
            out |= prefixed(f"copy-{i}/", copy or {})
        return out | prefixed("server-", optimizer_tensors(self.optimizer)) | self.rejector_step.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.server.load_state_dict(under("server/", tensors))
        for i, copy in enumerate(self.copies):
            for name, tensor in under(f"copy-{i}/", tensors).items():
                assert copy is not None
                copy[name].copy_(tensor)
        restore_optimizer(self.optimizer, under("server-", tensors))
        self.rejector_step.restore(tensors)


class OwnDropout:
    """The dropout of a server that is judged with it on, by draws of its own.

    With draws of torch's generator the server's training would depend on who judges it. The masks are drawn before a
    step, and not in it, so that a recorded step can use them.
    """

    def __init__(self, server: nn.Module, device: torch.device) -> None:
        self.layers = [layer for layer in server.modules() if isinstance(layer, nn.Dropout) and layer.p > 0]
        self.generator = torch.Generator(device)
        self.masks: dict[tuple[int, int], Tensor] = {}  # by the layer's number and the number of samples

    def draw(self, samples: int, *keys: Any) -> None:
        """Draw by ``keys`` the masks for the next samples; those of the first time are drawn where they are needed."""
        self.generator.manual_seed(derive(*keys))
        for (layer, size), mask in self.masks.items():
            if size == samples:
                self._fill(mask, self.layers[layer].p)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within the block the layers of a server in evaluation mode drop out."""
        hooks = [layer.register_forward_hook(partial(self._drop, k)) for k, layer in enumerate(self.layers)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _drop(self, number: int, layer: nn.Dropout, given: tuple[Tensor], out: Tensor) -> Tensor:
        mask = self.masks.get((number, len(out)))
        if mask is None:
            mask = self.masks[number, len(out)] = self._fill(torch.empty_like(out), layer.p)
        return out * mask

    def _fill(self, mask: Tensor, p: float) -> Tensor:
        if p == 1:
            return mask.zero_()
        return mask.bernoulli_(1 - p, generator=self.generator).div_(1 - p)
