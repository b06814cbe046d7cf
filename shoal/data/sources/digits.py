"""The UCI handwritten digits that ship with scikit-learn: no download."""

from __future__ import annotations

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
    and always the same.

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (the
    test half of it, which is what scikit-learn carries).
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        x / 16.0, y, test_size=0.2, random_state=0, stratify=y
    )
    shape = (64,) if flat else (1, 8, 8)

    def pool(x: object, y: object) -> Pool:
        rows = torch.as_tensor(x, dtype=torch.float32).reshape(-1, *shape)
        return Pool(rows, torch.as_tensor(y, dtype=torch.int64))

    return Dataset("digits", pool(train_x, train_y), pool(test_x, test_y), 10, shape)
