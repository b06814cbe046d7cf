"""What a round's record says of the model: the vector that predicts, on the sets that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from shoal.context import Round
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.federation import Federation, Settings
from shoal.metrics.evaluate import Scores, mean_scores, pooled_scores
from shoal.metrics.named import measured
from shoal.metrics.rows import evaluate_each, evaluate_own, evaluate_sets, row_scores
from shoal.metrics.spread import spread
from shoal.reach import BatchedCalls, ServerCalls
from shoal.types import ClientData, Model
from shoal.worlds.base import Moment
from shoal.worlds.own_tests import Own, own_rows, own_rows_0_1
from shoal.worlds.spans import spread as evenly

On = Literal["active", "global", "members", "each", "own", "tasks"]
BLOCK = 256  # members whose models are held at once


def served(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    client: int | None,
    engine: Engine | None = None,
) -> Model:
    """The model that predicts for a client (None: for nobody in particular)."""
    return served_each(federation, settings, moment, [client], engine)[0]


def served_each(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    clients: Sequence[int | None],
    engine: Engine | None = None,
) -> list[Model]:
    """The model that predicts for each of some clients."""
    model, part = federation.models[0], settings.method.only("serve")
    if part is None:
        return [model] * len(clients)
    index = settings.method.index(part)
    members = tuple([client for client in clients if client is not None])
    round = Round(federation, settings, moment, engine or Loop())
    view = round.view(index, verbs=BatchedCalls(ServerCalls(round, 0), members))
    out = []
    for client in clients:
        memories = federation.store.get(client, 0) if client is not None else None
        found = part.serve(view, client, memories[index] if memories is not None else None)
        out.append(found if isinstance(found, Model) else Model(found, model.stats))
    return out


def scored(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    on: On,
    engine: Engine | None = None,
    *,
    most: int = 1000,
    metrics: Sequence[str] = (),
    as_0_1: bool = False,
) -> dict[str, Any]:
    """``accuracy`` and ``loss`` as ``on`` says, and the accuracy of every task so far.

    ``members``, ``each`` and ``own`` look at ``most`` evenly spaced members of more, on rows of
    their own that nobody trains on (``as_0_1``: as version 0.1 chose them); ``metrics``
    are further ones (:mod:`shoal.metrics.named`) on the set that ``on`` names (the global set where
    it names members or tasks). In the last round before a stage, ``ahead`` has the accuracy on the
    task to come, of this model and of the one the run began with.
    """
    model = served(federation, settings, moment, None, engine)
    tests = settings.world.tests(moment.round)
    main_set = _set(tests, on)
    wanted = {name: data for name, data in tests.items() if name.startswith(("task ", "ahead "))}
    alone = on in ("members", "each", "own")
    by_task = on == "tasks" and any(name.startswith("task ") for name in wanted)
    sets = wanted if alone or by_task else {**wanted, "main": main_set}  # what nobody reads is left
    found = evaluate_sets(settings.task, model, sets)
    tasks = {name: s for name, s in found.items() if name.startswith("task ")}
    record: dict[str, Any] = {}
    if alone:
        main, record = _of_members(federation, settings, moment, engine, on, most, as_0_1)
    elif on == "tasks" and tasks:
        main = mean_scores(list(tasks.values()))
    else:
        main = found["main"]
    record |= {"accuracy": main.accuracy, "loss": main.loss}
    record["tasks"] = {name: score.accuracy for name, score in tasks.items()}
    ahead = {name: data for name, data in wanted.items() if name.startswith("ahead ")}
    if ahead:
        before = evaluate_sets(settings.task, federation.initial, ahead)
        record["ahead"] = {
            f"task {name.split()[1]}": {
                "accuracy": found[name].accuracy,
                "untrained": before[name].accuracy,
            }
            for name in ahead
        }
    if metrics:
        outputs = row_scores(settings.task, model, main_set, outputs=True).outputs
        record["metrics"] = measured(metrics, outputs, main_set.labels)
    return record


def _set(tests: dict[str, ClientData], on: str) -> ClientData:
    """The set called ``on``; a world with one set only has one answer."""
    return tests.get(on) or tests.get("global") or next(iter(tests.values()))


def _of_members(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine | None,
    on: str,
    most: int,
    as_0_1: bool,
) -> tuple[Scores, dict[str, Any]]:
    """Every member's own model on rows of its own (:mod:`shoal.worlds.own_tests`).

    ``personalised`` is the spread of those accuracies over members; with ``each`` there is also
    ``generalised``, the spread of the one model that serves nobody in particular. With ``own``
    members weigh by their rows, otherwise each counts the same. ``by_member`` has every member's
    own accuracy, for ``clients.parquet``; ``own_rows`` counts members by the rows they are scored
    on, and those that have none and are left out.
    """
    members, data, kinds = scored_rows(settings, moment, most, as_0_1, natural=on == "own")
    general = served(federation, settings, moment, None, engine)
    plain: list[Scores] = []
    if settings.method.only("serve") is None or on == "each":
        plain = evaluate_each(settings.task, general, data)
    own = plain
    if settings.method.only("serve") is not None:
        own = own_scores(federation, settings, moment, engine, members, data)
    record: dict[str, Any] = {"personalised": _spread(own), "own_rows": kinds}
    record["by_member"] = {c: s.accuracy for c, s in zip(members, own, strict=True)}
    if on == "each":
        record["generalised"] = _spread(plain)
    return (pooled_scores(own, data) if on == "own" else mean_scores(own)), record


def own_scores(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine | None,
    members: Sequence[int],
    data: Sequence[ClientData],
) -> list[Scores]:
    """Scores of the model that predicts for each member, on data of that member's."""
    found: list[Scores] = []
    for begin in range(0, len(members), BLOCK):
        some = slice(begin, begin + BLOCK)
        models = served_each(federation, settings, moment, members[some], engine)
        found += evaluate_own(settings.task, models, data[some])
    return found


def scored_rows(
    settings: Settings, moment: Moment, most: int, as_0_1: bool, natural: bool
) -> tuple[list[int], list[ClientData], dict[str, int]]:
    """Members that are scored (``most`` evenly spaced ones of more), their rows, and how many
    members have rows of which kind; ``none`` counts those that have none and are left out.

    ``as_0_1`` asks for version 0.1's rule, where ``natural`` prefers natural test rows.
    """
    members: list[int] = []
    data: list[ClientData] = []
    kinds: dict[str, int] = {}
    for client in evenly(moment.members, most):
        if as_0_1:
            found: Own | None = own_rows_0_1(settings.world, client, moment.round, natural)
        else:
            found = own_rows(settings.world, client, moment.round)
        kind = "none" if found is None else found.kind
        kinds[kind] = kinds.get(kind, 0) + 1
        if found is not None:
            members.append(client)
            data.append(found.data)
    return members, data, kinds


def train_accuracy(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine | None = None,
    *,
    most: int = 1000,
) -> float | None:
    """Accuracy of the model that predicts for each member on the rows it trains on now, all rows
    counting the same: what a model has learnt by heart is in it."""
    members = list(evenly(moment.members, most))
    data = [settings.world.train(client, moment.round) for client in members]
    found = own_scores(federation, settings, moment, engine, members, data)
    return pooled_scores(found, data).accuracy


def _spread(scores: Sequence[Scores]) -> dict[str, Any] | None:
    found = spread([s.accuracy for s in scores if s.accuracy is not None])
    return None if found is None else found._asdict()
