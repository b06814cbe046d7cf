"""What the fuzzer (``python -m fuzz``) found outside of the compiler."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor, nn
from torch.nn.functional import batch_norm, scaled_dot_product_attention

import shoal
from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.layers.fitting import watched
from shoal.core.task import ModuleTask
from shoal.core.tree import leaves
from shoal.core.types import ClientData, Job, Model
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.parts.several_models import BestOfBank, stacked
from shoal.metrics.evaluate import evaluate, evaluate_own
from shoal.metrics.figures import Course
from shoal.models import model
from shoal.models.generators import feature_width, sample_shape
from shoal.rounds.orders import check_rounds, make_order
from shoal.rounds.state import Federation, Round
from shoal.rounds.uploads import Guard

ROWS, FEATURES, CLASSES = 7, 6, 3


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_uploads_above_guard_norm_are_turned_away_on_stacked_too(weights: str) -> None:
    """The engine had added them up before the guard saw their norms, and the run crashed."""
    world = SmallWorld(dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    plain = settings_for(catalog.fedavg(), world, task, uniform=weights == "uniform")
    _, (report,), _ = play(plain, Loop(), 1)
    norms = sorted(report.norms)
    between = (norms[2] + norms[3]) / 2  # half of the six are longer
    guard = Guard(quorum=1, retries=0, max_norm=between)
    guarded = settings_for(catalog.fedavg(), world, task, uniform=weights == "uniform", guard=guard)
    _, slow, right = play(guarded, Loop(), 2)
    _, fast, found = play(guarded, Stacked(threads=1), 2)
    assert len(slow[0].rejected) == 3
    assert [r.accepted for r in fast] == [r.accepted for r in slow]
    assert torch.allclose(found[-1], right[-1], rtol=0, atol=1e-12)


class Ordered(nn.Module):
    """A network with a buffer of whole numbers that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(FEATURES).flip(0))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x[:, self.order])  # type: ignore[index]
        return found


class Recurrent(nn.Module):
    """A plain recurrent network, for which ``vmap`` has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.RNN(2, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(x.view(len(x), 3, 2))[0][:, -1])
        return found


@pytest.mark.parametrize("net", [Ordered, Recurrent])
def test_members_own_models_are_scored_whatever_the_network(net: type[nn.Module]) -> None:
    """Side by side they ended in a traceback."""
    task = ModuleTask(net, classes=CLASSES)
    pool = SmallWorld(rows=(ROWS,))._pool()
    models = [task.initial(seed) for seed in (0, 1, 2)]
    rows = [torch.arange(begin, begin + ROWS) for begin in (0, 3, 8)]
    data = [ClientData(pool, r, pool.y[r] % CLASSES, float(ROWS)) for r in rows]
    found = evaluate_own(task, models, data)
    for score, mine, own in zip(found, models, data, strict=True):
        right = evaluate(task, mine, own)
        assert score.accuracy == right.accuracy
        assert score.loss == pytest.approx(right.loss, rel=1e-6)


class TriedWhileBuilt(nn.Module):
    """A network that finds its sizes by a pass over zeros, attention among it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(2, 6)
        with torch.no_grad():
            width = self._features(torch.zeros(1, FEATURES)).shape[1]
        self.head = nn.Linear(width, CLASSES)

    def _features(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x.view(len(x), 1, 3, 2)).chunk(3, -1)
        return scaled_dot_product_attention(q, k, v).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self._features(x))
        return found


def test_attention_that_drops_nothing_may_run_while_a_network_is_built() -> None:
    """It was refused as an operator that draws."""
    task = ModuleTask(TriedWhileBuilt, classes=CLASSES)
    first, again = task.initial(3), task.initial(3)
    assert isinstance(first, Model) and torch.equal(first.theta, again.theta)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = dict(TriedWhileBuilt().named_parameters())
    assert torch.equal(first.theta, task.layout.flatten(plain).detach())


@model("alone_for_faults")
def alone(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Groups of one value each."""
    return nn.Sequential(nn.Linear(shape[0], 4), nn.GroupNorm(4, 4), nn.Linear(4, classes))


@model("bare_for_faults")
def bare(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Its features are its logits, which the head does not take."""
    found = nn.Sequential()
    found.body = nn.Linear(shape[0], 4)
    found.head = nn.Linear(4, classes)
    return found


STILL = {"name": "static", "members": 3, "rounds": 1, "partition": "iid"}


def test_groups_of_one_value_are_refused() -> None:
    """A client of one row, or a test set of one, was a traceback of torch's."""
    with pytest.raises(UserError, match="groups of a single value"):
        shoal.run(world=STILL, model={"name": "alone_for_faults"}, data={"name": "digits"})


def test_fedgh_needs_the_features_that_the_head_takes() -> None:
    """The server's product of matrices was a traceback."""
    with pytest.raises(UserError, match="takes 4 numbers per sample.*which are 10"):
        shoal.run(
            world=STILL, model={"name": "bare_for_faults"}, data={"name": "digits"}, method="fedgh"
        )


@model("weight_norm_for_faults")
def weight_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """It divides by the length of a weight, which is 0 in a vector of zeros."""
    found = nn.Sequential()
    found.body = nn.utils.parametrizations.weight_norm(nn.Linear(shape[0], 4))
    found.head = nn.Linear(4, classes)
    return found


TASKS = {"name": "domains", "members": 3, "domains": ["plain", "inverted"], "rounds_per_stage": 1}


def test_pfeddil_passes_over_places_without_a_model() -> None:
    """Uploads of the second task were not finite: nothing times 0 was no number."""
    result = shoal.run(world=TASKS, model={"name": "weight_norm_for_faults"}, method="pfeddil")
    assert [record["rejected"] for record in result.rounds] == [[], []]


@pytest.mark.parametrize("labels", ["domain", "classes"])
def test_mfcl_that_hears_of_what_is_noticed_trains_as_fedavg_before(labels: str) -> None:
    """Its terms were divided by no ended task's classes: uploads were not finite."""
    world = {"name": "static", "members": 3, "rounds": 2}
    more = {"world": world, "model": {"name": "mlp", "hidden": [4]}, "client_weights": "by_samples"}
    method = {"mfcl": {"on": ["noticed"], "labels": labels, "noise": 3, "hidden": 4}}
    found, plain = (shoal.run(method=m, **more) for m in (method, "fedavg"))
    for name, tensor in plain.model.items():
        assert torch.allclose(found.model[name], tensor, rtol=0, atol=1e-6)


class Centred(nn.Module):
    """Rows of a batch see each other: padding would change what a row gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        features = torch.tanh(features - features.mean(0))
        return self.head(features), features


@pytest.mark.parametrize("rows", [(6,), (6, 7, 9)], ids=["equal", "unequal"])
@pytest.mark.parametrize("method", ["fedgh", "dynamic_init", "fedagg", "scaffold"])
def test_what_a_part_sees_of_all_rows_is_not_padded_where_rows_mix(
    method: str, rows: tuple[int, ...]
) -> None:
    """Class means, gradients and questions over all of a client's rows had padding among them."""
    world = SmallWorld(rows=rows, shifts={1: "members", 2: "members"}, dtype=torch.float64)
    task = ModuleTask(Centred, classes=CLASSES, dtype=torch.float64)
    options: dict[str, Any] = {"fedagg": {"epochs": 2}, "scaffold": {"option": 1}}.get(method, {})
    settings = settings_for(catalog.METHODS[method](**options), world, task)
    _, _, right = play(settings, Loop(), 3)
    _, _, found = play(settings, Stacked(threads=1), 3)
    assert torch.allclose(found[-1], right[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [(6,), (6, 7, 9)], ids=["equal", "unequal"])
def test_questions_are_not_padded_where_rows_mix(rows: tuple[int, ...]) -> None:
    world = SmallWorld(rows=rows, dtype=torch.float64)
    task = ModuleTask(Centred, classes=CLASSES, dtype=torch.float64)
    method = catalog.hypcluster()
    settings = settings_for(method, world, task)
    federation = Federation.fresh(settings, task.initial(0), world.at(0), 0.1)
    jobs = [Job(client) for client in range(world.clients)]
    order = make_order(Round(federation, settings, world.at(0)), 0, jobs)
    (part,) = method.parts
    assert isinstance(part, BestOfBank)
    bank = stacked(federation.models)
    slow, fast = (e.ask(order, part.losses, bank) for e in (Loop(), Stacked(threads=1)))
    for right, found in zip(slow, fast, strict=True):
        assert torch.allclose(leaves(found)[0], leaves(right)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", [Loop(), Stacked(threads=1)], ids=["loop", "stacked"])
@pytest.mark.parametrize("rows", [(0, 5), (5, 0)])
def test_a_client_without_rows_is_refused_in_a_sentence(rows: tuple[int, ...], engine: Any) -> None:
    """A world of one's own may have them; every engine raised what its first division by 0 did."""
    world = SmallWorld(rows=rows, dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    with pytest.raises(UserError, match="client [01] has no rows to train on in round 0; give it"):
        play(settings_for(catalog.fedavg(), world, task), engine, 1)


class Called(nn.Module):
    """Batch normalisation as a function, with no layer to find it by."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(batch_norm(self.body(x), None, None, training=True)))
        return found


def test_a_row_alone_is_refused_where_batch_normalisation_is_a_function() -> None:
    """It was found by its layer only, and torch's own error came in the middle of a run."""
    where = watched(Called(), torch.randn(2, FEATURES), (CLASSES,)).lone_layer
    assert where == "forward of Called"
    world = SmallWorld(rows=(4, 1), dtype=torch.float64)
    task = ModuleTask(Called, classes=CLASSES, dtype=torch.float64, lone_layer=where)
    settings = replace(settings_for(catalog.fedavg(), world, task), lone_layer=where)
    with pytest.raises(UserError, match="client 1 has 1 row .* which forward of Called cannot"):
        check_rounds(settings)


def test_features_are_counted_where_no_statistics_are_kept() -> None:
    """One row was tried, which such a network cannot take even in evaluation."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = nn.BatchNorm1d(4, track_running_stats=False)
            self.body = nn.Sequential(nn.Linear(FEATURES, 4), norm)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.body(x)
            return self.head(features), features

    assert feature_width(ModuleTask(Kept, classes=CLASSES)) == 4


class Weighted(SmallWorld):
    """Rows count differently; the weights are float32, whatever the samples are."""

    def train(self, client: int, round: int) -> ClientData:
        data = super().train(client, round)
        return replace(data, weight=0.3 + (data.rows % 3).to(torch.float32))


@pytest.mark.parametrize("rows", [(8,), (6, 9)], ids=["equal", "unequal"])
def test_weights_of_rows_are_as_exact_as_the_samples(rows: tuple[int, ...]) -> None:
    """They were added up in float32 on stacked: 3e-8 off, in running statistics and in the loss."""
    world = Weighted(rows=rows, dtype=torch.float64)

    def build() -> nn.Module:
        layers = nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)
        return nn.Sequential(*layers)

    task = ModuleTask(build, classes=CLASSES, dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task)
    (right,), (found,) = (play(settings, e, 2)[0].models for e in (Loop(), Stacked(threads=1)))
    assert torch.allclose(found.theta, right.theta, rtol=0, atol=1e-12)
    assert torch.allclose(found.stats, right.stats, rtol=0, atol=1e-12)


def test_a_sequence_of_one_place_is_no_flat_row() -> None:
    """The generator's samples had the shape (3,), which a recurrent network cannot read."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.net(x)[0][:, -1])
            return found

    assert sample_shape(ModuleTask(Last, classes=2, shape=(1, 3))) == (1, 3)
    flat = ModuleTask(lambda: nn.Linear(12, 2), classes=2, shape=(1, 3, 4))
    assert sample_shape(flat) == (12,)


def test_a_figure_that_is_none_in_one_round_is_none_in_files_too() -> None:
    """A resumed run read null for the AUC of a single class, and ended in a traceback."""
    record = {
        "round": 0,
        "accuracy": 0.5,
        "loss": 1.0,
        "seconds": 1.0,
        "shift": None,
        "tasks": {},
        "rejected": [],
        "short": False,
        "cohort": [],
    }
    record |= {"score": "auc", "lower": []}
    tallies = []
    for none in (float("nan"), None):
        tally = Course()
        for value in (none, 0.7, none, 0.6):
            tally.add({**record, "metrics": {"auc": value}})
        tallies.append(tally.best_metrics)
    assert tallies == [{"auc": 0.7}] * 2


def test_a_method_for_classes_is_refused_on_a_problem() -> None:
    """glfc ended in a traceback: a quadratic client has numbers, and no classes."""
    config = {"problem": {"name": "quadratic"}, "method": [{"continuous": {"mode": "glfc"}}]}
    with pytest.raises(UserError, match="mode glfc needs classes"):
        shoal.run(**config)


@pytest.mark.parametrize("mode", ["softmax", "glfc"])
def test_a_teacher_that_is_not_there_says_nothing_that_is_not_finite(mode: str) -> None:
    """Its tensors are zeros, which a network that divides by their length has no numbers for."""
    world = SmallWorld(dtype=torch.float64)

    def build() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES)))

    task = ModuleTask(build, classes=CLASSES, dtype=torch.float64)
    settings = settings_for(catalog.continuous(mode=mode), world, task)
    _, (report,), models = play(settings, Loop(), 1)
    assert not report.rejected and bool(torch.isfinite(models[-1]).all())


def test_a_round_in_which_nobody_is_scored_has_no_loss(tmp_path: Path) -> None:
    """It was not a number in memory and null in files, so that a resumed run had other records."""
    file = tmp_path / "few.csv"
    labels = [0, 1] * 15 + [2] * 4  # one row per member in the stage of class 2
    file.write_text("a,b,y\n" + "".join(f"{k}.5,{7 - k}.5,{y}\n" for k, y in enumerate(labels)))
    data = {"name": "files", "path": str(file), "y": "y"}
    world = {"name": "classes", "members": 3, "stages": 2, "rounds_per_stage": 1, "hidden": True}
    held = {"rows": "members_held_out"}  # nobody has rows to spare
    found = shoal.run(data=data, world=world, evaluate=held, out=tmp_path / "run")
    written = [
        json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    ]
    assert [r["loss"] for r in found.records] == [r["loss"] for r in written]
    assert any(r["loss"] is None for r in written)


def test_a_share_of_a_vector_is_rounded_per_client() -> None:
    """The loop brings clients one by one: 54 bytes, where two at a time were 55."""
    world = SmallWorld(dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    method = catalog.random_k(share=0.37) | catalog.fedbabu()
    settings = settings_for(method, world, task)
    slow, fast = (play(settings, e, 1)[1][0].bytes_up for e in (Loop(), Stacked(threads=1)))
    assert slow == fast and slow % 6 == 0  # of six clients
