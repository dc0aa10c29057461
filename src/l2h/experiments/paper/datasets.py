"""Where the data sets of the paper lie."""

from pathlib import Path

from l2h.data import Dataset, load_dataset
from l2h.errors import DataError

PLACES = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10.npz"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100.npz"),
    "svhn": ("train_32x32.mat", "svhn.npz"),
}


def load_named(data: str, name: str, seed: int, limit: int | None) -> Dataset:
    """A data set of the experiments from a folder, or the bundled digits in its place; raises as :func:`find_named`."""
    return load_dataset(find_named(data, name), seed=seed, limit=limit)


def find_named(data: str, name: str) -> str:
    """Where a folder has a data set, as :func:`l2h.load_dataset` takes it.

    Raises:
        DataError: the folder lacks it; the message says which and what may lie there.
    """
    if data == "digits":
        return data
    if not Path(data).is_dir():
        raise DataError(f"--data {data}: there is no such folder; it holds cifar10, svhn and cifar100")
    places = [Path(data) / name, *(Path(data) / other for other in PLACES[name])]
    for place in places:
        if place.exists() or place.with_name(f"{place.name}-train.parquet").exists():
            return str(place)
    raise DataError(
        f"{data} has no {name}: put there {name}-train.parquet and {name}-test.parquet (Hugging Face's image layout), "
        f"or {' or '.join(PLACES[name])} as published; or run on the bundled digits with --data digits --quick"
    )
