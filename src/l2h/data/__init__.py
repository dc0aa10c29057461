"""Data sets: :func:`load_dataset` reads the usual formats into one :class:`Dataset` of numpy arrays.

Importing this package needs numpy alone; the packages that a format needs are imported when it is read.
"""

from l2h.data.corruptions import corrupt
from l2h.data.dataset import Dataset, split
from l2h.data.images import read_images
from l2h.data.load import digits, load_dataset
from l2h.rows import Rows, StoredArray, take_rows

__all__ = ["Dataset", "Rows", "StoredArray", "corrupt", "digits", "load_dataset", "read_images", "split", "take_rows"]
