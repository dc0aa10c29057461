"""The laboratory: its cells, what a pass keeps, that a pass may come in halves, and what nothing learns from."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper_runner import write_images

from l2h.classifiers import unit_range
from l2h.costs import Costs
from l2h.data import Dataset
from l2h.decision import RejectorSpec
from l2h.errors import DataError, RunError
from l2h.experiments.paper import lab as lab_module
from l2h.experiments.paper import study
from l2h.experiments.paper.grid import ASYNC, BASE, FULL, LOSSES, MAIN, QUICK, Scale
from l2h.experiments.paper.lab import MISSING, Lab, Teams
from l2h.experiments.paper.main_prices import PRINTED_RISK
from l2h.experiments.paper.passes import Pass, PassOutcomes
from l2h.experiments.paper.repeating import EXPERIMENTS
from l2h.experiments.paper.sweeps import run_bounds, run_tradeoff
from l2h.experiments.paper.vit import VitLab
from l2h.models.rejectors import SeparateRejector
from l2h.settings import Settings, StageSettings
from l2h.system import HelpSystem
from l2h.training.rejector_stage import RejectorStep

TABLES = files("l2h.experiments.paper") / "tables"
NAMES = ("cifar10-svhn-alexnet", "cifar100-vit", "contrastive-main", "imbalance")
#: The paper's own tables, where the folder with its sources lies beside the checkout.
SOURCES = Path(__file__).parents[4] / "shared" / "paper" / "tables"
#: A pass of a second.
TINY = replace(
    QUICK,
    limit=240,
    client_epochs=1,
    epochs=2,
    server_options={"width": 1},
    server_stage=StageSettings(epochs=2, batch=32, lr=3e-3),
    rejector_stage=StageSettings(epochs=1, batch=64, lr=2e-3),
)
#: Bounded, all of them: c_e + c_1 is 1 or the loss is the shifted one.
SPECS = (
    RejectorSpec("paper", Costs(c_e=0.0)),
    RejectorSpec("shifted", MAIN),
    RejectorSpec("shifted", MAIN, sync=3),
    RejectorSpec("shifted", Costs(c_e=0.5), sync="epoch"),
    RejectorSpec("shifted", Costs(c_e=0.1)),
)


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((TABLES / f"{name}.csv").read_text())))


def digits(folder: Path, scale: Scale = TINY, seed: int = 0) -> Lab:
    return Lab("digits", "digits", seed, scale, folder, device="cpu")


# The cells.


def test_every_cell_of_the_paper_is_in_one_pass() -> None:
    specs = FULL.specs()
    assert len(specs) == 3 * (42 + 1 + 12)
    for loss in LOSSES:
        cells = {(spec.costs, str(spec.sync)) for spec in specs if spec.loss == loss}
        figure = {(Costs(c_e=round(0.025 * k, 3), c_1=c_1), "1") for k in range(21) for c_1 in (1.0, 1.25)}
        assert len(figure) == 42
        printed = {
            (Costs(c_e=float(row["ce"]), c_1=float(row["c1"])), row["sync_interval"])
            for row in table("cifar10-svhn-alexnet")
        }
        assert len(printed) == 12
        assert cells == figure | printed | {(Costs(c_e=0.25, c_1=1.12), "1")}, "the last is that of the bounds"
    assert LOSSES[0] == "paper"
    assert MAIN in ASYNC


def test_the_trade_off_is_the_papers() -> None:
    assert (FULL.c_e[0], FULL.c_e[-1], len(FULL.c_e)) == (0.0, 0.5, 21)
    assert [b - a for a, b in pairwise(FULL.c_e)] == pytest.approx([0.025] * 20)
    assert FULL.c_1 == (1.0, 1.25)
    assert [(costs.c_1, costs.c_e) for costs in FULL.tradeoff] == [(c_1, c_e) for c_1 in FULL.c_1 for c_e in FULL.c_e]
    assert FULL.limit is None


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_a_cell_is_found_again_by_the_prices_that_the_experiments_ask_for(scale: Scale) -> None:
    """Prices go through JSON, and are compared as numbers."""
    specs = tuple(RejectorSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) for spec in scale.specs())
    assert specs == tuple(scale.specs())
    one = replace(made(), specs=specs)
    asked = [(costs, "1") for costs in (*scale.tradeoff, MAIN, BASE)] + [(c, s) for c in ASYNC for s in scale.syncs]
    for loss in LOSSES:
        for costs, sync in asked:
            found = specs[one.find(loss, costs, sync)]
            assert (found.loss, found.costs, str(found.sync)) == (loss, costs, sync)


def test_the_published_settings_are_the_authors() -> None:
    settings = FULL.published_settings(seed=7, device="cpu")
    assert (settings.recipe, settings.loss, settings.seed, settings.precision) == ("paper", "paper", 7, "tf32")
    server, rejector = settings.server, settings.rejector
    assert server is not None
    assert rejector is not None
    for stage in (server, rejector):
        assert (stage.batch, stage.optimizer, stage.momentum, stage.schedule) == (16, "sgd", 0.9, "constant")
        assert (stage.epochs, stage.weight_decay, stage.patience) == (15, 0.0, None)
        assert (stage.smoothing, stage.mix, stage.distort) == (0.0, 0.0, 0.0)
    assert (server.lr, server.reduction) == (1e-3, "mean")
    assert (rejector.lr, rejector.reduction) == (pytest.approx(1e-4), "sum")
    assert FULL.client_epochs == 10
    assert (FULL.server, FULL.server_options) == ("alexnet", {})


def test_the_client_trains_by_the_authors_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the training is asked for; nothing of this size is run here."""
    seen = spy_on_client(monkeypatch)
    scale = replace(FULL, limit=100)
    one = digits(tmp_path, scale)
    one.client(one._context(scale.published_settings(0, "cpu")), None)
    settings = seen[0]["settings"]
    assert (settings.batch, settings.optimizer, settings.momentum, settings.reduction) == (16, "sgd", 0.9, "mean")
    assert (settings.epochs, settings.lr, settings.schedule) == (10, 1e-3, "constant")


# What a pass keeps.


def made(rejectors: int = 3, n: int = 6, seed: int = 0) -> Pass:
    """A pass by hand; its second rejector has diverged."""
    rng = np.random.default_rng(seed)

    def side(n: int) -> PassOutcomes:
        scores = rng.normal(size=(rejectors, n, 2)).astype(np.float32)
        scores[1] = np.nan
        return PassOutcomes(*(rng.integers(0, 10, n) for _ in range(3)), scores)

    specs = tuple(RejectorSpec("shifted", Costs(c_e=0.1 * k), sync=(1, 100, "epoch")[k % 3]) for k in range(rejectors))
    return Pass(specs, side(n), side(n - 2), rng.normal(size=(2, rejectors)), {"seconds": {"client": 1.5}})


def assert_same_side(one: PassOutcomes, other: PassOutcomes) -> None:
    for name in PassOutcomes.__dataclass_fields__:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype
        assert np.array_equal(left, right, equal_nan=name == "scores"), name


KEY: dict[str, Any] = {"data": "digits", "seed": 0, "scale": {"c_1": "(1.0, 1.25)"}}


def test_a_pass_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path, before = tmp_path / "deep" / "pass.npz", made()
    before.save(path, KEY)
    after = Pass.load(path, KEY)
    assert after is not None
    assert (after.specs, after.facts) == (before.specs, before.facts)
    assert np.array_equal(after.losses, before.losses)
    assert_same_side(after.test, before.test)
    assert_same_side(after.calibration, before.calibration)
    assert [path.name for path in path.parent.iterdir()] == ["pass.npz"]


@pytest.mark.parametrize("other", [{"seed": 1}, {"data": "elsewhere"}, {"scale": {}}, {"more": None}], ids=str)
def test_a_pass_of_other_settings_is_none(other: dict[str, Any], tmp_path: Path) -> None:
    made().save(tmp_path / "pass.npz", KEY)
    assert Pass.load(tmp_path / "pass.npz", KEY | other) is None


def test_a_pass_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert Pass.load(tmp_path / "pass.npz", KEY) is None


def without(name: str) -> Callable[[bytes], bytes]:
    """The same file without one of its arrays."""

    def changed(whole: bytes) -> bytes:
        with np.load(io.BytesIO(whole)) as file:
            arrays = {key: file[key] for key in file if key != name}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:100],
        lambda whole: whole[:-30],
        lambda whole: b"not what it was",
        lambda whole: whole[:900] + bytes([whole[900] ^ 0xFF]) + whole[901:],
        without("meta"),
        without("test_y"),
        without("losses"),
    ],
    ids=["empty", "beginning", "end", "text", "byte", "meta", "test_y", "losses"],
)
def test_a_damaged_pass_is_told_with_its_name(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "pass.npz"
    made(n=60).save(path, KEY)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"pass\.npz is damaged.*remove it"):
        Pass.load(path, KEY)


def test_a_cell_that_is_not_there_is_named() -> None:
    one = made()
    assert one.find("shifted", Costs(c_e=0.1), 100) == one.find("shifted", Costs(c_e=0.1), "100") == 1
    for loss, costs, sync in (("paper", Costs(c_e=0.1), 100), ("shifted", MAIN, 1), ("shifted", Costs(c_e=0.1), 1)):
        with pytest.raises(DataError, match=rf"no rejector for {loss}, .*S = {sync}"):
            one.find(loss, costs, sync)


def test_the_priced_rejector_answers_for_every_price() -> None:
    one = replace(made(rejectors=3), specs=(RejectorSpec(),))
    assert {one.find("priced", costs) for costs in FULL.tradeoff} == {0}


def test_joined_has_the_rejectors_of_both_in_order() -> None:
    whole = made(rejectors=5)

    def part(rows: slice) -> Pass:
        sides = (replace(side, scores=side.scores[rows]) for side in (whole.test, whole.calibration))
        return Pass(whole.specs[rows], *sides, whole.losses[:, rows], whole.facts)

    joined = part(slice(0, 3)).joined(part(slice(3, 5)))
    assert joined.specs == whole.specs
    assert np.array_equal(joined.losses, whole.losses)
    assert_same_side(joined.test, whole.test)
    assert_same_side(joined.calibration, whole.calibration)


# Kept or trained anew.


def test_what_is_there_is_taken_and_what_differs_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By seed, size and cells; each training is counted, none is run."""
    trained: list[tuple[int, int | None]] = []

    def counted(self: Lab, teams: Teams, settings: Any) -> dict[int | None, Pass]:
        del settings
        trained.extend((self.seed, missing) for missing in teams)
        return {missing: made(rejectors=len(specs)) for missing, specs in teams.items()}

    monkeypatch.setattr(Lab, "_publish", counted)
    digits(tmp_path).published(specs=SPECS)
    digits(tmp_path).published(specs=SPECS)
    assert trained == [(0, None)]
    digits(tmp_path, seed=1).published(specs=SPECS)
    digits(tmp_path).published(specs=SPECS, missing=MISSING)
    assert trained[1:] == [(1, None), (0, MISSING)], "other files"
    digits(tmp_path).published(specs=SPECS)
    digits(tmp_path).published(specs=SPECS, missing=MISSING)
    assert len(trained) == 3
    digits(tmp_path).published(specs=SPECS[:2])
    digits(tmp_path, replace(TINY, epochs=3)).published(specs=SPECS)
    digits(tmp_path, replace(TINY, limit=100)).published(specs=SPECS)
    assert trained[3:] == [(0, None)] * 3


# In halves.


def test_rejectors_trained_in_parts_are_those_of_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five that do not fit become three and two, and three become two and one.

    1e-4 for the float32 roundings of batched and single products over some steps of training.
    """
    whole = digits(tmp_path / "whole").published(specs=SPECS)
    assert not caplog.records
    publish, sizes = Lab._publish, []

    def small(self: Lab, teams: Teams, settings: Any) -> dict[int | None, Pass]:
        sizes.append(sum(map(len, teams.values())))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return publish(self, teams, settings)

    monkeypatch.setattr(Lab, "_publish", small)
    with caplog.at_level(logging.WARNING, logger="l2h"):
        parts = digits(tmp_path / "parts").published(specs=SPECS)
    assert sizes == [5, 3, 2, 1, 2]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert all("memory" in line for line in told)
    assert told[0].startswith("5 rejectors")
    assert parts.specs == whole.specs == SPECS
    for part, one in ((parts.test, whole.test), (parts.calibration, whole.calibration)):
        for name in ("y", "client_label", "server_label"):
            assert np.array_equal(getattr(part, name), getattr(one, name)), name
        assert part.scores.shape == one.scores.shape
        assert np.isfinite(one.scores).all()
        assert np.abs(part.scores - one.scores).max() < 1e-4
        assert np.ptp(one.scores, axis=0).max() > 1e-2, "the rejectors differ, so their order is tested too"
    assert parts.losses == pytest.approx(whole.losses, abs=1e-4)
    again = digits(tmp_path / "parts").published(specs=SPECS)
    assert sizes == [5, 3, 2, 1, 2], "the joined pass is kept"
    assert_same_side(again.test, parts.test)


def test_one_rejector_that_does_not_fit_cannot_be_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> Pass:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Lab, "_publish", none)
    with pytest.raises(torch.OutOfMemoryError):
        digits(tmp_path).published(specs=SPECS[:1])
    assert not list(tmp_path.rglob("*.npz"))


# What nothing learns from.


def spy_on_client(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What clients are asked to be trained on, and how; one epoch is run."""
    seen: list[dict[str, Any]] = []
    train, repeatable, precisions = lab_module.train_classifier, lab_module.repeatable, []

    def spied(name: str, model: Any, X: Any, y: Any, settings: StageSettings, context: Any) -> int:
        plain = replace(context.settings, server=None, rejector=None, recipe="default", loss="priced", honest="auto")
        seen.append({"name": name, "X": X, "y": y, "settings": settings, "within": [*precisions], "plain": plain})
        return train(name, model, X, y, replace(settings, epochs=1), context)

    @contextmanager
    def noted(settings: Settings, device: torch.device) -> Iterator[None]:
        precisions.append(settings.precision)
        with repeatable(settings, device):
            yield
        precisions.pop()

    monkeypatch.setattr(lab_module, "train_classifier", spied)
    monkeypatch.setattr(lab_module, "repeatable", noted)
    return seen


def spy_on_system(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What systems are to be fitted to."""
    seen: list[dict[str, Any]] = []
    prepare = HelpSystem.prepare

    def spied(self: HelpSystem, X: Any, y: Any, *more: Any, **options: Any) -> Any:
        seen.append({"X": X, "y": y})
        return prepare(self, X, y, *more, **options)

    monkeypatch.setattr(HelpSystem, "prepare", spied)
    return seen


def images(X: Any) -> set[bytes]:
    return {np.ascontiguousarray(image).tobytes() for image in X}


@pytest.fixture
def unequal(tmp_path: Path) -> Lab:
    """Images of which no two are equal, so that each can be told from every other."""
    write_images(tmp_path / "data" / "svhn.npz", 0, train=150, test=60)
    one = Lab(str(tmp_path / "data"), "svhn", 0, TINY, tmp_path / "passes", device="cpu")
    data = one.dataset
    assert len(images(data.X_train) | images(data.X_test)) == len(data.X_train) + len(data.X_test)
    return one


def test_calibration_rows_are_a_tenth_of_each_class_and_of_nothing_else(unequal: Lab) -> None:
    train, calibration = unequal.parts()
    y = unequal.dataset.y_train
    assert sorted([*train, *calibration]) == list(range(len(y)))
    assert np.abs(np.bincount(y[calibration], minlength=10) - 0.1 * np.bincount(y)).max() < 1


@pytest.mark.parametrize("recipe", ["published", "ours"])
@pytest.mark.parametrize("missing", [None, MISSING])
def test_clients_and_servers_are_given_neither_calibration_nor_test_rows(
    recipe: str, missing: int | None, unequal: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, systems = spy_on_client(monkeypatch), spy_on_system(monkeypatch)
    if recipe == "published":
        unequal.published(missing=missing, specs=SPECS[:2])
    else:
        unequal.ours(missing=missing)
    data, (train, calibration) = unequal.dataset, unequal.parts()
    # Our recipe makes both clients around one server; the cells named here are those of one.
    teams = [missing] if recipe == "published" else [None, MISSING]
    assert len(clients) == len(systems) == len(teams)
    held = images(data.X_train[calibration]) | images(data.X_test)
    kept = np.delete(train, unequal.held_out_rows())
    for team, client, system in zip(teams, clients, systems, strict=True):
        assert not images(system["X"]) & held
        assert images(system["X"]) == images(data.X_train[train]), "all the rest, every class of it"
        assert set(system["y"]) == set(range(10))
        own = kept[data.y_train[kept] != team]
        assert images(client["X"]) == images(unit_range(data.X_train[own])), "but for what the rejector learns from"
        assert sorted(client["y"]) == sorted(data.y_train[own])


def test_calibration_and_test_images_change_nothing_but_their_own_side(unequal: Lab, tmp_path: Path) -> None:
    """Turned upside down and inverted, they leave the other side's scores as they were, to the bit."""
    before = unequal.published(specs=SPECS[:2])
    data, (_, calibration) = unequal.dataset, unequal.parts()
    held = data.X_train.copy()
    held[calibration] = 255 - held[calibration][:, :, ::-1]

    def changed(name: str, **arrays: Any) -> Pass:
        other = Lab(unequal.data, unequal.name, 0, TINY, tmp_path / name, device="cpu")
        other.dataset = replace(data, **arrays)
        assert isinstance(other.dataset, Dataset)
        return other.published(specs=SPECS[:2])

    one = changed("calibration", X_train=held)
    assert_same_side(one.test, before.test)
    assert not np.array_equal(one.calibration.scores, before.calibration.scores)
    two = changed("test", X_test=255 - data.X_test[:, :, ::-1])
    assert_same_side(two.calibration, before.calibration)
    assert not np.array_equal(two.test.scores, before.test.scores)


@pytest.mark.long
def test_our_recipe_calibrates_on_calibration_rows_alone(unequal: Lab, tmp_path: Path) -> None:
    """Other calibration images change the stated probabilities and neither classifier."""
    before = unequal.ours()
    data, (_, calibration) = unequal.dataset, unequal.parts()
    held = data.X_train.copy()
    held[calibration] = 255 - held[calibration][:, :, ::-1]
    other = Lab(unequal.data, unequal.name, 0, TINY, tmp_path / "other", device="cpu")
    other.dataset = replace(data, X_train=held)
    after = other.ours()
    assert np.array_equal(after.test.server_label, before.test.server_label)
    assert np.array_equal(after.test.client_label, before.test.client_label)
    assert not np.array_equal(after.test.scores, before.test.scores)
    assert ((before.test.scores >= 0) & (before.test.scores <= 1)).all(), "probabilities"


@pytest.mark.long
def test_both_clients_in_one_pass_get_what_they_get_alone(tmp_path: Path) -> None:
    """Rejectors beside different clients share a server; 1e-4 for the roundings of batched products."""
    scale = replace(TINY, limit=600, client_epochs=8)
    one = digits(tmp_path / "together", scale)
    together = {missing: one.published(missing=missing) for missing in (None, MISSING)}
    assert len(list((tmp_path / "together").rglob("*.npz"))) == 2
    for missing, both in together.items():
        alone = digits(tmp_path / f"alone-{missing}", scale).published(missing=missing, specs=both.specs)
        for name in ("y", "client_label", "server_label"):
            assert np.array_equal(getattr(both.test, name), getattr(alone.test, name)), name
        finite = np.isfinite(alone.test.scores).all(axis=(1, 2)) & np.isfinite(both.test.scores).all(axis=(1, 2))
        assert finite.sum() >= len(both.specs) / 3, "the bounded form is"
        assert np.abs(both.test.scores[finite] - alone.test.scores[finite]).max() < 1e-3
    different = together[None].test.client_label != together[MISSING].test.client_label
    assert different.any(), "or the test would say little"


def test_both_recipes_help_the_same_client(unequal: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is trained in single precision, outside of what the recipes set: on a GPU that changes its weights."""
    clients = spy_on_client(monkeypatch)
    unequal.precision = "tf32"
    published, ours = unequal.published(specs=SPECS[:1]), unequal.ours()
    first, *others = clients
    assert all((one["settings"], one["plain"]) == (first["settings"], first["plain"]) for one in others)
    assert all(one["within"] == ["fp32"] and one["plain"].augment == "none" for one in clients)
    assert np.array_equal(published.test.client_label, ours.test.client_label)
    assert np.array_equal(published.calibration.y, ours.calibration.y)


# What a recipe is judged by.


def test_random_and_trivial_rules_are_those_of_the_client_and_the_server_that_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers, right on 70% and on 90%: each recipe stands beside its own."""
    rng = np.random.default_rng(0)

    def side(right: float, rejectors: int) -> PassOutcomes:
        y, n = np.zeros(200, dtype=np.int64), 200
        client, server = (np.arange(n) >= n * share for share in (0.6, right))
        scores = rng.random((rejectors, n, 2)).astype(np.float32)
        return PassOutcomes(y, client.astype(np.int64), server.astype(np.int64), scores)

    specs = tuple(QUICK.specs())
    passes = {
        "published": Pass(
            specs, side(0.7, len(specs)), side(0.7, len(specs)), np.zeros((1, len(specs))), {"seconds": {}}
        ),
        "ours": Pass((RejectorSpec(),), side(0.9, 1), side(0.9, 1), np.zeros((0, 1)), {"seconds": {}}),
    }
    for name, one in passes.items():
        monkeypatch.setattr(study.Study, name, lambda self, dataset, one=one: [one])
    given = study.Study("digits", ("digits",), (0,), QUICK, tmp_path)
    bounds = {c["label"]: c["accuracy"]["mean"] for c in run_bounds(given).drawings["brr-digits.png"].data["curves"]}
    drawn = run_tradeoff(given).drawings
    for recipe, right, file in (("our recipe", 0.9, "risk"), ("paper's recipe", 0.7, "risk-published")):
        assert bounds[f"random, {recipe}"] == pytest.approx([0.6 + q * (right - 0.6) for q in QUICK.bounds])
        assert bounds[f"threshold, {recipe}"][-1] == pytest.approx(right), "who may send all has the server's accuracy"
        data = drawn[f"tradeoff-{file}-digits.png"].data
        forms = {recipe, f"{recipe}, released loss", f"{recipe}, bounded loss"}
        assert {curve["label"] for curve in data["curves"]} <= forms
        for c_1, rules in data["trivial"].items():
            assert rules["all_local"] == pytest.approx([0.4] * len(QUICK.c_e))
            assert rules["all_remote"] == pytest.approx([c_e + c_1 * (1 - right) for c_e in QUICK.c_e])


# The ViT.


@pytest.mark.long
def test_rejectors_beside_the_vit_change_nothing_of_it_and_see_inputs_as_the_authors_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training of the server serves the rejectors of all seeds, which learn at its steps and not after them."""
    scale = replace(
        TINY, vit_stage=replace(QUICK.vit_stage, epochs=2), vit_options={"width": 16, "depth": 1, "heads": 2}
    )
    write_images(tmp_path / "data" / "cifar100.npz", 0, train=200, test=40)
    made: list[RejectorStep] = []
    update = RejectorStep.update

    def counted(self: RejectorStep, x: Any, *more: Any) -> Any:
        made.append(self)
        return update(self, x, *more)

    monkeypatch.setattr(RejectorStep, "update", counted)

    def vit(folder: str) -> VitLab:
        return VitLab(study.Study(str(tmp_path / "data"), (), (0, 1), scale, tmp_path / folder, "cpu"), "cifar100")

    beside, alone = vit("beside"), vit("alone")
    published, ours = beside.passes([Costs(c_e=0.2), MAIN])
    steps = 2 * -(-170 // QUICK.vit_stage.batch)
    assert len(made) == steps
    assert made[0].rejectors.size == 2 * 2 * 3, "seeds, prices, and forms of the recipe"
    template = made[0].rejectors.template
    assert isinstance(template, SeparateRejector)
    ends = template.input(torch.tensor([0, 255], dtype=torch.uint8).expand(3, 32, 32, 2).permute(3, 0, 1, 2))
    assert ends.flatten(1).tolist() == [[-1.0] * 3072, [1.0] * 3072]
    for name, tensor in alone.server.state_dict().items():
        assert torch.equal(tensor, beside.server.state_dict()[name]), name
    assert len(made) == steps, "trained alone there are no rejectors"
    for one, other in zip(published, ours, strict=True):
        assert np.array_equal(one.test.client_label, other.test.client_label)
        assert np.array_equal(one.test.server_label, other.test.server_label)
    assert not np.array_equal(published[0].test.scores, published[1].test.scores)


# What the paper prints.


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the paper's sources are not beside this checkout")
def test_the_tables_are_the_papers() -> None:
    assert {path.stem for path in SOURCES.glob("*.csv")} == set(NAMES)
    for name in NAMES:
        assert table(name) == list(csv.DictReader(io.StringIO((SOURCES / f"{name}.csv").read_text()))), name


@pytest.mark.parametrize("name", NAMES)
def test_the_packaged_tables_can_be_read(name: str) -> None:
    rows = study.printed(name)
    assert rows == table(name)
    assert all(None not in row and None not in row.values() for row in rows), "every row is whole"


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_the_papers_risk_follows_from_its_own_table(name: str, tmp_path: Path) -> None:
    """By its loss at c_1 = 1.25, c_e = 0.25; the table has three digits."""
    rows = {row["decision"]: row for row in table("contrastive-main") if row["dataset"] == name}
    kept, sent = (float(rows[side]["ratio"]) / 100 for side in ("local", "remote"))
    assert kept + sent == pytest.approx(1, abs=1e-3)
    wrong = {(side, who): 1 - float(rows[side][who]) / 100 for side in rows for who in ("m", "e")}
    risk = kept * wrong["local", "m"] + sent * (0.25 + 1.25 * wrong["remote", "e"])
    never = kept * wrong["local", "m"] + sent * wrong["remote", "m"]
    assert PRINTED_RISK[name] == pytest.approx((risk, never), abs=1e-3)
    assert risk > never
    assert PRINTED_RISK.keys() == {"cifar10", "svhn"}
    (told,) = [sentence for sentence in errata("contrastive", tmp_path) if "never asking" in sentence]
    assert "{} against {}".format(*PRINTED_RISK[name]) in told


def errata(name: str, folder: Path) -> list[str]:
    """What an experiment says of the paper, whatever the data."""
    return EXPERIMENTS[name](study.Study("digits", (), (0,), TINY, folder)).errata


def test_the_papers_overall_reject_rate_does_not_follow_from_its_columns(tmp_path: Path) -> None:
    """CIFAR-10's test set has ten classes of one size: the overall rate is a tenth of one and nine of the others."""
    (row,) = [r for r in table("imbalance") if (r["dataset"], r["row"]) == ("cifar10", "rejected rate")]
    follows = 0.1 * float(row["missing_class"]) + 0.9 * float(row["other_classes"])
    assert follows == pytest.approx(66.4, abs=0.05)
    assert float(row["all_classes"]) == 72.7
    (told,) = [sentence for sentence in errata("missing-class", tmp_path) if "reject rate" in sentence]
    assert f"{row['all_classes']}%" in told
    assert f"{follows:.1f}%" in told
