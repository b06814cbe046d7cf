"""Several global models, and rates that answer drift."""

from __future__ import annotations

from shoal import catalog
from shoal.federation import Federation
from shoal.method import Method
from shoal.parts.adaptive_rate import VariabilityRate
from shoal.parts.drift_models import ModelPerDrift, rows_of
from shoal.scores import served
from shoal.verify.history import History, Snapshot, play
from shoal.verify.problems import settings_of
from shoal.verify.registry import Case, Found, Hyper, Values, builder, extras, pick, runner


# ---- HypCluster ----------------------------------------------------------------------------------
@builder("HypCluster")
def hypcluster(hyper: Hyper) -> Method:
    return catalog.hypcluster(k=hyper["clusters"])


@extras("HypCluster")
def clusters(history: History) -> dict[str, Values]:
    return {"per_round": [_assigned(s) | _models(s) for s in history.rounds]}


def _assigned(snapshot: Snapshot) -> dict[str, Values]:
    """Who trained which model, as measured."""
    return {"assign": {str(c.client): c.model for c in snapshot.report.clients}}


def _models(snapshot: Snapshot) -> dict[str, Values]:
    return {"models": [model.theta.tolist() for model in snapshot.models]}


# ---- AdaptiveFedAvg ------------------------------------------------------------------------------
@builder("AdaptiveFedAvg")
def adaptive_fedavg(hyper: Hyper) -> Method:
    return catalog.adaptive_fedavg(**pick(hyper, "beta1", "beta2", "beta3"))


@extras("AdaptiveFedAvg")
def rates(history: History) -> dict[str, Values]:
    first = history.settings.rates(history.rounds[0].moment)[0]
    factors = [float(state.factor) for state in history.states(VariabilityRate)]
    *used, following = [first] + [first * factor for factor in factors]
    return {"lr_used": used, "lr_next": following}


# ---- FedDrift-Eager: time steps ------------------------------------------------------------------
NO_CAP = 10**6


@builder("FedDrift-Eager")
def feddrift_eager(hyper: Hyper) -> Method:
    names = ("delta", "score", "new_model")
    cap = hyper.get("cap", NO_CAP)  # a case without one has no cap
    return catalog.feddrift_eager(**pick(hyper, *names, every="rounds_per_step"), cap=cap)


@runner("steps")
def steps(case: Case) -> Found:
    """New data for every client at each step; models as they are after its last round."""
    history = play(settings_of(case))
    own = history.index(ModelPerDrift)
    rows = []
    for step, snapshot in enumerate(history.stretches()):
        state = snapshot.servers[0][own]
        at = sorted(rows_of(state).items())
        found: dict[str, Values] = {
            "step": step,
            "assign": {str(client): int(state.current[row]) for client, row in at},
            "drifted": [client for client, row in at if bool(state.drifted[row])],
        }
        rows.append(found | _models(snapshot))
    return Found(history.models, {"per_step": rows})


# ---- Oracle: concepts ----------------------------------------------------------------------------
@builder("Oracle")
def oracle(hyper: Hyper) -> Method:
    names = ["eta_g", "beta1", "beta2", "tau", "v_init"]
    if hyper.get("v_init") == "tau**2":  # which is the default
        names.remove("v_init")
    return catalog.oracle(**pick(hyper, *names))


@runner("concepts")
def concepts(case: Case) -> Found:
    """One model per concept; what is served, to every client alike."""
    history = play(settings_of(case))
    number = len(history.rounds[0].models)
    models = [[s.models[c].theta.tolist() for s in history.rounds] for c in range(number)]
    return Found(None, {"models": models, "served": [_served(history, s) for s in history.rounds]})


def _served(history: History, snapshot: Snapshot) -> Values:
    settings = history.settings
    initial = settings.task.initial(0)
    federation = Federation(initial, list(snapshot.models), list(snapshot.servers))
    clients = snapshot.moment.members
    first, *others = [served(federation, settings, snapshot.moment, c) for c in clients]
    assert all(other is first for other in others), "all clients switch together"
    return first.theta.tolist()
