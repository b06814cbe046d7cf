"""A round as its helpers see it: one object with everything they need.

``Round`` says which federation, under which settings, at which moment, on which engine. It makes
the views that a method's slots are given and is the only writer of parts' server states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.federation import Federation, Settings, blank_view
from shoal.part import Part, combine
from shoal.tree import Tree
from shoal.types import Model
from shoal.view import ServerView, Verbs
from shoal.worlds.base import Moment

if TYPE_CHECKING:
    from shoal.wire import Spent


@dataclass(frozen=True)
class Round:
    """One attempt at a round, or a look at the federation between rounds.

    ``spent`` collects what questions and rehearsals cost; None where they are not of the method's
    own doing, as in an evaluation.
    """

    federation: Federation
    settings: Settings
    moment: Moment
    engine: Engine = field(default_factory=Loop)
    cohort: tuple[int, ...] = ()
    spent: Spent | None = None

    def attempt(self, cohort: tuple[int, ...]) -> Round:
        """The same round on a copy of the federation: an attempt that fails leaves no trace."""
        return replace(self, federation=self.federation.snapshot(), cohort=cohort)

    def at(self, moment: Moment) -> Round:
        """The same federation at another moment."""
        return replace(self, moment=moment)

    @property
    def lr_per_epoch(self) -> tuple[float, ...]:
        return self.settings.rates(self.moment)

    # ---- parts ----
    def filling(self, slot: str) -> tuple[tuple[int, Part], ...]:
        """The parts that fill a slot, with their numbers in the method."""
        return self.settings.method.numbered(slot)

    def run(self, slot: str, call: Callable[[int, Part, Any], Any], value: Any) -> Any:
        """``call(i, part, value so far)`` of the parts that fill a slot, joined by its rule."""
        return combine(slot, self.filling(slot), call, value)

    def only(self, slot: str) -> tuple[int, Part] | None:
        """The one part that fills a slot that allows one only, with its number."""
        return next(iter(self.filling(slot)), None)

    def view(
        self,
        part: int,
        model: int = 0,
        cohort: Sequence[int] | None = None,
        verbs: Verbs | None = None,
        **more: Any,
    ) -> ServerView:
        """What a part sees of the server and one model; with ``verbs``, it can reach clients."""
        federation = self.federation
        known = model < len(federation.servers)  # a part may look before its state exists
        return blank_view(
            self.settings,
            federation.models[model],
            federation.initial.theta,
            self.moment,
            self.lr_per_epoch[0],
            state=federation.servers[model][part] if known else (),
            cohort=self.cohort if cohort is None else tuple(cohort),
            verbs=verbs,
            models=tuple(federation.models),
            initial_stats=federation.initial.stats,
            **more,
        )

    def update(self, part: int, model: int, state: Tree) -> None:
        """A part's new server state beside one model."""
        states = self.federation.servers[model]
        self.federation.servers[model] = (*states[:part], state, *states[part + 1 :])

    def reset(self, model: int) -> None:
        """What a constructed start resets, as each part says."""
        for i, part in enumerate(self.settings.method.parts):
            if part.resets in ("server", "both"):
                self.update(i, model, part.server_state(self.view(i, model, ())))
            if part.resets == "both":
                self.federation.store.forget_part(i)

    def regroup(self, models: Sequence[Model]) -> None:
        """Use other models from here on; a new or replaced one starts with fresh states."""
        self.federation.regrouped(self.settings, models, self.moment, self.lr_per_epoch[0])

    def last_models(self) -> Callable[[], Iterator[Tensor]] | None:
        """Reads what every present member trained last, for measures; None where no part keeps it,
        where members keep it themselves, and where several models would each need one."""
        federation, settings = self.federation, self.settings
        keepers = [
            (i, p)
            for i, p in enumerate(settings.method.parts)
            if type(p).last_model is not Part.last_model
        ]
        if not keepers or settings.elsewhere or len(federation.models) > 1:
            return None
        i, keeper = keepers[0]

        def read() -> Iterator[Tensor]:
            for member in self.moment.members:
                kept = federation.store.get(member, 0)
                memory = None if kept is None else kept[i]
                last = None if memory is None else keeper.last_model(memory)
                yield federation.initial.theta if last is None else last

        return read
