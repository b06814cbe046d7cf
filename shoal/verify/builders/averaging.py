"""FedAvg and the methods that change one thing about it."""

from __future__ import annotations

from typing import Any

from shoal import catalog
from shoal.method import Method
from shoal.parts.control_variate import ControlVariate
from shoal.parts.server_opt import ServerAdaptive, ServerMomentum
from shoal.verify.history import History
from shoal.verify.reading import one_of
from shoal.verify.registry import Hyper, Values, builder, extras, pick


@builder("FedAvg")
def fedavg(hyper: Hyper) -> Method:
    return catalog.fedavg(**pick(hyper, "eta_g"))


@builder("FedProx")
def fedprox(hyper: Hyper) -> Method:
    return catalog.fedprox(mu=hyper["mu"], **pick(hyper, "eta_g"))


@builder("SCAFFOLD")
def scaffold(hyper: Hyper) -> Method:
    return catalog.scaffold(**pick(hyper, "option", "eta_g"))


@extras("SCAFFOLD")
def variates(history: History) -> dict[str, Values]:
    return {
        "server_c": [state.c.tolist() for state in history.states(ControlVariate)],
        "client_c": history.memories(ControlVariate, lambda memory: memory.c),
    }


@builder("FedAvgM")
def fedavgm(hyper: Hyper) -> Method:
    return catalog.fedavgm(**pick(hyper, "beta", "eta_g", "nesterov"))


@extras("FedAvgM")
def velocity(history: History) -> dict[str, Values]:
    return {"v": [state.v.tolist() for state in history.states(ServerMomentum)]}


@builder("FedAdam")
def fedadam(hyper: Hyper) -> Method:
    return catalog.fedadam(**_adaptive(hyper))


@builder("FedYogi")
def fedyogi(hyper: Hyper) -> Method:
    return catalog.fedyogi(**_adaptive(hyper))


@builder("FedAdagrad")
def fedadagrad(hyper: Hyper) -> Method:
    settings = _adaptive(hyper)
    settings.pop("beta2", None)  # files give it, Adagrad has none
    return catalog.fedadagrad(**settings)


@extras("FedAdam", "FedYogi", "FedAdagrad")
def moments(history: History) -> dict[str, Values]:
    states = history.states(ServerAdaptive)
    return {name: [getattr(s, name).tolist() for s in states] for name in ("m", "v")}


def _adaptive(hyper: Hyper) -> dict[str, Any]:
    one_of(hyper, "bias_correction", False)
    v_init = hyper.get("v_init", "tau**2")
    settings = pick(hyper, "eta_g", "beta1", "beta2", "tau")
    return {**settings, "v_init": None if v_init == "tau**2" else v_init}
