"""Asking members for figures of their rows, once, before the first round: judged like any reply."""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_text
from shoal.data.columns import MOST
from shoal.flower.agreement import Agreement
from shoal.flower.data_form import ColumnForm, DataForm
from shoal.flower.masking import Secure
from shoal.flower.messages import FiguresReply, FiguresRequest
from shoal.flower.preparation import (
    BITS,
    LETTERS,
    PIECES,
    WORDS,
    Figures,
    FiguresError,
    from_pieces,
    is_word,
    settled,
    size_of,
    summed,
    unpacked_json,
)
from shoal.flower.server import screening
from shoal.flower.server.masked_round import MaskedRound, SumNotOpenedError
from shoal.flower.server.members import OnlineMembers

FILE = "preparation.json"  # in the run's directory
ATTEMPTS = 20  # with enough members here


@dataclass(frozen=True)
class Preparation:
    """The exchange that comes before a model can be built."""

    agreement: Agreement
    online: OnlineMembers
    wait: Callable[[], tuple[int, ...]]  # members, once enough of them are here
    needed: int

    def of(self, folder: Path) -> Agreement:
        """The agreement with everybody's figures: those of ``folder``, or asked for now."""
        file = folder / FILE
        if not file.exists():
            write_text(file, dump_json(self._asked(), indent=2) + "\n")
        try:
            form = settled(self.agreement.expects, json.loads(file.read_text()))
        except ValueError as error:
            raise UserError(f"{file}: {error}; a run cannot go on without it") from None
        return replace(self.agreement, expects=form)

    def _asked(self) -> Figures:
        log, form = self.online.log, self.agreement.expects
        for _ in range(ATTEMPTS):
            members = self.wait()
            try:
                found = self._once(members)
                settled(form, found)
            except (FiguresError, SumNotOpenedError) as error:
                log.event("preparation", f"no figures of members' rows: {error}; asking again")
                continue
            finally:
                self._attend()
            rows = found["rows"]
            log.event("preparation", f"members told what {rows:,} rows add up to", rows=rows)
            return found
        raise UserError(f"no figures of members' rows after {ATTEMPTS} attempts; see events.jsonl")

    def _attend(self) -> None:
        transport = self.online.transport
        self.online.heard(tuple(transport.heard))
        self.online.missed(tuple(transport.unheard - transport.heard))
        transport.heard.clear()
        transport.unheard.clear()

    def _once(self, members: Sequence[int]) -> Figures:
        form, transport = self.agreement.expects, self.online.transport
        memory_id = secrets.randbits(62)
        plain = {m: FiguresRequest(transport.nonce(), m, memory_id) for m in members}
        if self.agreement.sums is not None:
            return self._summed(plain, memory_id, self.agreement.sums)
        replies = transport.ask(self.online.where, plain, FiguresReply, self._judge(False))
        if len(replies) < self.needed:
            raise FiguresError(f"{len(replies)} of {len(members)} members told them")
        totals = [sum(column, Fraction(0)) for column in zip(
            *(from_pieces(reply.sums) for reply in replies.values()), strict=True)]  # fmt: skip
        rows = sum(int(self.online.rows(m)) for m in replies)
        found = [unpacked_json(reply.found) for reply in replies.values()]
        return combined(form, totals, found, rows)

    def _summed(self, plain: dict[int, FiguresRequest], memory_id: int, secure: Secure) -> Figures:
        """Under masks: the total, and nothing else."""
        form, transport = self.agreement.expects, self.online.transport
        round = MaskedRound(transport, secure, self.online.where, memory_id)
        sealed = round.seal(sorted(plain))
        sent = {m: replace(plain[m], among=sealed.members, sealed=sealed.for_(m))
                for m in sealed.members}  # fmt: skip
        done = transport.ask(self.online.where, sent, FiguresReply, self._judge(True))
        words = round.opened(sealed, {m: [reply.sums] for m, reply in done.items()})
        totals = from_pieces(torch.from_numpy(words.view(np.int64)))
        rows = sum(int(self.online.rows(m)) for m in done)
        check_sums(form, totals, rows)
        return combined(form, totals, [], rows)

    def _judge(self, masked: bool) -> Callable[[dict[int, FiguresReply]], Mapping[int, str]]:
        def judge(found: dict[int, FiguresReply]) -> Mapping[int, str]:
            reasons = {}
            for member, reply in found.items():
                rows = int(self.online.rows(member))
                check = partial(check_reply, self.agreement.expects, rows)
                reasons[member] = screening.judged(check, reply.sums, reply.found, masked)
            return {member: reason for member, reason in reasons.items() if reason}

        return judge


# ---- what members send ---------------------------------------------------------------------------
def check_reply(form: DataForm, rows: int, sums: Tensor, found: Tensor, masked: bool) -> str:
    """Why a member's figures are refused; empty if they are what they should be."""
    if sums.dtype != torch.int64 or sums.shape != (size_of(form) * PIECES,):
        return f"sums of shape {tuple(sums.shape)} and type {sums.dtype}"
    if masked:
        return "more than a sum" if found.numel() else ""
    if sums.numel() and not 0 <= int(sums.min()) <= int(sums.max()) < 1 << BITS:
        return "sums that are no numbers"
    try:
        check_sums(form, from_pieces(sums), rows)
        read_found(form, found, rows)
    except FiguresError as error:
        return str(error)
    return ""


def check_sums(form: DataForm, sums: Sequence[Fraction], rows: int) -> None:
    """Refuse what no rows add up to."""
    names = summed(form)
    for place, name in enumerate(names):
        count, total, square = sums[3 * place : 3 * place + 3]
        if count.denominator != 1 or not 0 <= count <= rows:
            raise FiguresError(f"{float(count):g} values of {name!r} in {rows} rows")
        # a sum of squares is at least the square of the sum, but for what rounding takes away
        if square < 0 or count * square < total * total * (1 - Fraction(1, 10**9)):
            raise FiguresError(f"a sum of squares of {name!r} that is too small for its sum")
        if not count and (total or square):
            raise FiguresError(f"a sum of no values of {name!r}")
    for count in sums[3 * len(names) :]:
        most = rows * math.prod(form.answer if form.target != "multi_label" else ())
        if count.denominator != 1 or not 0 <= count <= most:
            raise FiguresError(f"{float(count):g} rows of a class, of {rows}")


def read_found(form: DataForm, packed: Tensor, rows: int) -> dict[str, Any]:
    """The values, words and extremes that a member has sent, or a FiguresError."""
    found = unpacked_json(packed)
    wanted: dict[str, str] = {}
    for column in form.table.columns if form.table else ():
        wanted |= {n: "ends" for n in column.numbers if form.table and n in form.table.extremes}
        if column.listed and column.values is None:
            wanted[column.asked] = "values"
        elif not column.numbers and not column.listed:
            wanted[column.column] = "words"
    if not set(found) <= set(wanted):
        raise FiguresError("figures of columns that nobody asked for")
    for name, given in found.items():
        if not isinstance(given, list) or not _FITS[wanted[name]](given, rows):
            raise FiguresError(f"no {wanted[name]} of column {name[:LETTERS]!r}")
    return found


def _fits_ends(given: list[Any], rows: int) -> bool:
    fine = len(given) == 2 and all(type(v) is float and math.isfinite(v) for v in given)
    return fine and given[0] <= given[1]


def _fits_values(given: list[Any], rows: int) -> bool:
    return len(given) <= MOST and all(map(is_word, given)) and len(set(given)) == len(given)


def _fits_words(given: list[Any], rows: int) -> bool:
    if len(given) > WORDS:
        return False
    for one in given:
        if not isinstance(one, list) or len(one) != 3 or not is_word(one[0]):
            return False
        if type(one[1]) is not int or type(one[2]) is not int:
            return False
        if not 1 <= one[2] <= min(one[1], rows) or one[1] >= 1 << 53:
            return False
    return len({one[0] for one in given}) == len(given)


_FITS = {"ends": _fits_ends, "values": _fits_values, "words": _fits_words}


def combined(form: DataForm, sums: Sequence[Fraction], found: Sequence[Mapping[str, Any]],
             rows: int) -> Figures:  # fmt: skip
    """The figures of a federation: what the sums come to, and all that was found."""
    names = summed(form)
    numbers: dict[str, list[float]] = {}
    for place, name in enumerate(names):
        count, total, square = sums[3 * place : 3 * place + 3]
        if not count:
            raise FiguresError(f"column {name!r} has no value in any training row of any member")
        mean = total / count
        variance = float(max(Fraction(0), square / count - mean * mean))
        numbers[name] = [float(mean), math.sqrt(variance)]
    answers = [numbers.pop(name) for name in names[len(form.table.numbers if form.table else ()) :]]
    for name in form.table.extremes if form.table else ():
        ends = [one[name] for one in found if name in one]
        numbers[name] += [min(e[0] for e in ends), max(e[1] for e in ends)]
    values: dict[str, list[str]] = {}
    texts: dict[str, Any] = {}
    for column in form.table.columns if form.table else ():
        if column.listed:
            every = {v for one in found for v in one.get(column.asked, ())}
            values[column.asked] = _ordered(column, every if column.values is None
                                            else column.values)  # fmt: skip
            if not 1 <= len(values[column.asked]) <= MOST:
                raise FiguresError(f"column {column.column!r} has {len(values[column.asked])} "
                                   f"different values (1 to {MOST})")  # fmt: skip
        elif not column.numbers:
            texts[column.column] = _vocabulary(column, found, rows)
    counts = [int(n) for n in sums[3 * len(names) :]]
    return {"rows": rows, "numbers": numbers, "answers": answers, "values": values,
            "words": texts, "counts": counts}  # fmt: skip


def _ordered(column: ColumnForm, values: Any) -> list[str]:
    return sorted(values, key=int) if column.kind == "date" else sorted(values)


def _vocabulary(column: ColumnForm, found: Sequence[Mapping[str, Any]], rows: int) -> Any:
    counts, having = Counter[str](), Counter[str]()
    for one in found:
        for word, times, texts in one.get(column.column, ()):
            counts[word] += times
            having[word] += texts
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[: column.vocabulary - 2]
    if not ordered:
        raise FiguresError(f"column {column.column!r} has no words in its training rows")
    return [[word, having[word]] for word in ordered]
