"""What a round's record says of the model: the vector that predicts, on the sets that count."""

from __future__ import annotations

from typing import Any, Literal

from shoal.federation import Federation, Settings
from shoal.metrics.evaluate import Scores, evaluate, mean_scores
from shoal.round import server_view
from shoal.types import ClientData, Model
from shoal.worlds.base import Moment

On = Literal["active", "global", "members", "tasks"]


def served(federation: Federation, settings: Settings, moment: Moment, client: int | None) -> Model:
    """The model that predicts for a client (None: for nobody in particular)."""
    model = federation.models[0]
    part = settings.method.only("serve")
    if part is None:
        return model
    index = settings.method.index(part)
    memories = federation.store.get(client, 0) if client is not None else None
    memory = memories[index] if memories is not None else None
    view = server_view(federation, settings, moment, 0, index, None)
    return Model(part.serve(view, client, memory), model.stats)


def scored(federation: Federation, settings: Settings, moment: Moment, on: On) -> dict[str, Any]:
    """``accuracy`` and ``loss`` as ``on`` says, and the accuracy of every task so far."""
    model = served(federation, settings, moment, None)
    tests = settings.world.tests(moment.round)
    tasks = {
        name: evaluate(settings.task, model, data)
        for name, data in tests.items()
        if name.startswith("task ")
    }
    if on == "members":
        main = _of_members(federation, settings, moment)
    elif on == "tasks" and tasks:
        main = mean_scores(list(tasks.values()))
    else:
        main = evaluate(settings.task, model, _set(tests, on))
    record: dict[str, Any] = {"accuracy": main.accuracy, "loss": main.loss}
    record["tasks"] = {name: score.accuracy for name, score in tasks.items()}
    return record


def _set(tests: dict[str, ClientData], on: str) -> ClientData:
    """The set called ``on``; a world with one set only has one answer."""
    return tests.get(on) or tests.get("global") or next(iter(tests.values()))


def _of_members(federation: Federation, settings: Settings, moment: Moment) -> Scores:
    """Every member's own model on its own held-out data (its training data if it has none)."""
    found = []
    for client in moment.members:
        data = settings.world.validation(client, moment.round)
        if data is None or len(data) == 0:
            data = settings.world.train(client, moment.round)
        found.append(evaluate(settings.task, served(federation, settings, moment, client), data))
    return mean_scores(found)
