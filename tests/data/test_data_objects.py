"""Datasets of torch and of Hugging Face, given whole to the system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clouds import X_TEST, Y_TEST, X, Y, labels, make
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

from l2h.data.objects import take_samples
from l2h.errors import DataError

PAIRS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
PICTURES = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


class Named(Dataset):
    """Pictures with texts as labels."""

    def __init__(self, pictures: list[Any]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[Any, str]:
        return self.pictures[i], ("cat", "dog")[i % 2]


def test_a_system_is_fitted_and_measured_by_datasets_and_loaders() -> None:
    expected = make().fit(X, Y).evaluate(X_TEST, Y_TEST)
    for given in (PAIRS, DataLoader(PAIRS, batch_size=50)):
        system = make().fit(given).calibrate(given)
        np.testing.assert_array_equal(make().fit(given).evaluate(X_TEST, Y_TEST).score, expected.score)
        test = TensorDataset(torch.from_numpy(X_TEST), torch.from_numpy(Y_TEST))
        assert system.evaluate(test).accuracy["client"] == expected.accuracy["client"]


def test_tensors_that_numpy_has_no_type_for_are_taken_as_float32() -> None:
    inputs, _ = take_samples(TensorDataset(torch.from_numpy(X).bfloat16(), torch.from_numpy(Y)), None)
    np.testing.assert_array_equal(inputs[:], torch.from_numpy(X).bfloat16().float())


def test_pictures_become_channels_of_uint8_and_texts_stay() -> None:
    taken, y = take_samples(Named([Image.fromarray(picture) for picture in PICTURES]), None)
    np.testing.assert_array_equal(taken, PICTURES.transpose(0, 3, 1, 2))
    assert y.tolist() == ["cat", "dog"] * 3
    grey = take_samples(Named([Image.fromarray(picture[..., 0]) for picture in PICTURES]), None)[0]
    np.testing.assert_array_equal(grey, PICTURES[:, None, :, :, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            TensorDataset(torch.zeros(3, 2)),
            r"sample 0 of the dataset is a tuple, but a pair \(input, label\) is needed",
        ),
        (Named([np.zeros(2), np.zeros(2), np.zeros(3)]), r"sample 2 has shape \(3,\), sample 0 \(2,\)"),
        (TensorDataset(torch.zeros(3, 2), torch.zeros(3, 2)), r"sample 0 of the dataset has a label of shape \(2,\)"),
        (
            ConcatDataset([TensorDataset(torch.zeros(3, 2), torch.zeros(3)), Named([np.zeros(2, np.float32)])]),
            r"sample 3 of the dataset has the label 'cat', sample 0 0\.0: use one kind",
        ),
        (DataLoader(TensorDataset(torch.zeros(3, 2)), batch_size=2), "batch 0 of the dataset is a list"),
        (
            Named([Image.fromarray(np.full((4, 4), 300, np.uint16))] * 2),
            r"sample 0 of the dataset: mode I;16 is not 8 bits per channel: convert it to RGB or L",
        ),
        (np.zeros((3, 2)), "y is None"),
    ],
)
def test_what_holds_no_pairs_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make().fit(given)


def test_a_hugging_face_dataset_of_numbers_or_pictures_is_taken_whole() -> None:
    datasets = pytest.importorskip("datasets")
    columns = {f"x{k}": X[:, k].tolist() for k in range(X.shape[1])}
    numbers = datasets.Dataset.from_dict({**columns, "label": Y.tolist()})
    table, y = take_samples(numbers, None)
    assert list(table) == list(columns)
    np.testing.assert_array_equal(y, Y)
    assert make(lambda x: labels(np.asarray(x, dtype=np.float32))).fit(numbers).num_classes == 3
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = {"image": [Image.fromarray(picture) for picture in PICTURES], "label": [0, 1] * 3}
    taken, y = take_samples(datasets.Dataset.from_dict(pictures, features=features), None)
    np.testing.assert_array_equal(taken, PICTURES.transpose(0, 3, 1, 2))
    assert y.tolist() == [0, 1] * 3
    with pytest.raises(DataError, match="no column of labels, such as 'label'; its columns are x0"):
        take_samples(numbers.remove_columns("label"), None)
