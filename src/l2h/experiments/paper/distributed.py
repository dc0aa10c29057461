"""The trainings behind the paper's experiments on a cluster; the experiments then find them in the folder."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from l2h.experiments.clusters import ClusterWork, ray_cluster
from l2h.experiments.paper.lab import Lab
from l2h.experiments.paper.study import Study
from l2h.experiments.paper.variants import keep_rows, missing_groups, train_group, variants_of
from l2h.experiments.paper.vit import VitLab, printed_prices, vit_data
from l2h.files import write_atomically
from l2h.settings import Settings
from l2h.training import Silent

log = logging.getLogger("l2h")
VIT, REPRODUCE = "cifar100-vit", "reproduce"
#: The recipes by whose passes an experiment goes, where these are not both.
_RECIPES: dict[str, tuple[str, ...]] = {"async": ("published",), VIT: (), REPRODUCE: ()}


class _Training(NamedTuple):
    """One task: what it trains, what is called in it, and what is called here with what it returns."""

    of: str
    what: str
    run: Callable[[], Any]
    keep: Callable[[Any], None]


def train_on_cluster(on: str, experiments: Sequence[str], study: Study) -> Study:
    """Train on a cluster what experiments need and the folder lacks, and return the study that finds it there."""
    with ray_cluster(on) as cluster:
        request = cluster.request(Settings(device=study.device, threads=1))
        there = replace(study, device=request.device, progress=Silent(), hardware=set())
        left = {f"{one.of}: {one.what}": one for one in _trainings(experiments, there)}
        works = [ClusterWork(key, {one.what: one.run}) for key, one in left.items()]
        for done, (key, _, value) in enumerate(cluster.run(works, request) if works else (), start=1):
            left[key].keep(value)
            log.info("%s done (%d of %d)", key, done, len(left))
    return replace(study, device="auto")  # nothing is left to train, and that device may be none of this machine


def _trainings(experiments: Sequence[str], study: Study) -> Iterator[_Training]:
    """Give what is to be trained: a task per data set, seed and recipe or group of variants, and one for the ViT."""
    passes, variants = study.folder / "passes", variants_of(study.scale)
    recipes = {recipe for name in experiments for recipe in _RECIPES.get(name, ("published", "ours"))}
    if VIT in experiments:
        files = {path.name: path.read_bytes() for path in passes.glob(f"{vit_data(study)}-vit*") if path.is_file()}
        yield _Training(vit_data(study), "ViT", partial(_train_vit, study, files), partial(_write, passes))
    for name in study.sets:
        for seed in study.seeds if set(experiments) != {"gallery"} else study.seeds[:1]:
            of = f"{name}, seed {seed}"
            lab, fresh = (study.lab(name, seed) for _ in range(2))  # one loads its data, the other is sent without
            for recipe in sorted(recipes):
                if not lab.is_kept(recipe):
                    yield _Training(of, recipe, partial(_train_pass, fresh, recipe), partial(_write, passes))
            folder = study.folder / REPRODUCE
            for key, group in missing_groups(lab, variants, folder).items() if REPRODUCE in experiments else ():
                what = "variants with a joint step" if group[0].joint else "variants"
                keep = partial(keep_rows, lab, variants, folder)
                yield _Training(of, what, partial(train_group, fresh, group, key), keep)


def _train_pass(lab: Lab, recipe: str) -> dict[str, bytes]:
    """Train a pass, and return the files that keep it."""
    with TemporaryDirectory() as folder:
        own = replace(lab, folder=Path(folder))
        own.published() if recipe == "published" else own.ours()
        return _read(Path(folder))


def _train_vit(study: Study, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Train the ViT and all passes around it that are not among the files; return those that are new."""
    with TemporaryDirectory() as folder:
        own = replace(study, folder=Path(folder))
        passes = own.folder / "passes"
        _write(passes, files)
        VitLab(own, vit_data(own)).passes(printed_prices())
        return {name: data for name, data in _read(passes).items() if data != files.get(name)}


def _read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        write_atomically(folder / name, data)
