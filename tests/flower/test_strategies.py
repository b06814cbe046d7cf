"""Plug-ins for Flower apps of one's own: the guard, and server rules as plain strategies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower.local_grid import LocalGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.task import QuadraticTask
from shoal.core.types import ClientData, Pool, Shift
from shoal.core.world_protocol import Moment
from shoal.engines.api import Results
from shoal.engines.client_round import ClientProgram
from shoal.flower import GuardedStrategy, ServerRule, flash, server_optimizer, special
from shoal.methods.parts.local_optimizers import Sgd
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Settings

MOVES = ((1.0, -2.0, 0.5), (0.5, 1.0, -1.0), (-0.25, 3.0, 2.0))  # what each client adds


class Plain(LocalGrid):
    """Clients that add fixed numbers to what they get; ``odd`` replaces one client's answer."""

    odd: Any = None

    def get_node_ids(self) -> Iterable[int]:
        return [0, 1, 2]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for place, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"m{place}"
            node = message.metadata.dst_node_id
            sent = message.content["arrays"]
            arrays = {"w": sent["w"].numpy() + np.float32(MOVES[node]), "n": sent["n"].numpy() + 1}
            weight: Any = 4 + node
            if self.odd is not None and node == 1:
                arrays, weight = self.odd(arrays)
            content = RecordDict(
                {
                    "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in arrays.items()}),
                    "metrics": MetricRecord({"num-examples": weight}),
                }
            )
            reply = Message(content, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies


def run(strategy: Strategy, rounds: int, grid: Plain | None = None) -> dict[str, Any]:
    first = {"w": Array(np.zeros(3, np.float32)), "n": Array(np.zeros((), np.int64))}
    result = strategy.start(grid or Plain(), ArrayRecord(first), rounds)
    assert result.arrays is not None
    return {name: array.numpy() for name, array in result.arrays.items()}


class Adding:
    """The same clients as an engine of shoal's."""

    name = "adding"

    def train(self, order: Any) -> Any:
        for member in order.members:
            row = torch.tensor([MOVES[member.client]], dtype=order.model.theta.dtype)
            none = tuple(() for _ in order.program.method.parts)
            work = ((1,), (1,), (1,))
            yield Results(
                (member.client,), (4.0 + member.client,), row, row[:, :0], none, none, *work
            )

    def close(self) -> None: ...


class Tasks:
    """Three clients; a new domain in round 2 (the third)."""

    rounds, pad = 5, 0

    def at(self, round: int) -> Moment:
        shift = Shift(round, frozenset({"domain"})) if round == 2 else None
        return Moment(round, 0, int(round >= 2), (0, 1, 2), shift, round, 5)

    def train(self, client: int, round: int) -> ClientData:
        nothing = torch.zeros(0, dtype=torch.int64)
        return ClientData(Pool(nothing, nothing), nothing, nothing, 4.0 + client)


def embedded(name: str, settings: dict[str, Any], rounds: int) -> np.ndarray[Any, Any]:
    method = catalog.METHODS[name](**settings)
    task, world = QuadraticTask((0.0, 0.0, 0.0)), Tasks()
    program = ClientProgram(method, task, Sgd())
    uniform = method.weights == "equal"
    plan = Settings(program, world, 0, lambda m: (0.1,), uniform=uniform)  # type: ignore[arg-type]
    federation = Federation.fresh(plan, task.initial(0), world.at(0), 0.1)
    for round in range(rounds):
        before = world.at(round - 1) if round else None
        play_round(federation, plan, world.at(round), Adding(), before)  # type: ignore[arg-type]
    return federation.models[0].theta.numpy()


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_server_optimizers_are_the_catalogs(name: str) -> None:
    found = run(server_optimizer(name), 5)
    assert np.allclose(found["w"], embedded(name, {}, 5), atol=1e-5)
    assert found["w"].dtype == np.float32 and found["n"].dtype == np.int64 and found["n"] == 5


def test_flash_and_special_are_the_catalogs() -> None:
    assert np.allclose(run(flash(), 5)["w"], embedded("flash", {"gamma": None}, 5), atol=1e-5)
    assert np.allclose(run(special(tasks=[3]), 5)["w"], embedded("special", {}, 5), atol=1e-5)
    assert not np.allclose(run(special(tasks=[]), 5)["w"], run(special(tasks=[3]), 5)["w"])


def test_a_method_that_needs_its_clients_is_refused() -> None:
    with pytest.raises(UserError, match="needs its clients"):
        ServerRule(catalog.METHODS["scaffold"]())


ODD = {
    "nan": lambda arrays: ({**arrays, "w": arrays["w"] * np.nan}, 5),
    "shape": lambda arrays: ({**arrays, "w": np.zeros(30, np.float32)}, 5),
    "keys": lambda arrays: ({**arrays, "more": np.zeros(1)}, 5),
    "zero": lambda arrays: (arrays, 0),
    "weight": lambda arrays: (arrays, float("nan")),
    "far": lambda arrays: ({**arrays, "w": arrays["w"] + 1e6}, 5),
}


@pytest.mark.parametrize("case", ODD)
def test_guard_drops_what_would_spoil_a_round(case: str) -> None:
    grid, guarded = Plain(), GuardedStrategy(FedAvg(fraction_evaluate=0.0), norm=100.0)
    grid.odd = ODD[case]
    found = run(guarded, 2, grid)
    good = (4 * np.float32(MOVES[0]) + 6 * np.float32(MOVES[2])) / 10
    assert np.allclose(found["w"], 2 * good, atol=1e-5) and guarded.refused == {1: 2}


def test_below_quorum_nothing_changes() -> None:
    grid, guarded = Plain(), GuardedStrategy(FedAvg(fraction_evaluate=0.0), quorum=0.9)
    grid.odd = ODD["nan"]
    assert np.array_equal(run(guarded, 2, grid)["w"], np.zeros(3))


@pytest.mark.parametrize("kind", ["flower", "shoal"])
def test_resumed_equals_undisturbed(tmp_path: Path, kind: str) -> None:
    """Round, model and the strategy's own moments; bias correction sees the right round."""

    def strategy() -> Strategy:
        return FedAdam(fraction_evaluate=0.0) if kind == "flower" else flash()

    whole = run(GuardedStrategy(strategy()), 6)
    run(GuardedStrategy(strategy(), folder=tmp_path), 3)
    again = run(GuardedStrategy(strategy(), folder=tmp_path), 6)
    # Flower draws the order of nodes anew in every run, and sums depend on it in the last bit
    assert np.allclose(whole["w"], again["w"], rtol=1e-6, atol=0)
    finished = run(GuardedStrategy(strategy(), folder=tmp_path), 6)
    assert np.array_equal(again["w"], finished["w"])


def test_server_steps_leave_running_statistics_and_counters_alone() -> None:
    """A server step could make a variance negative: buffers get the mean, counters the largest."""

    class Normalised(Plain):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            for reply in replies:
                node = reply.metadata.src_node_id
                arrays = reply.content["arrays"]
                arrays["bn.running_var"] = Array(np.full(2, 0.1 * (node + 1), np.float32))
                arrays["n"] = Array(np.asarray(10 * (node + 1)))
            return replies

    first = {
        "w": Array(np.zeros(3, np.float32)),
        "bn.running_var": Array(np.ones(2, np.float32)),
        "n": Array(np.zeros((), np.int64)),
    }
    result = server_optimizer("fedadam", {"eta_g": 5.0}).start(Normalised(), ArrayRecord(first), 2)
    assert result.arrays is not None
    # samples 4, 5, 6
    wanted = (4 * 0.1 + 5 * 0.2 + 6 * 0.3) / 15
    assert np.allclose(result.arrays["bn.running_var"].numpy(), wanted)
    assert int(result.arrays["n"].numpy()) == 30
