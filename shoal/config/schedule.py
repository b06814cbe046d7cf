"""How the clients' rate changes over a run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.domains import Above0, Count, From0To1


class Schedule(BaseModel):
    """The rate of every local epoch, as a multiple of ``local.rate``.

    - ``constant``
    - ``factor``: times ``factor`` every round
    - ``step``: times ``factor`` every ``every`` local epochs, counted within a client's round,
      over the run (``over: run``), or anew in every task (``over: task``)
    - ``polynomial``: ``(1 - final)(1 - t/T)^power + final``, t and T the rounds of the session

    >>> Schedule(name="factor", factor=0.5).rates(0.1, 2, round=3)
    (0.0125, 0.0125)
    >>> Schedule(name="step", factor=0.5, every=2).rates(1.0, 5)
    (1.0, 1.0, 0.5, 0.5, 0.25)
    >>> Schedule(name="polynomial", power=1).rates(1.0, 1, session_round=1, session_rounds=4)
    (0.7525,)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["constant", "factor", "step", "polynomial"] = Field(
        default="constant", description="constant, factor, step or polynomial"
    )
    factor: Above0 = Field(default=1.0, description="a number above 0")
    every: Count = Field(default=1, description="a whole number of at least 1")
    over: Literal["round", "run", "task"] = Field(default="round", description="round, run or task")
    final: From0To1 = Field(default=0.01, description="a share of the rate, from 0 to 1")
    power: Above0 = Field(default=0.9, description="a number above 0")

    @model_validator(mode="after")
    def _used(self) -> Schedule:
        """A setting that the schedule does not read is a mistake."""
        reads = {"factor": ("factor",), "step": ("factor", "every", "over")}
        reads["polynomial"] = ("final", "power")
        given = {
            key
            for key in self.model_fields_set - {"name"}
            if getattr(self, key) != type(self).model_fields[key].default
        }
        unused = sorted(given - set(reads.get(self.name, ())))
        if unused:
            raise ValueError(f"the schedule {self.name!r} does not use {unused[0]!r}")
        return self

    def rates(
        self,
        rate: float,
        epochs: int,
        *,
        round: int = 0,
        session_round: int = 0,
        session_rounds: int = 1,
        task_round: int = 0,
    ) -> tuple[float, ...]:
        """One rate a local epoch of this round."""
        if self.name == "factor":
            return (rate * self.factor**round,) * epochs
        if self.name == "step":
            first = {"round": 0, "run": round, "task": task_round}[self.over] * epochs
            return tuple(rate * self.factor ** ((first + e) // self.every) for e in range(epochs))
        if self.name == "polynomial":
            left = max(0.0, 1.0 - session_round / session_rounds)
            return ((rate - self.final * rate) * left**self.power + self.final * rate,) * epochs
        return (rate,) * epochs
