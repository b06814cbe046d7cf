"""From a worked example to a method, a world and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal import catalog
from shoal.federation import Settings
from shoal.local import Program
from shoal.method import Method
from shoal.parts.local_sgd import Sgd
from shoal.task import QuadraticTask
from shoal.verify.recorder import Recorder
from shoal.worlds.quadratic import Quadratics, Segment

Case = dict[str, Any]
Hyper = dict[str, Any]


def _adaptive(h: Hyper) -> dict[str, Any]:
    v_init = h.get("v_init", "tau**2")
    out = {k: h[k] for k in ("eta_g", "beta1", "beta2", "tau") if k in h}
    return {**out, "v_init": None if v_init == "tau**2" else v_init}


def _pick(h: Hyper, *names: str, **renamed: str) -> dict[str, Any]:
    out = {name: h[name] for name in names if name in h}
    return out | {ours: h[theirs] for ours, theirs in renamed.items() if theirs in h}


def _dynamic_init(h: Hyper) -> Method:
    settings = _pick(h, "P", "V", "R", "similarity", "first_session")
    return catalog.dynamic_init(**settings, probe_rate=h["probe_eta"] / h["eta"])


def _fedagg(h: Hyper) -> Method:
    picked = _pick(h, "alpha", "feedback", "eta_min", "eta_max", epochs="L")
    return catalog.fedagg(**picked)


BUILDERS: dict[str, Callable[[Hyper], Method]] = {
    "FedAvg": lambda h: catalog.fedavg(),
    "FedProx": lambda h: catalog.fedprox(mu=h["mu"]),
    "SCAFFOLD": lambda h: catalog.scaffold(**_pick(h, "option", "eta_g")),
    "FedAvgM": lambda h: catalog.fedavgm(**_pick(h, "beta", "eta_g", "nesterov")),
    "FedAdam": lambda h: catalog.fedadam(**_adaptive(h)),
    "FedYogi": lambda h: catalog.fedyogi(**_adaptive(h)),
    "FedAdagrad": lambda h: catalog.fedadagrad(
        **{k: v for k, v in _adaptive(h).items() if k != "beta2"}
    ),
    "FedInit": lambda h: catalog.fedinit(**_pick(h, "beta", "aggregate")),
    "FLASH": lambda h: catalog.flash(
        **_pick(h, "gamma", "eta_g", "beta1", "beta2", "tau", "guard", "l0")
    ),
    "SPECIAL": lambda h: catalog.special(lam=h["lambda"]),
    "SPECIAL-C": lambda h: catalog.special_c(lam=h["lambda"], every=h["prox_every"]),
    "DynamicInit": _dynamic_init,
    "Previous": lambda h: catalog.previous(**_pick(h, "P", "first_session")),
    "Average": lambda h: catalog.average(**_pick(h, "P", "first_session")),
    "FedAgg": _fedagg,
}


def method_of(case: Case) -> Method:
    """The catalog entry, or a composition ``A + B``, with a recorder behind it."""
    hyper = case["hyperparameters"]
    names = case["method"].split(" + ")
    method = BUILDERS[names[0]](hyper)
    for name in names[1:]:
        method = method | BUILDERS[name](hyper)
    return method | Method("recorder", (Recorder(),))


def world_of(case: Case) -> Quadratics:
    problem, hyper = case["problem"], case["hyperparameters"]
    rows = int(hyper.get("steps_per_epoch", 1))
    if case["kind"] == "tasks":
        rounds = hyper["rounds_per_task"]
        parts = tuple(_segment(p, rounds, 0) for p in problem["tasks"])
        return Quadratics(parts, "domain", rows)
    if case["kind"] == "sessions":
        offsets, total = [], 0
        for group in problem["groups"]:
            offsets.append(total)
            total += len(group["n"])
        parts = tuple(
            _segment(problem["groups"][g], hyper["T"], offsets[g]) for g in problem["session_group"]
        )
        return Quadratics(parts, "members", rows)
    return Quadratics((_segment(problem, hyper["rounds"], 0),), "members", rows)


def _segment(problem: dict[str, Any], rounds: int, offset: int) -> Segment:
    freeze: Callable[[Any], tuple[tuple[float, ...], ...]] = lambda m: tuple(tuple(r) for r in m)  # noqa: E731
    members = tuple(range(offset, offset + len(problem["n"])))
    return Segment(rounds, members, freeze(problem["a"]), freeze(problem["b"]), tuple(problem["n"]))


def settings_of(case: Case) -> Settings:
    """Everything ``play_round`` needs, in float64 with full gradients."""
    hyper = case["hyperparameters"]
    sizes = tuple((name, size) for name, size in case["problem"].get("layout", ()))
    task = QuadraticTask(tuple(case["w0"]), sizes)
    sgd = Sgd(momentum=hyper.get("momentum", 0.0), weight_decay=hyper.get("weight_decay", 0.0))
    method = method_of(case)
    program = Program(method, task, sgd)
    steps = hyper.get("K")
    epochs = hyper.get("E") or hyper.get("L") or (max(steps) if isinstance(steps, list) else steps)
    rate = hyper.get("eta", hyper.get("eta0"))
    cohorts = case.get("participation")
    return Settings(
        program,
        world_of(case),
        seed=0,
        rates=lambda moment: (rate,) * epochs,
        cohorts=None if cohorts is None else tuple(tuple(c) for c in cohorts),
        uniform=hyper["aggregation"] == "uniform",
        batch=1,
        steps=tuple(steps) if isinstance(steps, list) else None,
    )
