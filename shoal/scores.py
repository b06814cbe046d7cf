"""What a round's record says of the model: the vector that predicts, on the sets that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from shoal.asked_ahead import AskedAhead
from shoal.engines.base import Engine
from shoal.engines.loop import Loop
from shoal.federation import Federation, Settings, part_view
from shoal.metrics.evaluate import Scores, mean_scores, pooled_scores
from shoal.metrics.named import measured
from shoal.metrics.rows import evaluate_each, evaluate_own, evaluate_sets, row_scores
from shoal.metrics.spread import spread
from shoal.reach import Reach
from shoal.types import ClientData, Model
from shoal.worlds.base import Moment
from shoal.worlds.own_tests import own_test
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
    reach = Reach(federation, settings, moment, engine or Loop(), 0, index)
    view = part_view(federation, settings, moment, 0, index, (), AskedAhead(reach, members))
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
) -> dict[str, Any]:
    """``accuracy`` and ``loss`` as ``on`` says, and the accuracy of every task so far.

    ``members``, ``each`` and ``own`` look at ``most`` evenly spaced members of more; ``metrics``
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
        main, record = _of_members(federation, settings, moment, engine, on, most)
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
) -> tuple[Scores, dict[str, Any]]:
    """Every member's own model on its own held-out data (its training data if it has none).

    ``personalised`` is the spread of those accuracies over members; with ``each`` there is also
    ``generalised``, the spread of the one model that serves nobody in particular. With ``own`` the
    data are the member's own test rows where the world knows them, and members weigh by rows.
    ``by_member`` has every member's own accuracy, for ``clients.parquet``.
    """
    members = evenly(moment.members, most)
    rows = own_rows if on == "own" else _own_data
    data = [rows(settings, client, moment.round) for client in members]
    general = served(federation, settings, moment, None, engine)
    plain: list[Scores] = []
    if settings.method.only("serve") is None or on == "each":
        plain = evaluate_each(settings.task, general, data)
    own = plain
    if settings.method.only("serve") is not None:
        own = []
        for begin in range(0, len(members), BLOCK):
            some = slice(begin, begin + BLOCK)
            models = served_each(federation, settings, moment, members[some], engine)
            own += evaluate_own(settings.task, models, data[some])
    record: dict[str, Any] = {"personalised": _spread(own)}
    record["by_member"] = {c: s.accuracy for c, s in zip(members, own, strict=True)}
    if on == "each":
        record["generalised"] = _spread(plain)
    return (pooled_scores(own, data) if on == "own" else mean_scores(own)), record


def own_rows(settings: Settings, client: int, round: int) -> ClientData:
    """The member's own test rows, or what :func:`_own_data` gives where none are known."""
    found = own_test(settings.world, client, round)
    return _own_data(settings, client, round) if found is None else found


def _own_data(settings: Settings, client: int, round: int) -> ClientData:
    data = settings.world.validation(client, round)
    if data is None or len(data) == 0:
        data = settings.world.train(client, round)
    return data


def _spread(scores: Sequence[Scores]) -> dict[str, Any] | None:
    found = spread([s.accuracy for s in scores if s.accuracy is not None])
    return None if found is None else found._asdict()
