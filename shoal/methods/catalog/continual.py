"""Methods against forgetting: tasks (domains, classes) come one after another."""

from __future__ import annotations

from typing import Literal

from shoal.core.errors import UserError
from shoal.core.setting_types import Above0, AtLeast0, From0To1, Hears, Room, Size, Whole
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.continual.replay_buffer import ReplayBuffer
from shoal.methods.parts.continual.replay_gan import GanReplay
from shoal.methods.parts.continual.replay_generator import ReplayGenerator
from shoal.methods.parts.continual.task_matching import TaskMatch
from shoal.methods.parts.continual.teachers import TwoTeachers
from shoal.methods.parts.local_optimizers import AlternatingAdam

TASKS: Hears = ("domain", "classes")


@entry
def flwf_2t(
    a: From0To1 = 0.5, b: From0To1 = 0.25, temperature: Above0 = 2.0, on: Hears = TASKS
) -> Method:
    """FLwF-2T: distillation from the last task's local model and from the server's."""
    if a + b > 1:
        raise UserError(f"method: flwf_2t.a and b must add up to at most 1, not to {a + b:g}")
    part = TwoTeachers(a=a, b=b, temperature=temperature, on=tuple(on))
    return Method("flwf_2t", (part,), paper="Usmanova et al. 2021")


@entry
def fedcil(
    lam: From0To1 = 0.5,
    M: Whole = 100,
    consistency: AtLeast0 = 0.0,
    noise: Size = 64,
    hidden: Size = 128,
    fine_tune_rate: AtLeast0 | None = None,
    on: Hears = TASKS,
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
    w_div: AtLeast0 = 0.5,
    w_bn: AtLeast0 = 1.0,
    w_pr: AtLeast0 = 0.01,
    w_ft: AtLeast0 = 0.2,
    w_kd: AtLeast0 = 0.2,
    noise: Size = 1000,
    hidden: Size = 128,
    iterations: Whole = 100,
    synthetic: Room | None = None,
    labels: Literal["domain", "classes"] = "domain",
    on: Hears = TASKS,
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
    return Method("mfcl", (part,), "equal", paper="Babakniya et al. 2023")


@entry
def sr_fdil(lam: From0To1 = 0.5, B: Room = 1000, on: Hears = TASKS) -> Method:
    """SR-FDIL: clients replay their best-scored samples of past tasks (a reconstruction)."""
    part = ReplayBuffer(lam=lam, B=B, on=tuple(on))
    return Method("sr_fdil", (part,), paper="Li et al. 2024; a reconstruction")


@entry
def pfeddil(
    threshold: AtLeast0 = 0.8, rho: AtLeast0 = 0.1, keep: Size = 6, on: Hears = TASKS
) -> Method:
    """pFedDIL: personal models of past tasks, matched to the new one (a reconstruction)."""
    part = TaskMatch(threshold=threshold, rho=rho, keep=keep, on=tuple(on))
    return Method("pfeddil", (part,), paper="Li et al. 2024; a reconstruction")
