"""A method, checked when it is built: its parts, and no state hidden on them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.old_names import CLIENT_WEIGHTS, Weights
from shoal.core.types import TARGET_WORDS, Reduction, Target
from shoal.methods.slots import BESIDE_CHANGE, SLOTS, STATES, Gaps, Part, Rule

# ---- hidden state --------------------------------------------------------------------------------
# State that a part hides on itself: found by comparing its attributes, and refused by name.
#
# What a part keeps from round to round goes through its slots, where checkpoints, other engines and
# other machines find it. An attribute that changes during a round is lost to all of them.

DEEP = 6  # containers within containers that are looked into


class Attributes:
    """What the attributes of some parts are now."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._before = [dict(_marks(part)) for part in self._parts]

    @property
    def foreign(self) -> bool:
        """Whether any of them is a user's own."""
        return any(_is_foreign(type(part)) for part in self._parts)

    def check(self) -> None:
        """Refuse parts whose attributes are others than before."""
        for part, before in zip(self._parts, self._before, strict=True):
            now = dict(_marks(part))
            if now != before:
                changed = [n for n in (*before, *now) if before.get(n) != now.get(n)]
                raise UserError(
                    f"method: part {type(part).__name__} changes its attribute {changed[0]!r} "
                    f"during a round; checkpoints and other engines would lose it, so keep it in "
                    f"the part's state (server_state, memory or scratch)"
                )


def _marks(part: Part) -> Iterator[tuple[str, Hashable]]:
    """Every attribute by name, and something that changes when its value does."""
    kind = type(part)
    for name, value in vars(part).items():
        if not isinstance(getattr(kind, name, None), cached_property):
            yield name, _mark(value, DEEP)
    for owner in kind.__mro__:
        if _is_foreign(owner):
            for name, value in vars(owner).items():
                if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                    yield f"{owner.__name__}.{name}", _mark(value, DEEP)


def _mark(value: Any, depth: int) -> Hashable:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value).__name__, repr(value))
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    if callable(value) or not depth:
        return id(value)
    if isinstance(value, Mapping):
        return tuple((_mark(k, depth - 1), _mark(v, depth - 1)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(_mark(v, depth - 1) for v in value)
    if isinstance(value, Sequence):
        return tuple(_mark(v, depth - 1) for v in value)
    inner = getattr(value, "__dict__", None)
    return id(value) if inner is None else (id(value), _mark(inner, depth - 1))


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in ("shoal", "builtins", "typing", "abc")


# ---- method --------------------------------------------------------------------------------------
# A method: a name and a tuple of parts, checked when it is built.


@dataclass(frozen=True)
class Method:
    """Parts that act left to right as written. ``a | b`` is ``a``'s parts, then ``b``'s.

    A composition has the ``weights`` of its first ``base`` method with parts; plug-ins
    (``base=False``) have no say in that. Alone they run over plain averaging.

    >>> Method("a") | Method("b")
    Method a + b (client weights: by_samples): no parts, plain averaging
    """

    name: str
    parts: tuple[Part, ...] = ()
    weights: Weights = "by_samples"
    base: bool = True
    paper: str = field(default="", compare=False)
    spec: tuple[Any, ...] | None = field(default=None, compare=False)  # what a config says of it

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", CLIENT_WEIGHTS.get(self.weights, self.weights))
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
        changing = [p for p in self.parts if p.changes_upload]
        if len(changing) > 1:
            raise UserError(
                f"method {self.name!r}: {_names(changing)} both change what clients send; keep one"
            )
        equal = [p for p in self.parts if p.equal_weights]
        if equal and self.weights != "equal":
            raise UserError(
                f"method {self.name!r}: {_names(equal)} needs client_weights: equal, not "
                f"{self.weights}"
            )
        guards, beside = [p for p in self.parts if p.protects_change], self.beside_change
        if guards and beside:
            raise UserError(
                f"method {self.name!r}: {_names(beside[:1])} sends more than the model's change, "
                f"which {_names(guards)} would not protect"
            )
        asking = [p for p in self.parts if p.asks_between_sessions]
        if guards and asking:
            raise UserError(
                f"method {self.name!r}: {_names(asking[:1])} asks clients between sessions, which "
                f"{_names(guards)} would neither protect nor count"
            )
        single = [p for p in self.parts if p.one_model_only]
        banks = self.fillers("initial_models") + self.fillers("update_models")
        if single and banks:
            raise UserError(
                f"method {self.name!r}: {_names(single)} has no meaning over the several models "
                f"of {_names(banks)}; keep one of the two"
            )

    @cached_property
    def _numbered(self) -> dict[str, tuple[tuple[int, Part], ...]]:
        return {
            slot: tuple((i, p) for i, p in enumerate(self.parts) if p.fills(slot)) for slot in SLOTS
        }

    def numbered(self, slot: str) -> tuple[tuple[int, Part], ...]:
        """The parts that fill a slot, with their numbers in the method; looked up once, since a
        round asks for every client."""
        return self._numbered[slot]

    def fillers(self, slot: str) -> list[Part]:
        return [part for _, part in self._numbered[slot]]

    def fills(self, slot: str) -> bool:
        return bool(self._numbered[slot])

    def only(self, slot: str) -> Part | None:
        """The one part that fills a single slot, if any does."""
        filled = self._numbered[slot]
        return filled[0][1] if filled else None

    @property
    def beside_change(self) -> list[Part]:
        """Parts that may send more than the model's change, or ask clients for more."""
        others = (p for p in self.parts if not p.protects_change)
        return [p for p in others if any(p.fills(slot) for slot in BESIDE_CHANGE)]

    @property
    def why_sums_are_not_enough(self) -> str:
        """Why the server cannot do with the sum of the uploads; empty if it can.

        >>> Method("a").why_sums_are_not_enough
        ''
        """
        for part in self.parts:
            for needs, why in (
                (part.individual_uploads, "compares single uploads"),
                (part.individual_norms, "measures single uploads"),
                (part.fills("upload") and part.reduction is Reduction.STACK,
                 "keeps what every client sends apart"),
                (part.asks, "asks single clients"),
                (any(part.fills(s) for s in ("before_training", "assign_models", "update_models")),
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
        # a plug-in leaves the weights of the method that it is composed with
        weights = bases[0].weights if bases else "by_samples"
        if any(p.equal_weights for p in self.parts + other.parts):
            weights = "equal"
        spec = None if self.spec is None or other.spec is None else self.spec + other.spec
        name, parts = f"{self.name} + {other.name}", self.parts + other.parts
        return Method(name, parts, weights, bool(bases), spec=spec)

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
        wrong = [p for p in self.parts if p.needs_plain_sgd]
        if getattr(optimizer, "adaptive", False) and wrong:
            raise UserError(
                f"method {self.name!r}: {_names(wrong)} reads gradients off displacements, which "
                "an adaptive local optimiser does not allow; set local.optimizer to sgd"
            )

    def check_target(self, target: Target) -> None:
        """Refuse what has no meaning for what is learnt."""
        for part in self.parts:
            if target not in part.targets:
                right = " or ".join(TARGET_WORDS[t] for t in part.targets)
                raise UserError(
                    f"method {self.name!r}: {type(part).__name__} is for {right}, and y is "
                    f"{TARGET_WORDS[target]} (target: {target})"
                )

    @property
    def loop_only_reason(self) -> str:
        """Why the method cannot be stacked; empty if it can."""
        return next((p.loop_only_reason for p in self.parts if p.loop_only_reason), "")

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
        return f"Method {self.name} (client weights: {self.weights}): {parts}"


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
