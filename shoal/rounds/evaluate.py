"""Which model predicts for whom, on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.core import tree
from shoal.core.old_names import BOTH_MODELS, BY_SAMPLES, OF_MEMBERS, Rows
from shoal.core.task import learnt_of
from shoal.core.types import ClientData, Job, Model
from shoal.core.world_protocol import Moment
from shoal.engines.api import Engine
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.metrics.evaluate import (
    Elsewhere,
    Scores,
    evaluate_each,
    evaluate_own,
    evaluate_sets,
    mean_scores,
    outputs_of,
    pooled_scores,
)
from shoal.metrics.figures import spread
from shoal.metrics.functions import lower_is_better, measured, score_name
from shoal.rounds.orders import make_order
from shoal.rounds.play import BatchedCalls, ServerCalls, calls
from shoal.rounds.state import Federation, Round, Settings
from shoal.worlds.changes.arrivals import Arrivals
from shoal.worlds.members.ids import spread as evenly
from shoal.worlds.own_rows import Own, own_rows, own_rows_0_1
from shoal.worlds.world import Composed

# ---- scores --------------------------------------------------------------------------------------
# What a round's record says of the model: the vector that predicts, on the sets that count.

# the set of a world's tests that a word of ``evaluate.rows`` names
SETS = {"test_present": "active", "test_all": "global"}
BLOCK = 256  # members whose models are held at once


def elsewhere(engine: Engine | None, settings: Settings) -> Elsewhere | None:
    """How an engine with workers puts rows through a model; None if it has none."""
    passes = getattr(engine, "passes", None)
    return None if passes is None else partial(passes, settings.program)


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
    model, part = federation.models[0], settings.method.only("model_for")
    if part is None:
        return [model] * len(clients)
    index = settings.method.index(part)
    members = tuple([client for client in clients if client is not None])
    round = Round(federation, settings, moment, engine or Loop())
    view = round.view(index, calls=BatchedCalls(ServerCalls(round, 0), members))
    out = []
    for client in clients:
        memories = federation.store.get(client, 0) if client is not None else None
        found = part.model_for(view, client, memories[index] if memories is not None else None)
        out.append(found if isinstance(found, Model) else Model(found, model.stats))
    return out


def scored(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    rows: Rows,
    engine: Engine | None = None,
    *,
    most: int = 1000,
    metrics: Sequence[str] = (),
    as_0_1: bool = False,
) -> dict[str, Any]:
    """``accuracy`` and ``loss`` on the rows that ``rows`` names, and the accuracy of every task so
    far.

    ``members_held_out`` and its two variants look at ``most`` evenly spaced members of more, on
    rows of their own that no client trains on (``as_0_1``: as version 0.1 chose them);
    ``metrics`` are further ones (:mod:`shoal.metrics.functions`) on the set that ``rows`` names
    (all test rows where it names members or tasks; but R2 is theirs, by the variance of training
    rows, and so is what is called accuracy of members, tasks and local models where numbers are
    learnt), ``score`` the one that the run is judged by,
    where that is not accuracy, and ``lower`` those whose best figure is the lowest. In the last
    round before a stage, ``ahead`` has the accuracy on the task to come, of this model and of the
    one the run began with.
    """
    model = served(federation, settings, moment, None, engine)
    tests = settings.world.tests(moment.round)
    main_set = _set(tests, rows)
    wanted = {name: data for name, data in tests.items() if name.startswith(("task ", "ahead "))}
    alone = rows in OF_MEMBERS
    by_task = rows == "test_by_task" and any(name.startswith("task ") for name in wanted)
    sets = wanted if alone or by_task else {**wanted, "main": main_set}  # no others are read
    far = elsewhere(engine, settings)
    found = evaluate_sets(settings.task, model, sets, far)
    tasks = {name: s for name, s in found.items() if name.startswith("task ")}
    record: dict[str, Any] = {}
    if alone:
        main, record = _of_members(federation, settings, moment, engine, rows, most, as_0_1)
    elif by_task:
        main = mean_scores(list(tasks.values()))
    else:
        main = found["main"]
        if isinstance(settings.world, Composed) and isinstance(settings.world.stream, Arrivals):
            record = _of_next_period(settings, moment, model, most)
    learnt = learnt_of(settings.task)
    numbers = learnt.target == "number"
    record |= {"accuracy": None if numbers else main.accuracy, "loss": main.loss}
    record["tasks"] = {name: score.accuracy for name, score in tasks.items()}
    ahead = {name: data for name, data in wanted.items() if name.startswith("ahead ")}
    if ahead:
        before = evaluate_sets(settings.task, federation.initial, ahead, far)
        record["ahead"] = {
            f"task {name.split()[1]}": _ahead(found[name], before[name]) for name in ahead
        }
    if metrics:
        said = outputs_of(settings.task, model, main_set)
        record["metrics"] = measured(metrics, said, learnt.ignored)
        if numbers and "r2" in metrics and (alone or by_task):
            record["metrics"]["r2"] = main.accuracy
        if (score := score_name(learnt.target, metrics, rows)) != "accuracy":
            record["score"] = score
        if lower := lower_is_better(metrics):
            record["lower"] = lower
    return record


def _ahead(now: Scores, untrained: Scores) -> dict[str, float | None]:
    """Of a task that is still to come."""
    return {"accuracy": now.accuracy, "untrained": untrained.accuracy}


def _of_next_period(settings: Settings, moment: Moment, model: Model, most: int) -> dict[str, Any]:
    """The model on the rows that come next to each member: test, then train, member by member."""
    members, data, _ = scored_rows(settings, moment, most, as_0_1=False, natural=False)
    found = evaluate_each(settings.task, model, data)
    return {"by_member": {c: s.accuracy for c, s in zip(members, found, strict=True)}}


def _set(tests: dict[str, ClientData], rows: Rows) -> ClientData:
    """The set that ``rows`` names; a world with one set only has one answer."""
    named = tests.get(SETS[rows]) if rows in SETS else None
    return named or tests.get("global") or next(iter(tests.values()))


def _of_members(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine | None,
    rows: Rows,
    most: int,
    as_0_1: bool,
) -> tuple[Scores, dict[str, Any]]:
    """Every member's own model on rows of its own (:mod:`shoal.worlds.own_rows`).

    ``personalised`` is the spread of those accuracies over members; with ``both_models`` there is
    also ``generalised``, the spread of the global model. With ``by_samples`` members weigh by their
    rows, otherwise each counts the same. ``by_member`` has every member's
    own accuracy, for ``clients.parquet``; ``own_rows`` counts members by the rows they are scored
    on, and those that have none and are left out.
    """
    members, data, kinds = scored_rows(settings, moment, most, as_0_1, natural=rows == BY_SAMPLES)
    general = served(federation, settings, moment, None, engine)
    plain: list[Scores] = []
    if settings.method.only("model_for") is None or rows == BOTH_MODELS:
        plain = evaluate_each(settings.task, general, data, elsewhere(engine, settings))
    own = plain
    if settings.method.only("model_for") is not None:
        own = own_scores(federation, settings, moment, engine, members, data)
    record: dict[str, Any] = {"personalised": _spread(own), "own_rows": kinds}
    record["by_member"] = {c: s.accuracy for c, s in zip(members, own, strict=True)}
    if rows == BOTH_MODELS:
        record["generalised"] = _spread(plain)
    return (pooled_scores(own, data) if rows == BY_SAMPLES else mean_scores(own)), record


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
        far = elsewhere(engine, settings)
        found += evaluate_own(settings.task, models, data[some], far)
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


# ---- local scores --------------------------------------------------------------------------------
# How well members do with the models they train themselves, before the server averages them.
#
# Some papers score the local model: the member receives the global one, trains it on its data as
# they are now, and is tested on its own test data. Right after a drift that is far above the score
# of the global model, since every local model has already adapted.


def as_trained(program: ClientProgram) -> ClientProgram:
    """The program whose clients send what they trained, whatever the method makes of it."""
    return replace(program, uploads=False)


def local_scores(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    program: ClientProgram,
    *,
    most: int = 1000,
    as_0_1: bool = False,
) -> dict[str, Any]:
    """Scores of the round's local models, had every member (at most ``most``) taken part.

    Members without rows of their own are left out (``own_rows`` counts them).
    ``program`` is :func:`as_trained`. ``accuracy`` and ``received`` (that of the model before local
    training) weigh members by their test rows; ``mean``, ``std`` and ``worst_decile`` count each
    member the same. The federation stays as it was.
    """
    trial = federation.snapshot()
    members, data, kinds = scored_rows(settings, moment, most, as_0_1, natural=True)
    before = served_each(trial, settings, moment, members, engine)
    after = _trained(trial, replace(settings, program=program), moment, engine, members, before)
    received = evaluate_own(settings.task, before, data)
    own = evaluate_own(settings.task, after, data)
    found = spread([s.accuracy for s in own if s.accuracy is not None])
    each = {} if found is None else found._asdict()
    return {
        "accuracy": pooled_scores(own, data).accuracy,
        "received": pooled_scores(received, data).accuracy,
        **each,
        "own_rows": kinds,
    }


def _trained(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    members: Sequence[int],
    before: Sequence[Model],
) -> list[Model]:
    """Every member's model after its local training in this round."""
    round = Round(federation, settings, moment, engine, tuple(members))
    jobs = _one_job_each(round, members, before)
    server = settings.method.only("model_for")
    personal = server is not None and server.fills("memory")
    found: dict[int, Model] = {}
    for k in sorted({job.model for job in jobs}):
        order = make_order(round, k, [j for j in jobs if j.model == k])
        for results in engine.train(order):
            for row, client in enumerate(results.clients):
                model = Model(order.model.theta + results.delta[row], results.stats[row])
                found[client] = model
                if personal:  # what a client keeps predicts for it, once it has trained
                    kept = tree.clone(tree.row(results.memories, row))
                    federation.store.put(client, k, kept)
    if personal:
        return served_each(federation, settings, moment, members, engine)
    return [found[client] for client in members]


def _one_job_each(round: Round, members: Sequence[int], before: Sequence[Model]) -> list[Job]:
    """What every member would train: of several models the one that it is served."""
    router, federation = round.only("assign_models"), round.federation
    if router is None:
        return [Job(client) for client in members]
    i, part = router
    wanted = dict(zip(members, before, strict=True))
    jobs = [job for job in part.assign_models(calls(round, i)) if job.client in wanted]
    # the served model's job first, then any; of equals the first, which is the lower concept
    jobs.sort(key=lambda j: federation.models[j.model].theta is not wanted[j.client].theta)
    chosen: dict[int, Job] = {}
    for job in jobs:
        chosen.setdefault(job.client, job)
    for client in set(members) - set(chosen):  # nobody's before its first round
        same = [m.theta is wanted[client].theta for m in federation.models]
        chosen[client] = Job(client, same.index(True) if True in same else 0)
    return [chosen[client] for client in members]
