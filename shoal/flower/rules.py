"""How a federation is run: how long to wait, for whom, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from shoal.errors import UserError, suggestion


@dataclass(frozen=True)
class Rules:
    """Settings of ``[tool.flwr.app.config]``, in kebab-case there.

    Parameters
    ----------
    num_server_rounds: rounds of the run.
    min_members: below so many members the server waits.
    start_members: so many must be there before the first round.
    deadline: seconds that members have for one order; who is later is cut.
    enough: once this share of a cohort has replied, the rest has ``grace`` more seconds.
    settle: a change of members must last so many starts of rounds before it is a new session.
    absent_after: a member that missed so many deadlines in a row counts as gone.
    rollback: go back when members report an accuracy that is worse by more than this (0: never).
    upload_factor: an upload may be so many times as long as the model.
    norm_factor: an upload may be so many times as long (2-norm) as the median of its round's.
    poll: seconds between two looks at what has come, at most.
    insecure: take members that no roster names, without authentication.
    """

    num_server_rounds: int = 10
    min_members: int = 2
    start_members: int = 2
    deadline: float = 120.0
    enough: float = 1.0
    grace: float = 5.0
    settle: int = 0
    absent_after: int = 1
    rollback: float = 0.1
    upload_factor: float = 4.0
    norm_factor: float = 10.0
    poll: float = 1.0
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("num_server_rounds", "min_members", "start_members", "absent_after"):
            if getattr(self, name) < 1:
                raise UserError(f"{kebab(name)} must be a whole number of at least 1")
        for name in ("deadline", "upload_factor", "poll"):
            if not getattr(self, name) > 0:
                raise UserError(f"{kebab(name)} must be a number above 0")
        for name in ("settle", "grace", "rollback", "norm_factor"):
            if getattr(self, name) < 0:
                raise UserError(f"{kebab(name)} must not be negative")
        if not 0 < self.enough <= 1:
            raise UserError("enough must be a share above 0 and at most 1")

    def plain(self) -> dict[str, Any]:
        return {kebab(name): value for name, value in asdict(self).items()}


def kebab(name: str) -> str:
    return name.replace("_", "-")


def from_run_config(values: Mapping[str, Any], others: tuple[str, ...] = ()) -> Rules:
    """Rules from a Flower run config; ``others`` are keys that are somebody else's.

    >>> from_run_config({"num-server-rounds": 3, "deadline": 5}).deadline
    5.0
    """
    kinds: dict[str, tuple[str, type]] = {
        kebab(f.name): (f.name, type(f.default)) for f in fields(Rules)
    }
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key in others:
            continue
        if key not in kinds:
            raise UserError(f"the run config has no key {key!r}; {suggestion(key, kinds)}")
        name, kind = kinds[key]
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{key} is {value!r}; it must be of type {kind.__name__}")
        given[name] = kind(value)
    return Rules(**given)
