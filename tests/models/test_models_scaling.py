"""Input scaling: standardised data has mean 0 and variance 1; pixels go to [-1, 1]."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from l2h.models import InputScale, Scaled


def test_standardised_images_have_mean_0_and_variance_1_a_channel() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(low, 256, (50, 6, 5)) for low in (0, 100, 200)], axis=1).astype(np.uint8)
    Z = InputScale.standardise(X)(torch.from_numpy(X)).numpy().astype(np.float64)
    np.testing.assert_allclose(Z.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(Z.var(axis=(0, 2, 3)), 1, atol=1e-5)


def test_standardised_tables_have_mean_0_and_variance_1_a_column() -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(200, 4)) * [1, 10, 0.01, 5] + [0, 100, -3, 7]).astype(np.float32)
    Z = InputScale.standardise(X)(torch.from_numpy(X)).numpy().astype(np.float64)
    # 1e-4: float32 holds 100 to seven digits, and the column spreads over 10.
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(Z.var(axis=0), 1, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4])
def test_a_constant_column_becomes_0_and_a_new_value_stays_of_ordinary_size(value: float) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    X[:, 1] = value
    scale = InputScale.standardise(X)
    assert scale(torch.from_numpy(X))[:, 1].abs().max() < 1e-6
    fresh = torch.tensor([[0.0, value + 1.0]])
    assert scale(fresh)[0, 1].abs() < 10, "a pixel that was always blank must not drown the others"


def test_unit_range_maps_pixels_to_the_papers_range() -> None:
    x = torch.arange(256, dtype=torch.uint8).reshape(256, 1, 1, 1).expand(256, 3, 1, 1)
    z = InputScale.to_unit_range((3, 1, 1))(x)
    torch.testing.assert_close(z[:, 0, 0, 0], torch.linspace(-1, 1, 256))
    assert z.dtype == torch.float32
    assert (z[0] == -1).all()
    assert (z[255] == 1).all()


def test_without_arguments_it_only_makes_floats() -> None:
    x = torch.tensor([[1, 2, 250]], dtype=torch.uint8)
    assert torch.equal(InputScale((3,))(x), torch.tensor([[1.0, 2.0, 250.0]]))


def test_the_scaling_travels_with_the_weights() -> None:
    X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    torch.manual_seed(0)
    model = Scaled(InputScale.standardise(X), torch.nn.Linear(3, 2))
    other = Scaled(InputScale((3,)), torch.nn.Linear(3, 2))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(torch.from_numpy(X)), model(torch.from_numpy(X)))
