"""Rows of a large embedding that a client does not look up are not trained, and nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal import catalog, models
from shoal.core.task import ModuleTask
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Job, Pool
from shoal.engines.api import Engine, Scattered
from shoal.engines.loop import Loop
from shoal.engines.stacked import embeddings
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Adam, Sgd
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round, Settings

VOCABULARY, WIDTH, LENGTH = 600, 4, 9


@dataclass(frozen=True)
class Texts(SmallWorld):
    """Clients whose samples are rows of token numbers, some of them padding."""

    def _pool(self) -> Pool:
        source = torch.Generator().manual_seed(5)
        x = torch.randint(1, VOCABULARY, (2 * sum(self.rows), LENGTH), generator=source)
        x[:, 6:] *= torch.randint(0, 2, x[:, 6:].shape, generator=source)
        return Pool(x, torch.randint(0, self.classes, (len(x),), generator=source))

    def validation(self, client: int, round: int) -> ClientData | None:
        own = self.train(client, round)
        rows = (own.rows + 3) % len(own.pool.y)
        return ClientData(own.pool, rows, own.pool.y[rows], own.count)


@pytest.fixture(autouse=True)
def small_tables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "WORTH", 1)


def settings_of(
    method: Method, model: str = "fasttext", optimizer: Part | None = None, **more: object
) -> Settings:
    world = Texts()
    build = lambda: models.build(  # noqa: E731
        model, (LENGTH,), world.classes, vocabulary=VOCABULARY, width=WIDTH
    )
    task = ModuleTask(build, classes=world.classes)
    return settings_for(method, world, task, optimizer, **more)


def deltas(settings: Settings, engine: Engine) -> list[object]:
    """What the engine gives back for every member in the first round."""
    moment = settings.world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(0), moment, 0.1)
    order = make_order(Round(federation, settings, moment), 0, [Job(c) for c in moment.members])
    return [results.delta for results in engine.train(order)]


CASES = {
    "fedavg": settings_of(catalog.fedavg()),
    "momentum, clip": settings_of(catalog.fedavg(), optimizer=Sgd(momentum=0.9, clip=0.05)),
    "capped steps": settings_of(catalog.fedavg(), steps=2),
    "fedprox": settings_of(catalog.fedprox(mu=0.5)),
    "fedacg": settings_of(catalog.fedacg()),
    "fedsam": settings_of(catalog.fedsam()),
    "flash": settings_of(catalog.flash(gamma=0.01)),
    "word_lstm": settings_of(catalog.fedavg(), "word_lstm"),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_alone_give_the_loops_model(name: str) -> None:
    settings = CASES[name]
    assert all(isinstance(d, Scattered) for d in deltas(settings, Stacked()))
    ours, theirs = (play(settings, engine, 3)[2][-1] for engine in (Stacked(), Loop()))
    start = settings.task.initial(settings.seed).theta
    assert (ours - start).norm() > 1e-2
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


class Own(nn.Module):
    """Somebody's own network over tokens: nothing says that it has a table."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        number = {"padding is 0": 0, "padding is 3": 3}.get(kind)
        if kind == "bag":
            self.embed: nn.Module = nn.EmbeddingBag(VOCABULARY, WIDTH)
        else:
            self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=number)
        self.head = nn.Linear(WIDTH, Texts().classes)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.embed(x.t() if self.kind == "turned" else x)
        if self.kind == "turned":
            values = values.transpose(0, 1)
        if self.kind == "mask of 0":
            values = values * (x != 0).unsqueeze(-1)
        if self.kind == "mask of 3":
            values = values * (x != 3).unsqueeze(-1)
        if self.kind == "looked up twice":
            values = values + self.embed(x[:, :1])
        values = values if self.kind == "bag" else values.mean(1)
        if self.kind == "tied":
            assert isinstance(self.embed.weight, Tensor)
            values = values + 0.1 * (values @ self.embed.weight.t()).softmax(1) @ self.embed.weight
        if self.kind == "numbers too":
            values = values + x.to(values.dtype).mean(1, True) / VOCABULARY
        result: Tensor = self.head(values)
        return result


def own(kind: str) -> Settings:
    task = ModuleTask(lambda: Own(kind), classes=Texts().classes)
    return settings_for(catalog.fedavg(), Texts(), task)


@pytest.mark.parametrize(
    "kind", ["plain", "padding is 0", "mask of 0", "looked up twice", "turned", "bag"]
)
def test_a_table_is_found_in_any_network(kind: str) -> None:
    settings = own(kind)
    assert all(isinstance(d, Scattered) for d in deltas(settings, Stacked()))
    ours, theirs = (play(settings, engine, 3)[2][-1] for engine in (Stacked(), Loop()))
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("kind", ["padding is 3", "mask of 3", "tied", "numbers too"])
def test_numbers_that_mean_more_than_rows_are_left_alone(kind: str) -> None:
    """Renumbered, they would mean something else; so would a table that is read as a whole."""
    settings = own(kind)
    assert not any(isinstance(d, Scattered) for d in deltas(settings, Stacked()))
    ours, theirs = (play(settings, engine, 2)[2][-1] for engine in (Stacked(), Loop()))
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        (settings_of(catalog.fedavg(), optimizer=Sgd(weight_decay=0.01)), "Sgd"),
        (settings_of(catalog.scaffold()), "ControlVariate"),
        (settings_of(catalog.fedinit()), "RelaxedStart"),
    ],
)
def test_what_moves_other_rows_trains_them_all_and_says_so(settings: Settings, who: str) -> None:
    engine = Stacked()
    ours = play(settings, engine, 2)[2][-1]
    said = [note for note in engine.notes if "embed.weight" in note]
    assert len(said) == 1 and who in said[0]
    assert torch.allclose(ours, play(settings, Loop(), 2)[2][-1], atol=1e-6)


def test_a_client_that_looks_up_most_rows_trains_the_whole_table() -> None:
    settings = settings_of(catalog.fedavg())
    settings = replace(settings, world=replace(settings.world, rows=(200, 12, 7, 9, 5, 20)))
    assert not any(isinstance(d, Scattered) for d in deltas(settings, Stacked()))


def test_one_row_of_a_scattered_delta_is_the_whole_vector() -> None:
    settings = CASES["fedavg"]
    ours, theirs = deltas(settings, Stacked()), deltas(settings, Loop())
    for mine, other in zip(ours, theirs, strict=True):
        assert isinstance(mine, Scattered) and isinstance(other, torch.Tensor)
        assert mine.shape == other.shape
        assert torch.allclose(mine[0], other[0], atol=1e-7)


@dataclass(frozen=True)
class Homing(Sgd):
    """Somebody's own optimiser, which looks at the model of the first round."""

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        moved, state = super().step(view, gradient, state)
        return torch.where(gradient(view.x) == 0, moved, moved + 0.1 * view.initial), state


@pytest.mark.parametrize("optimizer", [Homing(), Sgd(momentum=0.9), Adam(), None])
def test_the_first_model_is_cut_for_whoever_looks_at_it(optimizer: Part | None) -> None:
    """Plain training does not, and is told another one: it would not even see that it is broken."""
    settings = settings_of(catalog.fedavg(), optimizer=optimizer)
    if not isinstance(optimizer, Homing):
        moment = settings.world.at(0)
        federation = Federation.fresh(settings, settings.task.initial(0), moment, 0.1)
        jobs = [Job(c) for c in moment.members]
        order = make_order(Round(federation, settings, moment), 0, jobs)
        broken = replace(order, initial=torch.full_like(order.initial, torch.nan))
        for engine in (Loop(), Stacked()):
            for one, other in zip(engine.train(order), engine.train(broken), strict=True):
                assert torch.equal(one.delta[0], other.delta[0])
        return
    ours, theirs = (play(settings, engine, 2)[2][-1] for engine in (Stacked(), Loop()))
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
