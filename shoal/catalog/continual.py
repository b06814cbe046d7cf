"""Methods against forgetting: tasks (domains, classes) come one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.catalog.registry import entry
from shoal.method import Method
from shoal.parts.acgan import GanReplay
from shoal.parts.generator import ReplayGenerator
from shoal.parts.match import TaskMatch
from shoal.parts.replay import ReplayBuffer
from shoal.parts.two_optimizers import AlternatingAdam
from shoal.parts.two_teachers import TwoTeachers

TASKS = ("domain", "classes")


@entry
def flwf_2t(
    a: float = 0.5, b: float = 0.25, temperature: float = 2.0, on: Sequence[str] = TASKS
) -> Method:
    """FLwF-2T: distillation from the last task's local model and from the server's."""
    part = TwoTeachers(a=a, b=b, temperature=temperature, on=tuple(on))
    return Method("flwf_2t", (part,), paper="Usmanova et al. 2021")


@entry
def fedcil(
    lam: float = 0.5,
    M: int = 100,
    consistency: float = 0.0,
    noise: int = 64,
    hidden: int = 128,
    fine_tune_rate: float | None = None,
    on: Sequence[str] = TASKS,
) -> Method:
    """FedCIL: an AC-GAN on every client replays past tasks; the server consolidates them."""
    part = GanReplay(
        lam=lam,
        M=M,
        consistency=consistency,
        noise=noise,
        hidden=hidden,
        fine_tune_rate=fine_tune_rate,
        on=tuple(on),
    )
    return Method("fedcil", (part, AlternatingAdam()), paper="Qi et al. 2023")


@entry
def mfcl(
    w_div: float = 0.5,
    w_bn: float = 1.0,
    w_pr: float = 0.01,
    w_ft: float = 0.2,
    w_kd: float = 0.2,
    noise: int = 1000,
    hidden: int = 128,
    iterations: int = 100,
    synthetic: int | None = None,
    labels: Literal["domain", "classes"] = "domain",
    on: Sequence[str] = TASKS,
) -> Method:
    """MFCL: the server trains a generator from each task's model; clients replay from it."""
    part = ReplayGenerator(
        w_div=w_div,
        w_bn=w_bn,
        w_pr=w_pr,
        w_ft=w_ft,
        w_kd=w_kd,
        noise=noise,
        hidden=hidden,
        iterations=iterations,
        synthetic=synthetic,
        labels=labels,
        on=tuple(on),
    )
    return Method("mfcl", (part,), "uniform", paper="Babakniya et al. 2023")


@entry
def sr_fdil(lam: float = 0.5, B: int = 1000, on: Sequence[str] = TASKS) -> Method:
    """SR-FDIL: clients replay their best-scored samples of past tasks (a reconstruction)."""
    part = ReplayBuffer(lam=lam, B=B, on=tuple(on))
    return Method("sr_fdil", (part,), paper="Li et al. 2024; a reconstruction")


@entry
def pfeddil(
    threshold: float = 0.8, rho: float = 0.1, keep: int = 6, on: Sequence[str] = TASKS
) -> Method:
    """pFedDIL: personal models of past tasks, matched to the new one (a reconstruction)."""
    part = TaskMatch(threshold=threshold, rho=rho, keep=keep, on=tuple(on))
    return Method("pfeddil", (part,), paper="Li et al. 2024; a reconstruction")
