"""FedAvg and the methods that change one thing about it."""

from __future__ import annotations

from typing import Literal

from shoal.catalog.registry import entry
from shoal.domains import Above0, AtLeast0, Below1
from shoal.method import Method
from shoal.part import Part
from shoal.parts.control_variate import ControlVariate
from shoal.parts.proximal import Proximal
from shoal.parts.server_opt import ServerAdaptive, ServerMomentum, ServerSgd


def _server(eta_g: float) -> tuple[Part, ...]:
    return () if eta_g == 1.0 else (ServerSgd(eta_g=eta_g),)


@entry
def fedavg(eta_g: AtLeast0 = 1.0) -> Method:
    """FedAvg: the mean of locally trained models (McMahan et al. 2017)."""
    return Method("fedavg", _server(eta_g))


@entry
def fedprox(mu: AtLeast0 = 0.01, eta_g: AtLeast0 = 1.0) -> Method:
    """FedProx: FedAvg with a proximal term (Li et al. 2020)."""
    return Method("fedprox", (Proximal(mu=mu), *_server(eta_g)))


@entry
def scaffold(option: Literal[1, 2] = 2, eta_g: AtLeast0 = 1.0) -> Method:
    """SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)."""
    return Method("scaffold", (ControlVariate(option=option), *_server(eta_g)), "uniform")


@entry
def fedavgm(beta: Below1 = 0.9, eta_g: AtLeast0 = 1.0, nesterov: bool = False) -> Method:
    """FedAvgM: momentum on the server (Hsu et al. 2019)."""
    return Method("fedavgm", (ServerMomentum(beta=beta, eta_g=eta_g, nesterov=nesterov),))


@entry
def fedadam(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.9,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedAdam: Adam on the server (Reddi et al. 2021)."""
    return _adaptive("fedadam", "adam", eta_g, beta1, beta2, tau, v_init)


@entry
def fedyogi(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.9,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedYogi: Yogi on the server (Reddi et al. 2021)."""
    return _adaptive("fedyogi", "yogi", eta_g, beta1, beta2, tau, v_init)


@entry
def fedadagrad(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.0,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedAdagrad: Adagrad on the server (Reddi et al. 2021)."""
    return _adaptive("fedadagrad", "adagrad", eta_g, beta1, 0.99, tau, v_init)


def _adaptive(
    name: str,
    rule: Literal["adam", "yogi", "adagrad"],
    eta_g: float,
    beta1: float,
    beta2: float,
    tau: float,
    v_init: float | None,
) -> Method:
    part = ServerAdaptive(rule=rule, eta_g=eta_g, beta1=beta1, beta2=beta2, tau=tau, v_init=v_init)
    return Method(name, (part,))
