"""The UCI handwritten digits that ship with scikit-learn: no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from shoal.data.places import About
from shoal.data.sources.registry import Dataset, source
from shoal.types import Pool

DIGITS = About(
    "digits", "UCI handwritten digits", "1,437 / 360", 10, (64,), "CC BY 4.0",
    "Alpaydin and Kaynak, UCI, 1998",
)  # fmt: skip


@source("digits", DIGITS)
def digits(*, flat: bool = True) -> Dataset:
    """1,797 grey 8x8 digits in 10 classes, scaled to [0, 1].

    ``flat`` gives 64 features a row, otherwise images (1, 8, 8). The split is 80/20, stratified,
    and always the same: ``digits_split.txt`` has the rows of both, in order, as scikit-learn's
    ``train_test_split`` drew them with ``random_state=0``.

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (the
    test half of it, which is what scikit-learn carries).
    """
    table = _table()
    train, test = (
        [int(row) for row in line.split()]
        for line in Path(__file__).with_name("digits_split.txt").read_text().splitlines()
    )
    shape = (64,) if flat else (1, 8, 8)

    def pool(rows: list[int]) -> Pool:
        x = torch.as_tensor(table[rows, :64] / 16.0, dtype=torch.float32)
        return Pool(x.reshape(-1, *shape), torch.as_tensor(table[rows, 64], dtype=torch.int64))

    return Dataset("digits", pool(train), pool(test), 10, shape)


def _table() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """``[1797, 65]`` pixels and label. Its file is read without importing scikit-learn, which
    takes longer than a short run; where the file has moved, scikit-learn is asked after all."""
    spec = find_spec("sklearn")
    file = Path((spec and spec.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.column_stack([x, y])
