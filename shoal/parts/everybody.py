"""Rounds in which all members train, whoever was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.part import Part
from shoal.types import Job
from shoal.view import ServerView


@dataclass(frozen=True, kw_only=True)
class Everybody(Part):
    """All members present train in every round: work that costs no communication needs no draw.

    Deviations: no paper; participation is otherwise the config's business.
    """

    def route(self, view: ServerView) -> Sequence[Job]:
        return [Job(int(client)) for client in view.members]
