"""What the rules over adapters promise, on networks: exact means, frozen bases, counted bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal import catalog
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.core.types import ClientData
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.adapter_rules import Ranks, with_rule
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Adam, Sgd
from shoal.models.adapters import AdaptedNetwork, Adapters, merged
from shoal.rounds.state import Settings

EQUAL = Ranks(2)
UNEQUAL = Ranks(1, ((0, 3), (2, 2)))
WORLD = SmallWorld(clients=4, dtype=torch.float64)


class Alike(SmallWorld):
    """Every client holds the rows of the first one."""

    def train(self, client: int, round: int) -> ClientData:
        return super().train(0, round)

    @property
    def pad(self) -> int:
        return 0


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(2, 1, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 3, 2)
        out: Tensor = self.head((h + self.mha(h, h, h, need_weights=False)[0]).flatten(1))
        return out


def settings(
    rule: str,
    ranks: Ranks,
    method: Method | None = None,
    network: Any = dense,
    world: SmallWorld = WORLD,
    **more: Any,
) -> Settings:
    trained = ("3.*",) if more.pop("head", False) else ()
    adapters = Adapters(rule, ranks.largest, 2.0, ("0",) if trained else None, trained)  # type: ignore[arg-type]
    task = ModuleTask(AdaptedNetwork(network, adapters), classes=world.classes, dtype=torch.float64)
    chosen = with_rule(method or catalog.fedavg(), rule, ranks, 2.0)
    return settings_for(chosen, world, task, more.pop("optimizer", None), **more)


def full(own: Settings, model: Any) -> dict[str, Tensor]:
    """The plain network's tensors."""
    task: Any = own.task
    return merged(task.module, task.export(model))


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a if a[name].is_floating_point())


# ---- engines -------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", [dense, convolutional, Attending])
@pytest.mark.parametrize(
    ("rule", "ranks"),
    [("plain", EQUAL), ("ffa", EQUAL), ("stack", UNEQUAL), ("svd", UNEQUAL), ("svd", EQUAL)],
)
def test_engines_agree(rule: str, ranks: Ranks, network: Any) -> None:
    own = settings(rule, ranks, network=network)
    one, other = (play(own, engine, 3)[0].models[0] for engine in (Loop(), Stacked()))
    assert apart(full(own, one), full(own, other)) < 1e-9
    assert apart(full(own, one), full(own, own.task.initial(3))) > 1e-3


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.5, weight_decay=0.01), Adam()])
@pytest.mark.parametrize("rule", ["stack", "svd"])
def test_what_is_beyond_a_members_rank_stays_zero(rule: str, optimizer: Any) -> None:
    """A member of rank 1 trains as if there were no larger ranks: alone, its round is the one of a
    federation of that rank."""
    first = SmallWorld(clients=1, dtype=torch.float64)
    narrow = settings(rule, Ranks(1), world=first, optimizer=optimizer, lr=0.02)
    wide = settings(rule, Ranks(3, ((0, 1),)), world=first, optimizer=optimizer, lr=0.02)
    small, large = narrow.task.initial(3), wide.task.initial(3)
    a, b = (own.task.layout.unflatten(m.theta) for own, m in ((narrow, small), (wide, large)))
    for name in a:  # the same first rows of A
        if name.endswith("lora_A"):
            a[name].copy_(b[name][:1])
    own = narrow.task.layout.flatten(a)
    one = play(with_start(narrow, small._replace(theta=own)), Loop(), 1)[0].models[0]
    other = play(with_start(wide, large), Loop(), 1)[0].models[0]
    assert apart(full(narrow, one), full(wide, other)) < 1e-12


def with_start(own: Settings, model: Any) -> Settings:
    from dataclasses import replace

    return replace(own, start=model)


# ---- what the specification promises -------------------------------------------------------------
@pytest.mark.parametrize("world", [SmallWorld(clients=1), Alike(clients=3)], ids=["one", "alike"])
def test_of_one_kind_of_client_plain_is_stack(world: SmallWorld) -> None:
    world = type(world)(clients=world.clients, dtype=torch.float64)
    models = []
    for rule in ("plain", "stack"):
        own = settings(rule, EQUAL, world=world, shuffle=False, batch=None)
        models.append(full(own, play(own, Loop(), 1)[0].models[0]))
    assert apart(*models) < 1e-12


def test_ffa_keeps_a_to_the_bit() -> None:
    own = settings("ffa", EQUAL)
    task: Any = own.task
    before, after = (
        task.export(m) for m in (own.task.initial(3), play(own, Loop(), 3)[0].models[0])
    )
    names = [name for name in before if name.endswith("lora_A")]
    assert len(names) == 2 and all(torch.equal(before[n], after[n]) for n in names)
    assert not any(name.endswith("lora_A") for name in own.task.layout.names)


@pytest.mark.parametrize(("rule", "error"), [("stack", 0.0), ("svd", 0.0)])
def test_large_ranks_leave_nothing_out(rule: str, error: float) -> None:
    """No layer has more than 5 singular values."""
    report = play(settings(rule, Ranks(5)), Loop(), 2)[1][-1]
    assert float(report.figures["adapter_error"]) == pytest.approx(error, abs=1e-12)


def test_what_svd_leaves_out_is_what_it_says() -> None:
    """Beside ``stack``, whose mean is exact, from the same start."""
    exact, cut = settings("stack", Ranks(1)), settings("svd", Ranks(1))
    federations = [play(own, Loop(), 1) for own in (exact, cut)]
    whole, part = (
        full(own, f[0].models[0]) for own, f in zip((exact, cut), federations, strict=True)
    )
    weights = [name for name in whole if name.endswith("weight") and whole[name].dim() == 2]
    found = sum(float((whole[name] - part[name]).square().sum()) for name in weights) ** 0.5
    said = float(federations[1][1][0].figures["adapter_error"])
    assert found == pytest.approx(said, rel=1e-9) and said > 1e-6


@pytest.mark.parametrize("rule", ["plain", "ffa", "svd", "stack"])
def test_the_base_is_untouched(rule: str) -> None:
    own = settings(rule, EQUAL)
    task: Any = own.task
    before, after = (
        task.export(m) for m in (own.task.initial(3), play(own, Loop(), 2)[0].models[0])
    )
    for name in ("0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"):
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["2.running_mean"], after["2.running_mean"])  # averaged, as ever


@pytest.mark.parametrize(
    ("rule", "ranks", "down", "up"),
    [
        # 6 -> 5 and 5 -> 3 are 11 and 8 numbers of rank one; 10 running statistics
        ("plain", EQUAL, [48] * 4, [48] * 4),
        ("ffa", EQUAL, [26] * 4, [26] * 4),
        ("svd", UNEQUAL, [67, 29, 48, 29], [67, 29, 48, 29]),
        ("stack", UNEQUAL, [143] * 4, [67, 29, 48, 29]),
    ],
)
def test_bytes_are_those_of_the_ranks(
    rule: str, ranks: Ranks, down: list[int], up: list[int]
) -> None:
    first, second = play(settings(rule, ranks), Stacked(), 2)[1]
    assert (second.bytes_down, second.bytes_up) == (8 * sum(down), 8 * sum(up))
    once = 35 + 10 + 18 + (22 if rule == "ffa" else 0)  # the base; A0 where it is frozen, too
    assert first.bytes_down - second.bytes_down == 8 * 4 * once


def test_what_is_trained_beside_adapters_is_averaged() -> None:
    """The rules that act on products leave the rest to the mean."""
    world = SmallWorld(clients=1, dtype=torch.float64)
    found = []
    for rule in ("plain", "svd"):
        own = settings(rule, Ranks(5), head=True, world=world)
        found.append(own.task.export(play(own, Loop(), 1)[0].models[0])["3.weight"])
    assert torch.equal(*found)


# ---- methods -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["scaffold", "flash", "ditto", "fedinit", "special_c", "moon"])
@pytest.mark.parametrize("rule", ["plain", "ffa"])
def test_any_method_works_over_adapters_that_are_averaged(name: str, rule: str) -> None:
    own = settings(rule, EQUAL, catalog.METHODS[name]())
    one, other = (play(own, engine, 2)[0].models[0].theta for engine in (Loop(), Stacked()))
    assert float((one - other).norm() / other.norm()) < 1e-9


@pytest.mark.parametrize("rule", ["stack", "svd"])
@pytest.mark.parametrize("name", ["fedprox", "fedsam"])
def test_methods_that_act_within_a_round_work_over_products(name: str, rule: str) -> None:
    own = settings(rule, EQUAL, catalog.METHODS[name]())
    one, other = (play(own, engine, 2)[0].models[0].theta for engine in (Loop(), Stacked()))
    assert float((one - other).norm() / other.norm()) < 1e-9


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"method": "scaffold", "adapters": {"rule": "svd"}}, "ControlVariate acts on the vector"),
        ({"method": "fedadam", "adapters": {"rule": "stack"}}, "ServerAdaptive acts on the vector"),
        (
            {"method": "fedprox", "adapters": {"rule": "svd", "rank": {"default": 2, 1: 4}}},
            "Proximal looks at the model that was received",
        ),
        ({"adapters": {"rank": {"default": 2, 1: 4}}}, "rule plain averages adapters of one rank"),
        ({"adapters": {"rule": "svd", "rank": {0: 4}}}, "adapters.rank: member 1 has none"),
        ({"adapters": {"rule": "svd", "rank": {"default": 4, 77: 4}}}, "member 77 is there in no"),
        ({"adapters": {"rule": "svd", "rank": {"anna": 4}}}, "by members' numbers or default"),
        ({"adapters": {"rule": "mean"}}, "adapters.rule must be plain, ffa, stack or svd"),
        ({"adapters": {"rank": 0}}, "adapters.rank must be a whole number of at least 1"),
        ({"adapters": {"targets": ["hed"]}}, "the network has no layer 'hed'"),
        ({"adapters": {"names": "lora"}}, "adapters.names is not known"),
        ({"method": "fedcil", "adapters": {}}, "'fedcil' trains a network of its own making"),
        ({"problem": "quadratic", "adapters": {}}, "adapters are for networks"),
    ],
)
def test_what_cannot_be_is_one_sentence(config: dict[str, Any], sentence: str) -> None:
    world = {"name": "static", "members": 3, "rounds": 2, "partition": "iid"}
    base = {} if "problem" in config else {"world": world}
    with pytest.raises(UserError, match=sentence):
        build(from_mapping({**base, **config}))


# ---- a start from a file -------------------------------------------------------------------------
def test_the_base_comes_from_the_file_of_a_plain_network(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from shoal import models

    network = models.build("mlp", (64,), 10, hidden=(8,))
    save_file(network.state_dict(), tmp_path / "base.safetensors")
    config = {
        "world": {"name": "static", "members": 3, "rounds": 1, "partition": "iid"},
        "model": {"name": "mlp", "hidden": [8], "init": str(tmp_path / "base.safetensors")},
        "adapters": {},
    }
    plan = build(from_mapping(config))
    task: Any = plan.settings.task
    found = merged(task.module, task.export(plan.initial))
    assert all(torch.equal(found[n], t) for n, t in network.state_dict().items())
    config["model"] = {**config["model"], "hidden": [9]}
    with pytest.raises(UserError, match="needs"):
        build(from_mapping(config))


def test_a_config_without_adapters_is_what_it_was() -> None:
    assert "adapters" not in from_mapping({}).complete()
    own = from_mapping({"adapters": {"rule": "svd", "rank": {"default": 2, 1: 4}}})
    again = from_mapping(own.complete())
    assert again.complete() == own.complete()
