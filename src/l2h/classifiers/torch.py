"""Classifiers made with torch: modules, TorchScript and exported programs."""

from typing import Any

from l2h.classifiers.base import Classifier
from l2h.classifiers.reading import Array, unit_range
from l2h.errors import ClientError


class TorchClassifier(Classifier):
    """A torch module, TorchScript program or ``torch.export`` program, fed with float32; uint8 is scaled to [-1, 1].

    Args:
        module: called as ``module(x)`` with a float32 batch; scores (n, K) or labels (n,).
        feature_layer: dotted name of the submodule whose output is its last features. Where None, the module's own
            method ``embed(x)`` is used if it has one.
    """

    def __init__(self, module: Any, feature_layer: str | None = None) -> None:
        super().__init__()
        import torch

        self.module = module
        self.kind = "torch module"
        if isinstance(module, torch.export.ExportedProgram):
            self.kind = "exported program"
        elif isinstance(module, torch.jit.ScriptModule):
            self.kind = "TorchScript program"
        #: The torch module to call: that of an exported program, else ``module`` itself.
        self.callable_module = module.module() if self.kind == "exported program" else module
        self.feature_layer = feature_layer
        layers = dict(self.callable_module.named_modules())
        if feature_layer is not None and feature_layer not in layers:
            raise ClientError(
                f"the client has no layer {feature_layer!r}; known: {', '.join(name for name in layers if name)}"
            )

    @property
    def has_features(self) -> bool:
        """Whether it exposes its last features."""
        return self.feature_layer is not None or callable(getattr(self.callable_module, "embed", None))

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores and features in evaluation mode; the module's own mode is put back afterwards."""
        import torch

        module = self.callable_module
        first = next(iter(module.parameters()), None)
        x = torch.from_numpy(unit_range(X)).to("cpu" if first is None else first.device)
        modes = [(m, m.training) for m in module.modules()]
        if self.kind != "exported program":
            module.eval()
        try:
            with torch.no_grad():
                scores, features = self.forward(x)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ClientError(f"the {self.kind} failed on inputs of shape {X.shape}: {error}") from error
        finally:
            for m, training in modes:
                m.training = training
        return scores.detach().cpu().numpy(), None if features is None else features.cpu().numpy()

    def forward(self, x: Any, features: bool = True) -> tuple[Any, Any]:
        """Return the module's output for a batch of tensors, and its features as float32 (n, E) or None."""
        module = self.callable_module
        if not (features and self.has_features):
            return module(x), None
        if self.feature_layer is None:
            scores, kept = module(x), [module.embed(x)]
        else:
            kept = []
            layer = dict(module.named_modules())[self.feature_layer]
            hook = layer.register_forward_hook(lambda _m, _i, out: kept.append(out))
            try:
                scores = module(x)
            finally:
                hook.remove()
        return scores, kept[0].flatten(1).float()

    def weights(self) -> list[bytes]:
        """Return names and bytes of every parameter and buffer."""
        state = self.module.state_dict if self.kind == "exported program" else self.module.state_dict()
        out = []
        for name, tensor in sorted(state.items()):
            out += [name.encode(), tensor.detach().cpu().contiguous().numpy().tobytes()]
        return out
