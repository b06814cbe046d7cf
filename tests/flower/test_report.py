"""What reads a run directory reads that of a real federation as well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("flwr")

from flower.local_grid import Small

from shoal.cli import call
from shoal.reports.notebook import Run
from shoal.reports.page_data import read_page
from shoal.reports.watch.runs import Runs
from shoal.runs.directory import RunDir


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six rounds of SCAFFOLD: a member leaves after two, comes back after four; one lies once."""
    small = Small(tmp_path, ["scaffold", {"dynamic_init": {"R": 10}}])
    server = small.server(num_server_rounds=6)
    small.after(server, 1, lambda: small.grid.down.add(101))
    small.after(server, 3, lambda: small.grid.down.clear())
    liar = small.grid.nodes[103]

    def lie() -> None:
        liar.twist = lambda done: replace(done, delta=done.delta * float("nan"))

    small.after(server, 4, lie)
    server.play()
    return tmp_path / "server"


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_members_have_the_names_of_the_roster(run: Path) -> None:
    members = json.loads((run / "members.json").read_text())
    names = [members[str(m)]["name"] for m in range(len(members))]
    assert json.loads((run / "world.json").read_text())["names"] == names == read_page(run)["names"]
    for record in records(run):
        assert record["cohort_names"] == [names[m] for m in record["cohort"]]
    table = pq.read_table(run / "clients.parquet").to_pylist()
    assert {(row["client"], row["name"]) for row in table} == set(enumerate(names))


def test_page(run: Path) -> None:
    page, told = read_page(run), records(run)
    assert page["source"] == "real" and page["engine"] == "flower" and page["state"] == "finished"
    assert page["method"] == "scaffold + dynamic_init" and page["rounds"] == {
        "done": 6,
        "planned": 6,
    }
    assert page["series"]["accuracy"]["mean"] == pytest.approx(
        [record["received"]["accuracy"] for record in told], abs=1e-4
    )
    assert [shift["round"] for shift in page["shifts"]] == [2, 4]
    here = page["timeline"]["here"]
    assert here[1] == "909" and here[0] == "999"  # until round 2, until round 4, to the end
    assert page["guard"] == {
        "total": 1,
        "events": [{"round": 5, "client": 3, "reason": "not finite"}],
    }
    assert page["members"]["of"] == "accuracy" and page["members"]["clients"] == 5
    assert page["scored_on"].startswith("members: own validation rows")
    assert not set(page["parts"]) & {"accepted", "received", "source"}


def test_a_record_has_what_a_simulation_writes(run: Path, tmp_path: Path) -> None:
    config = {
        "model": {"name": "linear"},
        "data": "digits",
        "world": {"name": "static", "members": 3, "rounds": 2},
        "local": {"epochs": 1, "batch": 32, "lr": 0.1},
        "method": ["scaffold", {"dynamic_init": {"R": 10}}],
    }
    (tmp_path / "simulated.yaml").write_text(json.dumps(config))
    assert call(["run", str(tmp_path / "simulated.yaml"), "-o", str(tmp_path / "simulated")]) == 0
    simulated, real = records(tmp_path / "simulated")[0], records(run)[0]
    missing = set(simulated) - set(real)
    assert missing <= {"seconds_evaluating", "own_rows"}
    assert {"source", "accepted", "received"} <= set(real) and real["source"] == "real"


def test_report_and_compare(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["report", str(run)]) == 0
    assert "scaffold" in (run / "report.html").read_text()
    assert call(["compare", str(run), str(run), "-o", str(run / "compare.png")]) == 0
    assert (run / "compare.png").stat().st_size > 1000
    assert "repetitions of one config" in capsys.readouterr().out
    assert Run(run).summary["rounds"] == 6


def test_watch(run: Path) -> None:
    (card,) = Runs(run.parent).cards()
    assert (card.name, card.state, card.done) == ("server", "finished", 6)
    assert card.method == "scaffold + dynamic_init" and card.accuracy is not None
    found = Runs(run.parent).page("server")
    assert found["page"]["source"] == "real" and found["card"]["resume"].startswith("shoal flower")


def test_only_its_server_goes_on_with_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.json").unlink()
    config = run.parent / "another.yaml"
    config.write_text("world: {name: static, members: 3, rounds: 1}\nmethod: fedavg\n")
    for args in (["resume", str(run)], ["run", str(config), "-o", str(run), "--force"]):
        capsys.readouterr()
        assert call(args) == 2
        assert "shoal flower resume" in capsys.readouterr().err
    assert RunDir(run).rounds.exists()


def test_a_directory_of_before_goes_on(tmp_path: Path) -> None:
    """Records, and the world, as versions wrote them that had a schema for real runs alone."""
    small = Small(tmp_path)
    first = small.server(num_server_rounds=4)
    small.after(first, 1, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        first.play()
    where = RunDir(tmp_path / "server")
    world = json.loads(where.world.read_text())
    old = {"rounds": world["opened"], "sizes": world["sizes"]}
    (where.path / "sessions.json").write_text(json.dumps(old))
    where.world.unlink()
    where.config.unlink()
    kept = ("round", "session", "shift", "active", "cohort", "accepted", "received", "steps",
            "samples", "epochs", "bytes_up", "bytes_down", "rejected", "seconds")  # fmt: skip
    lines = where.rounds.read_text().splitlines()
    told = [json.dumps({key: record[key] for key in kept}) for record in map(json.loads, lines)]
    padded = [one.ljust(len(line)) for one, line in zip(told, lines, strict=True)]
    where.rounds.write_text("\n".join(padded) + "\n")  # the checkpoint says how long it is
    again = small.server(num_server_rounds=4)
    again.play()
    summary = json.loads(where.summary.read_text())
    assert summary["rounds"] == 4 and summary["source"] == "real"
    assert again.world.at(0).members == (0, 1, 2, 3, 4) and again.federation.round == 4
