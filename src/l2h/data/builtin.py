"""The digits of scikit-learn: small, real, and available without a download."""

import numpy as np

from l2h.data.dataset import Dataset
from l2h.data.reading import need
from l2h.data.splits import split

TEST_SHARE = 0.3


def digits(seed: int = 0) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits as images uint8 (n, 1, 8, 8).

    The published values 0..16 become 0..255. 30% of each class are the test part.

    Args:
        seed: 0 or more; decides which rows are in the test part.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        DataError: the seed is negative.

    Example:
        >>> digits()
        Dataset('digits': 1258 train, 539 test, 10 classes, input (1, 8, 8) uint8, augment shift)
    """
    bunch = need("sklearn.datasets", "scikit-learn", "the digits dataset").load_digits()
    X = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    train, test = split(y, (1 - TEST_SHARE, TEST_SHARE), seed)
    return Dataset(
        name="digits",
        X_train=X[train],
        y_train=y[train],
        X_test=X[test],
        y_test=y[test],
        class_names=tuple(str(name) for name in bunch.target_names),
        augment="shift",
    )
