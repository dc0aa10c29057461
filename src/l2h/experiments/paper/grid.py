"""The cells of the paper's experiments: recipes, prices, sync intervals, and what the small version leaves of them."""

from dataclasses import dataclass, field, replace
from typing import Any

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.settings import PAPER_REJECTOR, PAPER_SERVER, Settings, StageSettings

#: What we call the columns of every page.
PUBLISHED, PAPER, BOUNDED, OURS = "paper's figure", "paper's recipe", "paper's recipe, bounded loss", "our recipe"
NEARER = "paper's recipe, released loss"
#: How their curves are drawn.
STYLES = {PAPER: "paper", NEARER: "nearer", BOUNDED: "bounded", OURS: "ours"}
MAIN, FREE = Costs(c_e=0.25, c_1=1.25), Costs(c_e=0.0)
#: The prices whose rejector the figure on bounds thins or fills up.
BASE = Costs(c_e=0.25, c_1=1.12)
#: The prices of the table of costs by sync intervals.
ASYNC = (Costs(c_e=0.25, c_1=1.0), MAIN, Costs(c_e=0.0, c_1=1.25))
#: The published recipe: the paper's L2, which has no lower bound where c_e + c_1 > 1; of the deviations in one thing
#: that do not diverge the one nearest to the printed tables (``l2h paper reproduce``), beside the same client; and the
#: bounded form.
RECIPES = {PAPER: "paper", NEARER: "released", BOUNDED: "shifted"}
LOSSES = tuple(RECIPES.values())
#: A ViT from scratch on small images needs mixing, distorting and smoothing, or it learns the training set by heart.
_VIT = StageSettings(epochs=120, batch=128, optimizer="adamw", lr=8e-4, weight_decay=5e-2, patience=None, smoothing=0.1)
VIT = replace(_VIT, mix=0.8, distort=0.5)
#: Weights of the user's own file are tuned, not learnt anew.
VIT_TUNING = replace(_VIT, epochs=10, lr=1e-4, mix=0.5)


@dataclass(frozen=True)
class Scale:
    """How large an experiment is."""

    # Of the trade-off figure: prices of a request, inaccuracy costs; of the asynchronous one: sync intervals S.
    c_e: tuple[float, ...] = tuple(round(0.025 * k, 3) for k in range(21))
    c_1: tuple[float, ...] = (1.0, 1.25)
    syncs: tuple[str, ...] = ("1", "100", "1000", "epoch")
    limit: int | None = None  # rows of each part of the data; None for all
    server: str = "alexnet"  # of the CIFAR-10 and SVHN experiments
    server_options: dict[str, Any] = field(default_factory=dict)
    # Of the published recipe; the learning rate is that of client and server, the rejector's is a tenth of it.
    client_epochs: int = 10
    epochs: int = PAPER_SERVER.epochs
    lr: float = PAPER_SERVER.lr
    # Of our recipe; a stage that is None: what suits the server, or the default.
    rejector_options: dict[str, Any] = field(default_factory=dict)
    server_stage: StageSettings | None = None
    rejector_stage: StageSettings | None = None
    vit_options: dict[str, Any] = field(
        default_factory=lambda: dict(patch=4, width=256, depth=7, heads=4, ratio=2.0, drop_path=0.1, stem="conv")
    )
    vit_stage: StageSettings = VIT  # from scratch
    vit_tuning: StageSettings = VIT_TUNING  # from the weights of a file
    bounds: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(21))  # on the share sent

    @property
    def tradeoff(self) -> list[Costs]:
        return [Costs(c_e=e, c_1=one) for one in self.c_1 for e in self.c_e]

    def specs(self) -> list[RejectorSpec]:
        """Every rejector of one pass: trade-off, bounds and sync intervals, by each form of the published recipe."""
        out = []
        for loss in LOSSES:
            out += [RejectorSpec(loss, costs) for costs in (*self.tradeoff, BASE)]
            syncs = [int(sync) if sync.isdecimal() else sync for sync in self.syncs]
            out += [RejectorSpec(loss, costs, sync=sync) for costs in ASYNC for sync in syncs]
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
