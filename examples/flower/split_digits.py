"""Deal the digits out to five people: one file each, as if they had collected them themselves.

python examples/flower/split_digits.py people
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

PEOPLE = ("ada", "bob", "cleo", "dan", "eve")


def main(folder: Path) -> None:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for name, rows in zip(PEOPLE, np.array_split(order, len(PEOPLE)), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        x = (digits.data[rows] / 16.0).astype(np.float32)
        np.savez(folder / name / "digits.npz", x=x, y=digits.target[rows])
        print(f"{folder / name / 'digits.npz'}: {len(rows)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "people"))
