"""The cells of the paper's experiments: prices, sync intervals, and what the small version leaves of them."""

from dataclasses import dataclass, field, replace
from typing import Any

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.settings import PAPER_REJECTOR, PAPER_SERVER, Settings, StageSettings

MAIN = Costs(c_e=0.25, c_1=1.25)
#: The prices of the table of costs by sync intervals.
ASYNC = (Costs(c_e=0.25, c_1=1.0), MAIN, Costs(c_e=0.0, c_1=1.25))
#: Losses of the published recipe: the paper's L2, which has no lower bound where c_e + c_1 > 1, and the bounded form.
LOSSES = ("paper", "shifted")
#: A ViT from scratch on small images needs mixing, distorting and smoothing, or it learns the training set by heart.
VIT = StageSettings(
    epochs=120,
    batch=128,
    optimizer="adamw",
    lr=8e-4,
    weight_decay=5e-2,
    patience=None,
    smoothing=0.1,
    mix=0.8,
    distort=0.5,
)


#: Weights of the user's own file are tuned, not learnt anew.
VIT_TUNING = StageSettings(
    epochs=10, batch=128, optimizer="adamw", lr=1e-4, weight_decay=5e-2, patience=None, smoothing=0.1, mix=0.5
)


@dataclass(frozen=True)
class Scale:
    """How large an experiment is.

    Attributes:
        c_e: prices of a request of the trade-off figure.
        c_1: its inaccuracy costs.
        syncs: sync intervals S.
        limit: rows of each part of the data; None for all.
        server: named server of the CIFAR-10 and SVHN experiments, with its options.
        server_options: likewise.
        client_epochs: of the published recipe's client.
        epochs: of the published recipe.
        lr: of its client and server; the rejector's is a tenth of it.
        rejector_options: of our rejector.
        server_stage: of our recipe's server; None: what suits it.
        rejector_stage: of our recipe's rejector; None: the default.
        vit_options: of the ViT.
        vit_stage: of its training from scratch.
        vit_tuning: of its training from the weights of a file.
        bounds: on the share sent, of the BRR figure.
    """

    c_e: tuple[float, ...] = tuple(round(0.025 * k, 3) for k in range(21))
    c_1: tuple[float, ...] = (1.0, 1.25)
    syncs: tuple[str, ...] = ("1", "100", "1000", "epoch")
    limit: int | None = None
    server: str = "alexnet"
    server_options: dict[str, Any] = field(default_factory=dict)
    client_epochs: int = 10
    epochs: int = PAPER_SERVER.epochs
    lr: float = PAPER_SERVER.lr
    rejector_options: dict[str, Any] = field(default_factory=dict)
    server_stage: StageSettings | None = None
    rejector_stage: StageSettings | None = None
    vit_options: dict[str, Any] = field(
        default_factory=lambda: dict(patch=4, width=256, depth=7, heads=4, ratio=2.0, drop_path=0.1, stem="conv")
    )
    vit_stage: StageSettings = VIT
    vit_tuning: StageSettings = VIT_TUNING
    bounds: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(21))

    @property
    def tradeoff(self) -> list[Costs]:
        """The cells of the trade-off figure, c_1 outermost."""
        return [Costs(c_e=e, c_1=one) for one in self.c_1 for e in self.c_e]

    def specs(self) -> list[RejectorSpec]:
        """Every rejector of one pass: trade-off and sync intervals, by the paper's L2 and by the bounded form."""
        out = []
        for loss in LOSSES:
            out += [RejectorSpec(loss, costs) for costs in self.tradeoff]
            out += [RejectorSpec(loss, costs, sync=_sync(sync)) for costs in ASYNC for sync in self.syncs]
        return out

    def published_settings(self, seed: int, device: str) -> Settings:
        """Batch 16, momentum SGD, e at 1e-3 on the mean loss, r at 1e-4 on the summed loss."""
        return Settings(
            recipe="paper",
            loss="paper",
            seed=seed,
            device=device,
            precision="tf32",
            server=replace(PAPER_SERVER, epochs=self.epochs, lr=self.lr),
            rejector=replace(PAPER_REJECTOR, epochs=self.epochs, lr=self.lr / 10),
        )


FULL = Scale()
QUICK = Scale(
    c_e=(0.0, 0.125, 0.25, 0.375, 0.5),
    syncs=("1", "10", "epoch"),
    limit=1200,
    server="lenet5",
    server_options={"width": 2},
    client_epochs=3,
    epochs=6,
    lr=1e-2,
    rejector_options={"width": 1},
    server_stage=StageSettings(epochs=12, batch=64, optimizer="adamw", lr=3e-3, weight_decay=1e-2),
    rejector_stage=StageSettings(epochs=6, batch=128, lr=2e-3, weight_decay=1e-2, patience=3),
    vit_options={"width": 64, "depth": 2, "heads": 2},
    vit_stage=StageSettings(epochs=6, batch=64, optimizer="adamw", lr=2e-3, weight_decay=5e-2, patience=None),
    vit_tuning=StageSettings(epochs=2, batch=64, optimizer="adamw", lr=1e-3, weight_decay=5e-2, patience=None),
    bounds=(0.0, 0.25, 0.5, 0.75, 1.0),
)


def _sync(sync: str) -> int | str:
    return int(sync) if sync.isdecimal() else sync
