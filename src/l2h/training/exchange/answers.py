"""The server's answers on the training samples, one bit per sample: all that L2 needs of the server."""

import numpy as np
import numpy.typing as npt

from l2h.training.exchange.errors import SnapshotError


def pack_answers(right: npt.ArrayLike) -> bytes:
    """Pack booleans, (n,), one bit each, in the order of the samples: ``ceil(n / 8)`` bytes.

    Raises:
        SnapshotError: ``right`` is not a vector of booleans.

    >>> pack_answers([True, False, True]).hex()
    'a0'
    """
    bits = np.asarray(right)
    if bits.dtype != np.bool_ or bits.ndim != 1:
        raise SnapshotError(f"answers must be a vector of booleans, got {bits.dtype} of shape {bits.shape}")
    return np.packbits(bits).tobytes()


def unpack_answers(data: bytes, n: int) -> npt.NDArray[np.bool_]:
    """Return the booleans (n,) that :func:`pack_answers` packed for ``n`` samples.

    Raises:
        SnapshotError: the bytes are not those of ``n`` answers.

    >>> unpack_answers(bytes([0xA0]), 3).tolist()
    [True, False, True]
    """
    if n < 0 or len(data) != (n + 7) // 8:
        raise SnapshotError(f"{len(data)} bytes cannot hold the answers on {n} samples: expected {(n + 7) // 8}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).astype(np.bool_)
    if bits[n:].any():
        raise SnapshotError(
            f"the bits after the last of {n} answers are not zero: packed for another number of samples"
        )
    return bits[:n]
