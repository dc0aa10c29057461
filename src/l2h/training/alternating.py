"""Algorithms 1 and 2 of the paper: a server step by L1, then a rejector step by L2, on the same batch.

Algorithm 1 gives every rejector the server as it is after its step. Algorithm 2 gives it the last copy that arrived
over its link (:mod:`l2h.training.links`). A link that is always up is Algorithm 1, so one stage trains both. The
server's loss does not depend on the rejectors, so one server is enough for all of them, whatever their costs and links.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from l2h.decision import RejectorSpec
from l2h.errors import SettingsError
from l2h.losses import server_loss
from l2h.settings import StageSettings
from l2h.training.checkpoint import optimizer_tensors, prefixed, restore_optimizer, under
from l2h.training.links import parse_link
from l2h.training.loop import Context, RecordedStep, Stage, learning_rate, make_optimizer, order, set_learning_rate
from l2h.training.rejector_stage import RejectorStep
from l2h.training.rejectors import RejectorBatch

COPY_BATCH = 2048  # samples per call of a copy


class AlternatingStage(Stage):
    """Trains server and rejectors in turn on the same batches, for ``server_settings.epochs`` epochs.

    All samples are tensors on the device. ``client_correct`` is (n,), or (R, n) where each rejector has its own client.
    Epochs and batch of the rejectors are the server's.
    """

    def __init__(
        self,
        name: str,
        server: nn.Module,
        rejectors: RejectorBatch,
        specs: Sequence[RejectorSpec],
        x: Tensor,
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
        self.server, self.rejectors, self.context = server, rejectors, context
        self.x, self.y, self.view, self.client_correct = x, y, view, client_correct
        self.optimizer = make_optimizer(server_settings, list(server.parameters()))
        self.rejector_step = RejectorStep(rejectors, specs, rejector_settings, context)
        links = [parse_link(spec.sync, spec.seed) for spec in specs]
        distinct = list(dict.fromkeys(links))
        self.group = torch.tensor([distinct.index(link) for link in links], device=context.device)
        #: For each distinct link, at which steps it is up.
        self.up = np.stack([link.schedule(self.all_steps, self.steps) for link in distinct])
        #: What has arrived over each link; None where it is always up.
        self.copies = [None if up.all() else {n: t.clone() for n, t in server.state_dict().items()} for up in self.up]
        self.step = RecordedStep(self._both, context.device, server_settings.batch, record=not self.rejector_step.draws)
        self._side_stream = torch.cuda.Stream(context.device) if self.step.records else None
        self._current_step = 0

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        # Nothing in here waits for the host. The rejectors' step on a batch and the gradients of the server's next step
        # depend on the same server and not on each other, so they are one recorded step: on a GPU they run in parallel.
        device, batch, first = self.context.device, self.settings.batch, epoch * self.steps
        shuffled = order(self.samples, device, self.context.settings.seed, self.name, epoch)
        # Whether the copy at the end of each link is right on the samples, in the epoch's order. A copy stays as it is
        # until the link is up again, so it is run once for all the batches until then.
        copy_correct = torch.zeros(len(self.up), self.samples, dtype=torch.bool, device=device)
        live = torch.from_numpy(self.up[:, first : first + self.steps]).to(device)
        self._current_step = first
        for link in range(len(self.up)):
            self._run_copy(link, first, copy_correct, shuffled)
        total = torch.zeros(1 + self.rejectors.size, device=device)
        batches = shuffled.split(batch)
        set_learning_rate(self.optimizer, learning_rate(self.settings, first, self.all_steps))
        total[0] += self._server_gradients(batches[0])
        self.optimizer.step()
        for i, chosen in enumerate(batches):
            self._current_step = step = first + i
            self._update_copies(copy_correct, shuffled)
            rate = learning_rate(self.rejector_step.settings, step, self.all_steps)
            set_learning_rate(self.rejector_step.optimizer, rate)
            correct = copy_correct[:, i * batch : i * batch + len(chosen)], live[:, i : i + 1]
            if i + 1 < len(batches):
                set_learning_rate(self.optimizer, learning_rate(self.settings, step + 1, self.all_steps))
                full = len(batches[i + 1]) == batch
                total += (self.step if full else self._both)(chosen, *correct, batches[i + 1])
            else:
                total[1:] += self._train_rejectors(chosen, *correct)
            tick()
        return {
            "train_loss": float(total[0]) / self.samples,
            "held_out_loss": None,
            **self.rejector_step.row(total[1:], self.samples, epoch),
        }

    def _both(self, chosen: Tensor, copy_correct: Tensor, live: Tensor, following: Tensor) -> Tensor:
        """Train the rejectors on a batch and the server on the following one; return the summed losses, (1 + R,)."""
        if self._side_stream is None or not torch.cuda.is_current_stream_capturing():
            losses = self._train_rejectors(chosen, copy_correct, live)
            loss = self._server_gradients(following)
        else:
            main = torch.cuda.current_stream(self.context.device)
            self._side_stream.wait_stream(main)
            with torch.cuda.stream(self._side_stream):
                losses = self._train_rejectors(chosen, copy_correct, live)
            loss = self._server_gradients(following)
            main.wait_stream(self._side_stream)
        self.optimizer.step()
        return torch.cat([loss.reshape(1), losses])

    def _train_rejectors(self, chosen: Tensor, copy_correct: Tensor, live: Tensor) -> Tensor:
        """Take a rejector step, by the current server where a link is up; return the summed losses, (R,)."""
        x, y = self.x[chosen], self.y[chosen]
        # On a GPU one recording stands for all steps, so it runs the server whether a link is up or not.
        if self.step.records or self.up[:, self._current_step].any():
            self.server.eval()
            with torch.no_grad(), self.context.autocast():
                copy_correct = torch.where(live, self.server(x).argmax(-1) == y, copy_correct)
        client_correct, server_correct = self.client_correct[..., chosen], copy_correct[self.group]
        return self.rejector_step.update(
            x, self.view[chosen], client_correct, server_correct, self.name, self._current_step
        )

    def _server_gradients(self, chosen: Tensor) -> Tensor:
        """Leave the gradients of L1 on a batch in the server; return the summed loss."""
        x, y = self.x[chosen], self.y[chosen]
        self.server.train()
        with self.context.autocast():
            scores = self.server(x)
        loss = server_loss(scores.float(), y, reduction=self.settings.reduction)  # type: ignore[arg-type]
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
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
        start, end = ((at - first) * self.settings.batch for at in (step, last))
        self.server.eval()
        with torch.no_grad(), self.context.autocast():
            for at in range(start, min(end, self.samples), COPY_BATCH):
                rows = slice(at, min(at + COPY_BATCH, end, self.samples))
                x, y = self.x[shuffled[rows]], self.y[shuffled[rows]]
                copy_correct[link, rows] = functional_call(self.server, copy, (x,)).argmax(-1) == y

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
