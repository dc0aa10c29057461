"""``l2h paper --on ray``: a cluster trains what the experiments need, to the bit what this machine trains, and once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import assert_told
from paper_runner import assert_same_passes, call, written

from l2h.experiments.paper.distributed import train_on_cluster
from l2h.experiments.paper.grid import QUICK
from l2h.experiments.paper.repeating import make_study
from l2h.experiments.paper.study import Study
from l2h.experiments.paper.variants import measure, read_rows, variants_of
from l2h.experiments.paper.vit import VitLab, printed_prices
from l2h.settings import StageSettings

SHORT = StageSettings(epochs=1, batch=64)
TINY = replace(
    QUICK,
    limit=400,
    c_e=(0.25,),
    c_1=(1.25,),
    syncs=("1", "3"),
    epochs=2,
    client_epochs=1,
    server_options={"width": 1},
    server_stage=SHORT,
    rejector_stage=SHORT,
    vit_stage=SHORT,
)
EXPERIMENTS = ["contrastive", "cifar100-vit", "reproduce"]


@pytest.fixture
def two_nodes() -> Iterator[None]:
    from ray_nodes import ray_nodes

    with ray_nodes():
        yield


def study_in(folder: Path) -> Study:
    return replace(make_study("all", "digits", [], 1, folder, quick=True)[1], scale=TINY)


def test_bad_usage(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = call("contrastive", "--data", "digits", "--quick", "--on", "ray://127.0.0.1:9", "--out", out)
    assert_told(told, 1, "ray://127.0.0.1:9 cannot be reached")
    assert not out.exists()


@pytest.mark.long
@pytest.mark.usefixtures("two_nodes")
def test_two_nodes_train_what_one_machine_does_and_only_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = study_in(tmp_path / "here"), study_in(tmp_path / "there")
    variants = variants_of(TINY)
    for seed in here.seeds:
        lab = here.lab("digits", seed)
        lab.published()
        lab.ours()
        measure(lab, variants, here.folder / "reproduce")
    VitLab(here, "digits").passes(printed_prices())
    with caplog.at_level("INFO", "l2h"):
        train_on_cluster("ray", EXPERIMENTS, there)
        assert caplog.text.count(" done (") == 5
        names = sorted(written(here.folder))
        assert sorted(written(there.folder)) == names
        assert_same_passes(there.folder, here.folder, [name for name in names if name.endswith(".npz")])
        for seed in here.seeds:
            one, other = (read_rows(study.folder / "reproduce" / f"rows-digits-{seed}.csv") for study in (here, there))
            assert [row | {"seconds": None} for row in one] == [row | {"seconds": None} for row in other]
        kept = written(there.folder)
        (there.folder / "passes" / "digits-ours-0.npz").unlink()
        caplog.clear()
        train_on_cluster("ray", EXPERIMENTS, there)
    told = [record.getMessage() for record in caplog.records if " done (" in record.getMessage()]
    assert sorted(text.split(" done")[0] for text in told) == ["digits, seed 0: ours", "digits: ViT"]
    again = written(there.folder)
    assert {name for name in kept if again[name] != kept[name]} == {"digits-ours-0.npz", "digits-ours-missing-0.npz"}
