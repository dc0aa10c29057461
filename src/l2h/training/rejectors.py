"""Many rejectors at once, as one stack of weights; one rejector is the stack of one.

The rejectors of a stack share architecture and samples and differ in weights (their seeds), costs, loss and, under
Algorithm 2, sync interval. Each gets exactly the update it would get alone: the stack's loss is the sum of theirs,
and the optimizers work element by element.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from l2h.errors import ModelError
from l2h.models.rejectors import AttachedRejector, SeparateRejector
from l2h.training.checkpoint import under
from l2h.training.grouped import can_group, grouped_features, without_trunk
from l2h.training.loop import Context


class RejectorBatch:
    """R rejectors of one architecture as stacked tensors, called all at once; the modules given are copied."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self.template = copy.deepcopy(modules[0])
        self.template.requires_grad_(False)
        params, buffers = stack_module_state(list(modules))
        self.params: dict[str, Tensor] = {n: p.detach().to(device).requires_grad_() for n, p in params.items()}
        self.buffers: dict[str, Tensor] = {n: b.detach().to(device) for n, b in buffers.items()}
        self.size = len(modules)
        self._can_group = self.size > 1 and can_group(self.template)
        self._rest = without_trunk(self.template) if self._can_group else self.template
        self.common = self._common()

    def __call__(self, x: Tensor, view: Tensor, train: bool = False) -> Tensor:
        """Outputs (R, n, 2), or (R, n, 2 + K) of rejectors with a student."""
        self.template.train(train)
        if self.size == 1:
            # Without vmap, so that a module of the user's may hold layers that vmap cannot batch.
            return self._one({name: t[0] for name, t in self.state_dict().items()}, x, view).unsqueeze(0)
        own = {name: t for name, t in self.state_dict().items() if name not in self.common}
        common = {name: self.buffers[name][0] for name in self.common}
        if self.grouped:
            return self._grouped(own, common, x, view)

        def one(own: dict[str, Tensor]) -> Tensor:
            return self._one({**own, **common}, x, view)

        try:
            out: Tensor = vmap(one, randomness="different")(own)
        except RuntimeError as error:
            raise ModelError(
                f"this rejector cannot be trained as a batch of {self.size}: {error}. Layers that keep running "
                "statistics, such as BatchNorm, are the usual cause: use GroupNorm, or train one rejector at a time"
            ) from error
        return out

    @property
    def grouped(self) -> bool:
        """Whether the trunks are run as one net of groups: where they are of such layers and see the same inputs."""
        return self._can_group and {"input.shift", "input.scale"} <= self.common

    def _grouped(self, own: dict[str, Tensor], common: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        scaled = (x.float() - common["input.shift"]) * common["input.scale"]
        features = grouped_features(self.template.get_submodule("trunk"), under("trunk.", own), scaled, self.size)
        heads = {name: t for name, t in own.items() if not name.startswith("trunk.")}
        fixed = {name: t for name, t in common.items() if not name.startswith("input.")}

        def one(heads: dict[str, Tensor], features: Tensor) -> Tensor:
            args = (features, view) if getattr(self.template, "uses_client", False) else (features,)
            out: Tensor = functional_call(self._rest, {**heads, **fixed}, args)
            return out

        return vmap(one, randomness="different")(heads, features)

    def _one(self, state: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        args = (x, view) if getattr(self.template, "uses_client", False) else (x,)
        out: Tensor = functional_call(self.template, state, args)
        return out

    def scores(self, x: Tensor, view: Tensor, context: Context, batch: int = 2048, *, student: bool = False) -> Tensor:
        """Scores (R, n, 2) in evaluation mode, without gradients; of the student, (R, n, K)."""
        part = slice(2, None) if student else slice(2)
        with torch.no_grad(), context.autocast():
            parts = [self(a, b)[..., part].float() for a, b in zip(x.split(batch), view.split(batch), strict=True)]
        return torch.cat(parts, dim=1)

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.params, **self.buffers}

    def load_state_dict(self, tensors: Mapping[str, Tensor], /) -> None:
        with torch.no_grad():
            for name, own in self.state_dict().items():
                own.copy_(tensors[name])
        self.common = self._common()

    def _common(self) -> frozenset[str]:
        """Buffers that all rejectors share, the scalings: what needs them alone is computed once.

        Of a module of the user's none is taken for shared, since its training may change them.
        """
        if not isinstance(self.template, AttachedRejector | SeparateRejector):
            return frozenset()
        return frozenset(name for name, buffer in self.buffers.items() if bool((buffer == buffer[:1]).all()))

    def module(self, i: int) -> nn.Module:
        """The i-th rejector as a module of its own."""
        module = copy.deepcopy(self.template)
        module.load_state_dict({name: tensor[i].detach().clone() for name, tensor in self.state_dict().items()})
        return module.to(next(iter(self.params.values())).device).eval()
