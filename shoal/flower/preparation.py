"""What all members' training rows together say of their columns and answers.

Members send counts, sums and sums of squares, as whole numbers so large that adding them rounds
nothing and needs no order; under secure aggregation only their total is seen. Smallest and largest
values, values of categories and words are no sums, and are sent as they are, or refused. The server
makes figures of them, which every member gets, also one that joins later.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.data.columns import (
    MOST,
    Categories,
    ColumnEncoder,
    DateParts,
    Elapsed,
    Numbers,
    Prepared,
    WordCounts,
)
from shoal.data.dataset import Elsewhere
from shoal.data.text import UNKNOWN, Vocabulary
from shoal.flower.data_form import ColumnForm, DataForm

BITS, FRACTION, PIECES = 32, 256, 16  # a number is 16 pieces of 32 bits, half of them below 1
WORDS, LETTERS, BYTES = 100_000, 256, 8 << 20  # of what one member sends
SMALL = 1e-12  # times the mean: a deviation that rounding has made
Figures = dict[str, Any]  # what is written to ``preparation.json``


class FiguresError(ValueError):
    """Why figures were refused, in one sentence."""


# ---- numbers that add up -------------------------------------------------------------------------
def to_pieces(values: Sequence[Fraction]) -> Tensor:
    """
    >>> from_pieces(to_pieces([Fraction(3, 2)]) + to_pieces([Fraction(-1, 4)]))
    [Fraction(5, 4)]
    """
    out = np.zeros((len(values), PIECES), np.int64)
    for row, value in enumerate(values):
        whole = round(value * (1 << FRACTION))
        if abs(whole) >> (BITS * PIECES - 12):  # so that thousands of them still fit
            raise UserError("a column has numbers too large to be added up; leave it out")
        whole %= 1 << (BITS * PIECES)
        out[row] = [(whole >> (BITS * i)) & ((1 << BITS) - 1) for i in range(PIECES)]
    return torch.from_numpy(out.reshape(-1))


def from_pieces(pieces: Tensor) -> list[Fraction]:
    out = []
    for row in pieces.reshape(-1, PIECES).tolist():
        whole = sum(piece << (BITS * i) for i, piece in enumerate(row)) % (1 << (BITS * PIECES))
        if whole >> (BITS * PIECES - 1):
            whole -= 1 << (BITS * PIECES)
        out.append(Fraction(whole, 1 << FRACTION))
    return out


def size_of(form: DataForm) -> int:
    """How many numbers a member adds up."""
    return 3 * len(summed(form)) + (form.classes or 0) * (form.target != "number")


def summed(form: DataForm) -> list[str]:
    """Inputs and answers of which count, sum and sum of squares are asked."""
    own = math.prod(form.answer) if form.target == "number" else 0
    return [*(form.table.numbers if form.table else ()), *(f"answer {i}" for i in range(own))]


# ---- both halves: figures as they are applied ----------------------------------------------------
def settled(form: DataForm, figures: Figures) -> DataForm:
    """The form with what all members' rows have told."""
    try:
        return _settled(form, figures)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise FiguresError(f"figures that do not fit the agreement ({error})") from None


def _settled(form: DataForm, figures: Figures) -> DataForm:
    rows = figures["rows"]
    inputs = form.table.numbers if form.table else []
    numbers = {name: _finite(figures["numbers"][name]) for name in inputs}
    if type(rows) is not int or rows < 1:
        raise ValueError("no rows")
    counts = tuple(figures["counts"])
    if len(counts) != size_of(form) - 3 * len(summed(form)) or not all(
        type(n) is int for n in counts
    ):
        raise ValueError("no counts of classes")
    answers = [_finite(pair) for pair in figures["answers"]]
    if len(answers) != (math.prod(form.answer) if form.target == "number" else 0):
        raise ValueError("no figures of the answers")
    learnt = Elsewhere(tuple(a[1] ** 2 or 1.0 for a in answers), counts, rows)
    form = replace(form, learnt=learnt)
    table = form.table
    if table is None:
        return form
    unit = tuple((a[0], a[1] or 1.0) for a in answers) if table.scale_y else ()
    form = replace(form, unit=unit)
    token = next((c for c in table.columns if c.kind == "tokens"), None)
    if token is not None:
        pairs = figures["words"][token.column]
        if not 0 < len(pairs) <= token.vocabulary or not all(is_word(w) for w, _ in pairs):
            raise ValueError(f"words of {token.column!r}")
        known = Vocabulary([word for word, _ in pairs])
        return replace(form, shape=(token.length,), vocabulary=len(known), known=known)
    columns = prepared_of(form, numbers, figures)
    return replace(form, shape=(len(columns.names),), columns=columns)


def _finite(values: Any) -> list[float]:
    if not isinstance(values, list) or len(values) not in (2, 4):
        raise ValueError("no mean and deviation")
    if not all(type(v) in (int, float) and math.isfinite(v) for v in values) or values[1] < 0:
        raise ValueError("a mean or a deviation that is not finite")
    return [float(v) for v in values]


def prepared_of(form: DataForm, numbers: Mapping[str, list[float]], figures: Figures) -> Prepared:
    """Encoders and scales, as :func:`shoal.data.columns.prepared` makes them of rows."""
    assert form.table is not None
    made: list[ColumnEncoder] = []
    mean, shift, width = list[float](), list[float](), list[float]()
    for column in form.table.columns:
        for name in column.numbers:
            centre, spread, *ends = numbers[name]
            offset = centre
            if column.kind == "date":
                start = np.datetime64(round(ends[0] * 86400), "s")
                made.append(Elapsed(column.column, start, column.format))
                offset = ends[0]
            else:
                made.append(Numbers(name, offset))
            low, wide = (centre, spread) if form.table.normalize == "standard" else (0.0, 1.0)
            if form.table.normalize == "minmax":
                low, wide = ends[0], ends[1] - ends[0]
            elif form.table.normalize == "none" and column.kind == "number":
                made[-1], offset = Numbers(name), 0.0
            mean.append(centre - offset)
            shift.append(low - offset if form.table.normalize != "none" else 0.0)
            width.append(wide if wide > SMALL * max(abs(centre), 1e-30) else 1.0)
        if column.numbers:
            continue
        if column.listed:
            values = figures["values"][column.asked]
            if not 1 <= len(values) <= MOST or not all(map(is_word, values)):
                raise ValueError(f"values of {column.asked!r}")
            made.append(
                Categories(column.column, tuple(values)) if column.kind == "category" else
                DateParts(column.column, column.part, tuple(map(int, values)), column.format)
            )  # fmt: skip
        else:
            made.append(_word_counts(column, figures))
        inputs = len(made[-1].names)
        mean, shift, width = mean + [0.0] * inputs, shift + [0.0] * inputs, width + [1.0] * inputs
    return Prepared(tuple(made), np.array(mean), np.array(shift), np.array(width), {})


def _word_counts(column: ColumnForm, figures: Figures) -> WordCounts:
    pairs, rows = figures["words"][column.column], figures["rows"]
    fine = 0 < len(pairs) <= column.vocabulary and all(
        is_word(w) and type(n) is int and 0 < n <= rows for w, n in pairs
    )
    if not fine:
        raise ValueError(f"words of {column.column!r}")
    known = Vocabulary([word for word, _ in pairs])
    own = np.array([n for _, n in pairs], dtype=np.float64)
    assert len(known.tokens) == len(own) + UNKNOWN + 1
    weight = (1.0 + np.log((1 + rows) / (1 + own))).astype(np.float32)
    return WordCounts(column.column, known, weight, max(1.0, float(own.sum() / rows) ** 0.5))


def is_word(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LETTERS and text.isprintable()


# ---- JSON in frames ------------------------------------------------------------------------------
def packed_json(value: Any) -> Tensor:
    data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    if len(data) > BYTES:
        raise UserError(f"what is told of the rows has {len(data):,} bytes, and {BYTES:,} can be "
                        "sent; leave out columns of texts")  # fmt: skip
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def unpacked_json(packed: Tensor) -> dict[str, Any]:
    """A mapping, or a FiguresError."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() > BYTES:
        raise FiguresError("figures that are no text")
    try:
        found = json.loads(packed.numpy().tobytes().decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise FiguresError("figures that are no JSON") from None
    if not isinstance(found, dict):
        raise FiguresError("figures that are no mapping")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(text)
