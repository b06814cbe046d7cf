"""How well members do with the models they train themselves, before the server averages them.

Some papers score the local model: the member receives the global one, trains it on its data as
they are now, and is tested on its own test data. Right after a drift that is far above the score
of the global model, since every local model has already adapted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal import tree
from shoal.context import Round
from shoal.engines.api import Engine
from shoal.engines.client_round import Program
from shoal.federation import Federation, Settings
from shoal.metrics.evaluate import pooled_scores
from shoal.metrics.rows import evaluate_own
from shoal.metrics.spread import spread
from shoal.orders import make_order
from shoal.reach import calls
from shoal.scores import scored_rows, served_each
from shoal.types import Job, Model
from shoal.worlds.base import Moment


def as_trained(program: Program) -> Program:
    """The program whose clients send what they trained, whatever the method makes of it."""
    return replace(program, uploads=False)


def local_scores(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    program: Program,
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
    server = settings.method.only("serve")
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
    router, federation = round.only("route"), round.federation
    if router is None:
        return [Job(client) for client in members]
    i, part = router
    wanted = dict(zip(members, before, strict=True))
    jobs = [job for job in part.route(calls(round, i)) if job.client in wanted]
    # the served model's job first, then any; of equals the first, which is the lower concept
    jobs.sort(key=lambda j: federation.models[j.model].theta is not wanted[j.client].theta)
    chosen: dict[int, Job] = {}
    for job in jobs:
        chosen.setdefault(job.client, job)
    for client in set(members) - set(chosen):  # nobody's before its first round
        same = [m.theta is wanted[client].theta for m in federation.models]
        chosen[client] = Job(client, same.index(True) if True in same else 0)
    return [chosen[client] for client in members]
