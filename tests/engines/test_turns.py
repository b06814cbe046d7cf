"""Runs that take turns on one engine get the bits each would get alone."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

from shoal import catalog
from shoal.engines import chunking, vectorized
from shoal.engines.base import Results
from shoal.engines.chunk import Chunk
from shoal.engines.compiled import Compiled
from shoal.engines.turns import Turns
from shoal.engines.vectorized import Vectorized
from shoal.federation import Settings
from shoal.method import Method


@pytest.fixture(autouse=True)
def small_steps_are_shared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunking, vectorized):
        monkeypatch.setattr(module, "SMALL_STEP", 0)


def settings_of(method: Method) -> Settings:
    world = SmallWorld()
    return settings_for(method, world, small_task(world=world))


def play_in_turns(engine: Turns, runs: list[Settings]) -> list[list[Tensor]]:
    found = [list[Tensor]() for _ in runs]

    def run(number: int, settings: Settings) -> None:
        with engine.baton:
            found[number] += play(settings, engine.seat(), 3)[2]

    threads = [Thread(target=run, args=pair) for pair in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("method", [catalog.fedavg(), catalog.scaffold()], ids=lambda m: m.name)
def test_three_seeds_in_turns_have_the_bits_of_three_alone(method: Method) -> None:
    runs = [replace(settings_of(method), seed=seed) for seed in (0, 1, 2)]
    found = play_in_turns(Turns(threads=2), runs)
    for one, models in zip(runs, found, strict=True):
        alone = play(one, Vectorized(threads=2), 3)[2]
        assert all(torch.equal(a, b) for a, b in zip(models, alone, strict=True))


def test_others_may_work_while_clients_train(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, had, train = Turns(threads=2), list[bool](), vectorized.run_chunk

    def watched(compiled: Compiled, chunk: Chunk) -> list[Results]:
        had.append(engine.baton.acquire(timeout=20))
        if had[-1]:
            engine.baton.release()
        return train(compiled, chunk)

    monkeypatch.setattr(vectorized, "run_chunk", watched)
    play_in_turns(engine, [settings_of(catalog.fedavg())])
    assert had and all(had)


def test_a_run_that_fails_does_not_keep_the_baton(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Turns(threads=2)

    def broken(compiled: Compiled, chunk: Chunk) -> list[Results]:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(vectorized, "run_chunk", broken)
    with pytest.raises(RuntimeError, match="no memory"), engine.baton:
        play(settings_of(catalog.fedavg()), engine.seat(), 1)
    assert not engine.baton.locked()
