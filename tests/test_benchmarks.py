"""`make bench-real` on next to no work: contestants agree, and what disagrees is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import real
from benchmarks.agreement import SAME, DisagreementError, check_rounded, distance
from benchmarks.federation import rounds_of
from benchmarks.loads import LOADS, REAL
from benchmarks.player import ByHand

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["R2u", "R4.gru", "R6", "R8"])
def test_a_bare_loop_and_shoal_do_the_same_work(name: str) -> None:
    """Running statistics, unequal members, a recurrent network, a table of embeddings."""
    _same_in_float64(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADS)
def test_all_bare_loops_do_the_same_work(name: str) -> None:
    _same_in_float64(name)


def _same_in_float64(name: str) -> None:
    load = LOADS[name].tiny()
    x, y = load.data(torch.float64)
    shoal = rounds_of(load, x, y, 2, 1, torch.float64)
    bare = ByHand(load, x, y, 2, torch.float64)
    start = bare.model()
    for number in range(2):
        shoal.round(number)
        bare.round(number)
    moved = distance(bare.model(), start)
    assert moved > 0
    assert distance(shoal.model(), bare.model()) <= SAME * moved


def test_a_table_of_a_whole_command_and_of_processes_with_another_checkout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert real.main(["R7", "R10", "--tiny", "--repeats", "1", "--old", str(ROOT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("R7", "R10"):
        row = next(line.split() for line in lines if line.startswith(name))
        assert all(float(figure) > 0 for figure in row[1:6])  # time, three ratios, new / old
        assert float(row[6]) == (REAL["R7"].goal if name == "R7" else real.whole_run.GOAL)


def test_models_that_are_too_far_apart_are_no_contest() -> None:
    plain = {"w": torch.ones(4), "counted": torch.tensor(3)}
    near, far = plain | {"w": plain["w"] + 1e-5}, plain | {"w": plain["w"] + 1e-3}
    check_rounded("a network", near, plain, [])
    check_rounded("a network", far, plain, [far])  # as far as the bare loop's own formats
    with pytest.raises(DisagreementError, match="a network: in float32 shoal ends 0.001"):
        check_rounded("a network", far, plain, [near])


def test_a_name_is_a_row_of_the_table() -> None:
    assert real.chosen(["R2"]) == ["R2", "R2.20"]
    assert real.chosen(["R3.vit", "R10"]) == ["R3.vit", "R10"]
    with pytest.raises(SystemExit, match="no network 'R11'"):
        real.chosen(["R11"])
