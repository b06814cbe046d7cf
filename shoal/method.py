"""A method: a name and a tuple of parts, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from shoal.errors import UserError
from shoal.part import SLOTS, STATES, Gaps, Part, Rule
from shoal.types import Reduction

Weights = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Method:
    """Parts that act left to right as written. ``a | b`` is ``a``'s parts, then ``b``'s.

    ``base`` marks a method that can stand under a plug-in: it decides the weights of a composition.

    >>> Method("a") | Method("b")
    Method a + b (weights: samples): no parts, plain averaging
    """

    name: str
    parts: tuple[Part, ...] = ()
    weights: Weights = "samples"
    base: bool = True
    paper: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for part in self.parts:
            _check_names(part)
        for name, slot in SLOTS.items():
            if slot.rule is Rule.ONE:
                _check_single(name, self.fillers(name))
        setters = [p for p in self.parts if p.sets_rate]
        if len(setters) > 1:
            raise UserError(
                f"method {self.name!r}: {_names(setters)} both set the clients' rate; keep one"
            )
        single = [p for p in self.parts if p.one_model_only]
        banks = self.fillers("init_bank") + self.fillers("regroup")
        if single and banks:
            raise UserError(
                f"method {self.name!r}: {_names(single)} has no meaning over the several models "
                f"of {_names(banks)}; keep one of the two"
            )

    def fillers(self, slot: str) -> list[Part]:
        return [part for part in self.parts if part.fills(slot)]

    @cached_property
    def _numbered(self) -> dict[str, tuple[tuple[int, Part], ...]]:
        return {
            slot: tuple((i, p) for i, p in enumerate(self.parts) if p.fills(slot)) for slot in SLOTS
        }

    def numbered(self, slot: str) -> tuple[tuple[int, Part], ...]:
        """The parts that fill a slot, with their numbers in the method; looked up once, since a
        round asks for every client."""
        return self._numbered[slot]

    def fills(self, slot: str) -> bool:
        return any(part.fills(slot) for part in self.parts)

    def only(self, slot: str) -> Part | None:
        """The one part that fills a single slot, if any does."""
        return next(iter(self.fillers(slot)), None)

    @property
    def beyond_sums(self) -> str:
        """Why the server cannot do with the sum of the uploads; empty if it can.

        >>> Method("a").beyond_sums
        ''
        """
        for part in self.parts:
            for needs, why in (
                (part.individual_uploads, "compares single uploads"),
                (part.individual_norms, "measures single uploads"),
                (part.fills("upload") and part.reduction is Reduction.STACK,
                 "keeps what every client sends apart"),
                (part.asks, "asks single clients"),
                (any(part.fills(s) for s in ("ask", "route", "regroup")),
                 "treats every client by itself"),
            ):  # fmt: skip
                if needs:
                    return f"{type(part).__name__} {why}"
        return ""

    def index(self, part: Part) -> int:
        return next(i for i, p in enumerate(self.parts) if p is part)

    def __or__(self, other: Method) -> Method:
        bases = [m for m in (self, other) if m.base and m.parts] or [
            m for m in (self, other) if m.base
        ]
        # 0.3 of the specification: a composition takes the base method's weights
        weights = bases[0].weights if bases else "samples"
        return Method(f"{self.name} + {other.name}", self.parts + other.parts, weights, bool(bases))

    def with_weights(self, weights: Weights) -> Method:
        return Method(self.name, self.parts, weights, self.base, self.paper)

    def check_optimizer(self, optimizer: Part) -> None:
        """Refuse a momentum that a part does not reckon with, and memories that divide
        displacements by the rate over an adaptive optimiser."""
        used = getattr(self.only("step") or optimizer, "momentum", 0.0)
        for part in self.parts:
            if part.reckoned_momentum not in (None, used):
                raise UserError(
                    f"method {self.name!r}: {type(part).__name__} reckons with a local momentum of "
                    f"{part.reckoned_momentum:g}, and clients train with {used:g}; for fednova, "
                    f"write its rho: {used:g} and leave local.momentum out"
                )
        wrong = [p for p in self.parts if p.displacement_memory]
        if getattr(optimizer, "adaptive", False) and wrong:
            raise UserError(
                f"method {self.name!r}: {_names(wrong)} reads gradients off displacements, which "
                "an adaptive local optimiser does not allow; set local.optimizer to sgd"
            )

    @property
    def eager_reason(self) -> str:
        """Why the method cannot be stacked; empty if it can."""
        return next((p.eager_reason for p in self.parts if p.eager_reason), "")

    @property
    def float32_gaps(self) -> Gaps:
        """How far engines may be apart in float32: as far as the part that says most.

        >>> Method("a").float32_gaps
        Gaps(sgd=1e-05, adaptive=0.0001)
        """
        said = [Part.float32_gaps, *(part.float32_gaps for part in self.parts)]
        return Gaps(max(g.sgd for g in said), max(g.adaptive for g in said))

    def __repr__(self) -> str:
        parts = " | ".join(p.describe() for p in self.parts) or "no parts, plain averaging"
        return f"Method {self.name} (weights: {self.weights}): {parts}"


def _names(parts: list[Part]) -> str:
    return " and ".join(type(p).__name__ for p in parts)


def _check_single(slot: str, fillers: list[Part]) -> None:
    if len(fillers) > 1:
        raise UserError(f"{_names(fillers)} both fill the slot {slot!r}, which takes one part only")


def _check_names(part: Part) -> None:
    """A public method that is no slot is a slip, unless it is put to clients as a question."""
    known = set(SLOTS) | set(STATES) | set(vars(Part))
    for name, value in vars(type(part)).items():
        if name.startswith("_") or name in known or not callable(value):
            continue
        if not getattr(value, "is_question", False):
            raise UserError(
                f"part {type(part).__name__}: {name!r} is no slot; slots are {', '.join(SLOTS)} "
                "(mark a method that clients answer with @question)"
            )
