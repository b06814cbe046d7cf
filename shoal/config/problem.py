"""``problem: quadratic``: a run that can be checked by hand."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from shoal.domains import Above0, Count, Finite, Whole

Matrix = tuple[tuple[Finite, ...], ...]


class Stretch(BaseModel):
    """Some rounds with fixed members and losses."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rounds: Count = Field(description="a whole number of at least 1")
    a: Matrix = Field(description="one list of numbers a client")
    b: Matrix = Field(description="one list of numbers a client")
    n: tuple[Above0, ...] = Field(description="one number above 0 a client")
    members: tuple[Whole, ...] | None = Field(default=None, description="one whole number a client")

    @field_validator("a", "b", mode="before")
    @classmethod
    def _scalars(cls, value: Any) -> Any:
        """In one dimension, numbers do for lists of one number."""
        if isinstance(value, list | tuple):
            return [v if isinstance(v, list | tuple) else [v] for v in value]
        return value

    @model_validator(mode="after")
    def _same_sizes(self) -> Stretch:
        clients = {len(self.a), len(self.b), len(self.n)}
        if self.members is not None:
            clients.add(len(self.members))
        if len(clients) > 1 or not self.n:
            raise ValueError("a, b and n (and members) need one entry a client")
        if len({len(row) for row in (*self.a, *self.b)}) != 1:
            raise ValueError("all rows of a and b need the same length")
        if min(self.n) <= 0:
            raise ValueError("every n must be above 0")
        return self


class Problem(BaseModel):
    """Client i has loss ``0.5 sum_j a_ij (w_j - b_ij)^2``.

    Given by ``a``, ``b``, ``n`` and ``rounds``, or by ``segments`` one after another, or drawn:
    ``sessions`` of ``rounds`` rounds with ``clients`` members each in ``size`` dimensions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["quadratic"] = Field(default="quadratic", description="quadratic")
    rounds: Count = Field(default=10, description="a whole number of at least 1")
    a: Matrix | None = Field(default=None, description="one list of numbers a client")
    b: Matrix | None = Field(default=None, description="one list of numbers a client")
    n: tuple[Above0, ...] | None = Field(default=None, description="one number above 0 a client")
    segments: tuple[Stretch, ...] | None = Field(
        default=None, description="a list of {rounds, a, b, n}"
    )
    kind: Literal["members", "domain", "classes", "concept"] = Field(
        default="members", description="members, domain, classes or concept"
    )
    w0: tuple[Finite, ...] | None = Field(default=None, description="a list of numbers")
    layout: dict[str, Count] | None = Field(
        default=None, description="{name: size} of the tensors in w"
    )
    steps_per_epoch: Count = Field(default=1, description="a whole number of at least 1")
    clients: Count = Field(default=4, description="a whole number of at least 1")
    size: Count = Field(default=2, description="a whole number of at least 1")
    sessions: Count = Field(default=1, description="a whole number of at least 1")

    _scalars = field_validator("a", "b", mode="before")(Stretch._scalars.__func__)  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _one_way(self) -> Problem:
        given = [name for name in ("a", "b", "n") if getattr(self, name) is not None]
        if given and len(given) < 3:
            raise ValueError("a, b and n go together")
        if given and self.segments is not None:
            raise ValueError("give a, b and n, or segments, but not both")
        stretches = self.stretches()
        sizes = {len(row) for stretch in stretches or () for row in stretch.a}
        size = self.size if stretches is None else min(sizes)
        if len(sizes) > 1 or (self.w0 is not None and len(self.w0) != size):
            raise ValueError("w0 and all rows of a and b need the same length")
        if self.layout is not None and sum(self.layout.values()) != size:
            raise ValueError(f"the sizes in layout must add up to {size}")
        return self

    def stretches(self) -> tuple[Stretch, ...] | None:
        """The segments as given; None when they are to be drawn."""
        if self.segments is not None:
            return self.segments
        if self.a is None or self.b is None or self.n is None:
            return None
        return (Stretch(rounds=self.rounds, a=self.a, b=self.b, n=self.n, members=None),)
