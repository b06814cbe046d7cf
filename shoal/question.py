"""Marks on the methods of parts that clients answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from shoal.tree import Tree

if TYPE_CHECKING:
    from shoal.part import Part

_F = TypeVar("_F", bound=Callable[..., Tree])


def question(function: _F) -> _F:
    """Marks a method of a part that clients answer: ``(self, view, payload) -> tree``."""
    function.is_question = True  # type: ignore[attr-defined]
    return function


def sends(what: Literal["model", "models", "nothing"]) -> Callable[[_F], _F]:
    """Says what goes down with a question, for the count of bytes.

    ``model``: the model that is in training and the payload, as of every question without this
    mark; ``models``: the payload is all global models; ``nothing``: the payload alone.
    """

    def marked(function: _F) -> _F:
        function.sends = what  # type: ignore[attr-defined]
        return function

    return marked


def weighs_rows(function: _F) -> _F:
    """Marks a question that sees a client's rows through their weights alone, does not descend, and
    whose answer is tensors: many clients, padded to one length, can then be asked at once."""
    function.weighs_rows = True  # type: ignore[attr-defined]
    return function


def trains(part: Callable[..., Part], as_the_run: bool = False) -> Callable[[_F], _F]:
    """Marks a question whose answer is what ``part`` uploads after local training, by SGD without
    momentum, or ``as_the_run`` trains.

    The payload is one rate an epoch, and ``part`` the part of a method of its own; weights decay as
    in the run. An engine that stacks clients then
    trains them all at once instead of putting the question to one after another.
    """

    def marked(function: _F) -> _F:
        function.trained_by = part  # type: ignore[attr-defined]
        function.trained_as_the_run = as_the_run  # type: ignore[attr-defined]
        return function

    return marked
