"""Algorithms 1 and 2 of the paper, step by step: a server step by L1, then a rejector step by L2, on the same batch.

Algorithm 1 gives every rejector the server as it stands after its step. Algorithm 2 gives it the last copy that
arrived over its link (:mod:`l2h.training.links`). A link that is always up is Algorithm 1, so both are this one stage.
The server's loss knows nothing of the rejectors, so one server serves all of them, whatever their costs and links.
"""

from __future__ import annotations

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
from l2h.training.capture import RecordedStep
from l2h.training.checkpoint import optimizer_tensors, restore_optimizer, under
from l2h.training.links import parse_link
from l2h.training.loop import Context, Stage, learning_rate, make_optimizer, order, set_learning_rate
from l2h.training.rejectors import RejectorBatch, RejectorStep

LOOK = 2048  # samples that a copy is asked of at once


class AlternatingStage(Stage):
    """Server and rejectors in turn, for ``server_settings.epochs`` epochs of batches that both use.

    Args:
        name: of the stage.
        server: trained in place by L1.
        rejectors: trained in place by their L2.
        specs: one a rejector.
        x: inputs on the device.
        y: labels.
        view: the client's view of each sample.
        client_correct: bool (n,), whether the client is right; (R, n) where each rejector has a client of its own.
        server_settings: epochs, batch and optimizer of the server.
        rejector_settings: optimizer of the rejectors; epochs and batch are the server's.
        context: shared.

    Raises:
        SettingsError: a rejector is to have priced heads, or the server smoothed or mixed labels: not in this recipe.
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
        total = self.settings.epochs * self.steps
        #: For each distinct link, at which steps it is up.
        self.up = np.stack([link.schedule(total, self.steps) for link in distinct])
        self.copies = [None if up.all() else self._server_state(clone=True) for up in self.up]
        self.step = RecordedStep(self._both, context.device, server_settings.batch, record=not self.rejector_step.draws)
        self.aside = torch.cuda.Stream(context.device) if self.step.records else None
        self._at = 0

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One pass; nothing in it waits for the host.

        The rejectors' step on a batch and the gradients of the server's next step depend on the same server and not on
        each other, so they are one piece of work: on a GPU they run side by side.
        """
        device, batch, first = self.context.device, self.settings.batch, epoch * self.steps
        shuffled = order(self.samples, device, self.context.settings.seed, self.name, epoch)
        # What the copy at the end of each link says of the samples, in the epoch's order. A copy stays as it is until
        # the link is up again, so it is asked once for all the batches until then.
        known = torch.zeros(len(self.up), self.samples, dtype=torch.bool, device=device)
        live = torch.from_numpy(self.up[:, first : first + self.steps]).to(device)
        self._at = first
        for link in range(len(self.up)):
            self._ask_copy(link, first, known, shuffled)
        total = torch.zeros(1 + self.rejectors.size, device=device)
        all_steps = self.settings.epochs * self.steps
        batches = shuffled.split(batch)
        set_learning_rate(self.optimizer, learning_rate(self.settings, first, all_steps))
        total[0] += self._server_gradients(batches[0])
        self.optimizer.step()
        for i, chosen in enumerate(batches):
            self._at = first + i
            self._keep_copies(known, shuffled)
            self.rejector_step.set_rate(learning_rate(self.rejector_step.settings, self._at, all_steps))
            told = known[:, i * batch : i * batch + len(chosen)], live[:, i : i + 1]
            if i + 1 < len(batches):
                set_learning_rate(self.optimizer, learning_rate(self.settings, self._at + 1, all_steps))
                whole = len(batches[i + 1]) == batch
                total += (self.step if whole else self._both)(chosen, *told, batches[i + 1])
            else:
                total[1:] += self._teach(chosen, *told)
            tick()
        return {
            "train_loss": float(total[0]) / self.samples,
            "held_out_loss": None,
            **self.rejector_step.row(total[1:], self.samples, epoch),
        }

    def _both(self, chosen: Tensor, known: Tensor, live: Tensor, ahead: Tensor) -> Tensor:
        """The rejectors' step on a batch and the server's on the next; the server's loss, and each rejector's."""
        if self.aside is None or not torch.cuda.is_current_stream_capturing():
            losses = self._teach(chosen, known, live)
            server_loss_ = self._server_gradients(ahead)
        else:
            here = torch.cuda.current_stream(self.context.device)
            self.aside.wait_stream(here)
            with torch.cuda.stream(self.aside):
                losses = self._teach(chosen, known, live)
            server_loss_ = self._server_gradients(ahead)
            here.wait_stream(self.aside)
        self.optimizer.step()
        return torch.cat([server_loss_.reshape(1), losses])

    def _teach(self, chosen: Tensor, known: Tensor, live: Tensor) -> Tensor:
        """A rejector step by the server as it stands; each rejector's loss, summed over the batch."""
        x, y = self.x[chosen], self.y[chosen]
        # On a GPU the step is recorded once for all steps, so it looks at the server whether a link is up or not.
        if self.step.records or self.up[:, self._at].any():
            self.server.eval()
            with torch.no_grad(), self.context.autocast():
                known = torch.where(live, self.server(x).argmax(-1) == y, known)
        return self.rejector_step.update(
            x, self.view[chosen], self.client_correct[..., chosen], known[self.group], self.name, self._at
        )

    def _server_gradients(self, chosen: Tensor) -> Tensor:
        """The gradients of L1 on a batch, left in the server; its loss, summed over the batch."""
        x, y = self.x[chosen], self.y[chosen]
        self.server.train()
        with self.context.autocast():
            scores = self.server(x)
        loss = server_loss(scores.float(), y, reduction=self.settings.reduction)  # type: ignore[arg-type]
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach() * (len(y) if self.settings.reduction == "mean" else 1)

    def _keep_copies(self, known: Tensor, shuffled: Tensor) -> None:
        """Where a link is up now and down at the next step, what arrived now is the copy to go on with."""
        step = self._at
        state: dict[str, Tensor] | None = None
        for link, (up, copy) in enumerate(zip(self.up, self.copies, strict=True)):
            if copy is not None and up[step] and (step + 1 == len(up) or not up[step + 1]):
                state = self._server_state(clone=False) if state is None else state
                for name, tensor in state.items():
                    copy[name].copy_(tensor)
                self._ask_copy(link, step + 1, known, shuffled)

    def _ask_copy(self, link: int, step: int, known: Tensor, shuffled: Tensor) -> None:
        """What the copy of a link says of the batches from ``step`` until the link is up again, within the epoch."""
        copy, first = self.copies[link], self._at // self.steps * self.steps
        ahead = self.up[link, step : first + self.steps]
        last = step + (int(ahead.argmax()) if ahead.any() else len(ahead))
        if copy is None or last == step:
            return
        start, end = ((at - first) * self.settings.batch for at in (step, last))
        self.server.eval()
        with torch.no_grad(), self.context.autocast():
            for at in range(start, min(end, self.samples), LOOK):
                rows = slice(at, min(at + LOOK, end, self.samples))
                x, y = self.x[shuffled[rows]], self.y[shuffled[rows]]
                known[link, rows] = functional_call(self.server, copy, (x,)).argmax(-1) == y

    def _server_state(self, clone: bool) -> dict[str, Tensor]:
        state = {name: tensor.detach() for name, tensor in self.server.state_dict().items()}
        return {name: tensor.clone() for name, tensor in state.items()} if clone else state

    def tensors(self) -> dict[str, Tensor]:
        """Both sides' weights and optimizers, and the copies under way."""
        out = {f"server/{name}": tensor for name, tensor in self._server_state(clone=False).items()}
        for i, copy in enumerate(self.copies):
            out |= {f"copy-{i}/{name}": tensor for name, tensor in (copy or {}).items()}
        out |= {f"server-{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()}
        return out | self.rejector_step.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""
        self.server.load_state_dict(under("server/", tensors))
        for i, copy in enumerate(self.copies):
            for name, tensor in under(f"copy-{i}/", tensors).items():
                assert copy is not None
                copy[name].copy_(tensor)
        restore_optimizer(self.optimizer, under("server-", tensors))
        self.rejector_step.restore(tensors)
