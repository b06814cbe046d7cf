"""Running statistics and other floating buffers at a constructed start, and wherever weights are
not convex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.engines.api import Engine, Order, Results
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.session_starts import SessionStart, mixed
from shoal.models import build

SESSIONS = SmallWorld(
    rows=(8,), rounds=8, shifts={2: "members", 4: "members", 6: "members"}, dtype=torch.float64
)
IMAGES = SmallWorld(
    rows=(4,), rounds=6, features=(3, 8, 8), shifts={2: "members", 4: "members"},
    dtype=torch.float64,
)  # fmt: skip


class Divisor(nn.Module):
    """A network with a buffer of its own that it divides by."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((6,), 0.35))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x / self.scale)
        return found


class Moving(nn.Module):
    """A network with a running scale of its own that moves in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().square().mean(0)
        found: Tensor = self.head(x / self.scale)
        return found


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def resnet() -> nn.Module:
    return build("resnet18", (3, 8, 8), 3, width=4, norm="batch")


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "normalised": normalised,
    "divisor": Divisor,
    "moving": Moving,
    "resnet": resnet,
}


class Watching:
    """An engine, and the statistics that went down in every order; probes apart."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name = engine, engine.name
        self.sent: dict[int, list[Tensor]] = {}

    def train(self, order: Order) -> Iterator[Results]:
        self.sent.setdefault(order.round, []).append(order.model.stats)
        yield from self.engine.train(order)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self.engine.ask(order, question, payload)

    def close(self) -> None:
        self.engine.close()


def played(method: Method, net: str, engine: Engine) -> tuple[Watching, Any, ModuleTask]:
    world = IMAGES if net == "resnet" else SESSIONS
    task = ModuleTask(NETWORKS[net], classes=3, dtype=torch.float64)
    watching = Watching(engine)
    federation, _, _ = play(settings_for(method, world, task, batch=4), watching, world.rounds)
    return watching, federation, task


METHODS: dict[str, Callable[[], Method]] = {
    "dynamic_init": lambda: catalog.fedavg() | catalog.dynamic_init(first_session="initial"),
    "two pilots": lambda: catalog.fedavg() | catalog.dynamic_init(P=2, first_session="latest"),
    "previous": lambda: catalog.fedavg() | catalog.previous(first_session="initial"),
    "average": lambda: catalog.fedavg() | catalog.average(first_session="initial"),
    "continuous": lambda: catalog.continuous(first_session="initial"),
}


@pytest.mark.parametrize("net", ["normalised", "divisor", "moving"])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_session_starts_with_the_mix_of_past_buffers(method: str, net: str) -> None:
    watching, federation, task = played(METHODS[method](), net, Loop())
    part = next(p for p in federation.servers[0] if hasattr(p, "probes"))
    initial = federation.initial.stats
    assert torch.equal(initial, task.initial(3).stats) and bool((initial != 0).any())
    at = {r: watching.sent[r][-1] for r in (2, 4, 6)}
    if method == "two pilots":
        last = [at[6]]
    else:
        assert torch.equal(at[2], initial)  # session 1 goes back to the initial model
        last = [at[4], part.last[1, task.layout.size :]]
        assert torch.equal(part.last[0, task.layout.size :], at[4])  # one past session: exactly
        wanted = (part.weights[:, None] * torch.stack(last)).sum(0)
        assert torch.allclose(at[6], wanted, atol=1e-12)
    for stats in (*at.values(), *last):
        assert bool(torch.isfinite(stats).all()) and bool((stats != 0).any())


@pytest.mark.parametrize("net", ["normalised", "moving", "divisor"])
def test_probes_start_with_the_pilots_buffers_and_leave_none(net: str) -> None:
    watching, federation, task = played(METHODS["two pilots"](), net, Loop())
    pilot = federation.servers[0][-1].pilot[task.layout.size :]
    probes = watching.sent[-1]
    assert len(probes) == 2  # sessions 2 and 3
    assert all(torch.equal(stats, pilot) for stats in probes)
    assert torch.equal(watching.sent[4][0], watching.sent[4][-1])
    if net != "divisor":
        assert not torch.equal(watching.sent[4][0], pilot)  # it goes on from the latest model


def test_without_similarity_the_mix_is_the_average_buffers_too() -> None:
    zero = catalog.fedavg() | catalog.dynamic_init(R=0.0, first_session="initial")
    ends = [played(m, "normalised", Loop())[1].models[0] for m in (zero, METHODS["average"]())]
    assert torch.equal(ends[0].stats, ends[1].stats) and torch.equal(ends[0].theta, ends[1].theta)


@pytest.mark.parametrize("net", list(NETWORKS))
def test_engines_agree(net: str) -> None:
    method = METHODS["dynamic_init"]
    (_, a, _), (_, b, _) = (played(method(), net, e) for e in (Loop(), Stacked()))
    near = 1e-7 if net == "resnet" else 1e-11  # deep, with batches of four: rounding grows
    assert torch.allclose(a.models[0].stats, b.models[0].stats, rtol=1e-9, atol=near)
    assert torch.allclose(a.models[0].theta, b.models[0].theta, rtol=1e-9, atol=near)


@pytest.mark.parametrize("net", ["normalised", "resnet"])
def test_the_first_loss_of_a_session_is_that_of_a_sound_model(net: str) -> None:
    world = IMAGES if net == "resnet" else SESSIONS
    watching, federation, task = played(METHODS["previous"](), net, Loop())
    data = world.train(0, 0)
    pool = data.pool

    def loss(theta: Tensor, stats: Tensor) -> float:
        batch = type("B", (), {"x": pool.x[:20], "y": pool.y[:20], "weight": None})
        said = task.forward(theta, batch, stats, False)  # type: ignore[arg-type]
        return float(nn.functional.cross_entropy(said.logits, pool.y[:20]))

    # with statistics of zeros a layer divides by sqrt(1e-5), once for every layer
    start = federation.initial
    assert loss(start.theta, watching.sent[2][-1]) == loss(start.theta, start.stats) < 5.0
    assert loss(start.theta, torch.zeros_like(start.stats)) > 1.2 * loss(start.theta, start.stats)


# ---- only convex weights -------------------------------------------------------------------------
def test_weights_that_leave_the_unit_interval_are_made_convex_for_buffers() -> None:
    rows = torch.tensor([[1.0, 0.5, 4.0], [3.0, 2.0, 1.0], [5.0, 8.0, 9.0]])
    found = mixed(rows, torch.tensor([1.5, -1.0, 0.5]), 1)
    assert found.theta.tolist() == [1.0]
    assert torch.allclose(found.stats, torch.tensor([0.75 * 0.5 + 0.25 * 8.0, 3.0 + 2.25]))
    assert mixed(rows, torch.tensor([-1.0, 0.0, -2.0]), 1).stats.tolist() == [8.0, 9.0]
    doubled = mixed(rows, torch.tensor([1.0, 1.0, 0.0]), 1)
    assert doubled.theta.tolist() == [4.0] and doubled.stats.tolist() == [1.25, 2.5]


class Extrapolated(SessionStart):
    """A rule of one's own: away from the last session but one."""

    def _weights(self, state: Any, distances: Tensor) -> Tensor:
        past = state.last.shape[0]
        return torch.tensor([-1.0] * (past - 1) + [float(past)], dtype=state.last.dtype)


def test_an_extrapolating_rule_leaves_variances_alone() -> None:
    method = catalog.fedavg() | Method("mine", (Extrapolated(strategy="average"),), base=False)
    watching, federation, task = played(method, "normalised", Loop())
    last = federation.servers[0][-1].last
    assert torch.equal(watching.sent[6][-1], last[1, task.layout.size :])
    assert bool((federation.models[0].stats[5:] > 0).all())


FAR: dict[str, Callable[[], Method]] = {
    "relaxed start": lambda: catalog.fedinit(beta=5.0),
    "look-ahead": lambda: catalog.fedacg(lam=0.99),
    "server rate": lambda: catalog.fedavg(eta_g=7.0),
    "momentum": lambda: catalog.fedavgm(beta=0.99, eta_g=9.0),
    "adaptive": lambda: catalog.fedadam(eta_g=9.0),
    "drift-aware": lambda: catalog.flash(gamma=None, eta_g=9.0),
    "normalised": lambda: catalog.fednova(),
    "dynamic": lambda: catalog.feddyn(alpha=0.01),
}


class Rows:
    """An engine, and the statistics of every upload with its weight."""

    name = "loop"

    def __init__(self) -> None:
        self.loop, self.rows = Loop(), list[list[tuple[float, Tensor, Tensor]]]()

    def train(self, order: Order) -> Iterator[Results]:
        self.rows.append([])
        for results in self.loop.train(order):
            for i, count in enumerate(results.counts):
                self.rows[-1].append((count, results.stats[i].clone(), order.model.stats))
            yield results

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self.loop.ask(order, question, payload)

    def close(self) -> None:
        self.loop.close()


@pytest.mark.parametrize("name", list(FAR))
def test_the_server_takes_the_plain_mean_of_buffers(name: str) -> None:
    world = SmallWorld(rows=(8, 12), dtype=torch.float64)
    task = ModuleTask(normalised, classes=3, dtype=torch.float64)
    method, engine = FAR[name](), Rows()
    settings = settings_for(method, world, task, lr=0.001)
    federation, _, _ = play(settings, engine, 2)
    first = federation.initial.stats
    assert all(torch.equal(sent, first) for _, _, sent in engine.rows[0])
    uniform = method.weights == "equal"
    weights = [1.0 if uniform else count for count, _, _ in engine.rows[1]]
    total = sum(w * stats for w, (_, stats, _) in zip(weights, engine.rows[1], strict=True))
    assert torch.allclose(federation.models[0].stats, total / sum(weights), rtol=1e-12)
    assert bool((federation.models[0].stats[5:] > 0).all())


# ---- buffers that a module does not save, and counters -------------------------------------------
class Unsaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((6,), 0.5), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x - self.mean)
        return found


def test_a_buffer_that_is_not_saved_counts_too() -> None:
    task = ModuleTask(Unsaved, classes=3)
    start = task.initial(0)
    assert start.stats.tolist() == [0.5] * 6
    plain = Unsaved()
    plain.load_state_dict(task.export(start))
    settings = settings_for(catalog.fedavg(), SmallWorld(), task)
    federation, _, _ = play(settings, Loop(), 1)
    assert torch.allclose(federation.models[0].stats, torch.tensor(0.5))
    assert isinstance(federation.models[0], Model)


class Counting(nn.Module):
    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.in_place:
            self.seen += x.shape[0]
        elif self.training:
            self.seen = self.seen + x.shape[0]
        found: Tensor = self.head(x) / (1 + self.seen)
        return found


@pytest.mark.parametrize("in_place", [True, False])
def test_a_counter_that_moves_is_refused_by_name(in_place: bool) -> None:
    task = ModuleTask(lambda: Counting(in_place), classes=3)
    settings = settings_for(catalog.fedavg(), SmallWorld(), task)
    for engine in (Loop(), Stacked()):
        with pytest.raises(UserError, match="buffer 'seen'.*whole numbers"):
            play(settings, engine, 1)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([5, 4, 3, 2, 1, 0]))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x[:, self.order])
        return found


def test_a_constant_of_whole_numbers_is_fine_on_both_engines() -> None:
    task = ModuleTask(Positions, classes=3, dtype=torch.float64)
    world = SmallWorld(dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task)
    a, b = (play(settings, engine, 2)[0].models[0].theta for engine in (Loop(), Stacked()))
    assert torch.allclose(a, b, rtol=1e-10) and not torch.equal(a, task.initial(3).theta)
