"""Figures that prepare rows come from all members' training rows, and are the simulator's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import torch

pytest.importorskip("flwr")

from flower.local_grid import LocalGrid, TwistedNode, serve, some_keys

from shoal.cli import call
from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.flower.agreement import Agreement, load_agreement
from shoal.flower.apps import data_of, write_app
from shoal.flower.masking import Secure
from shoal.flower.messages import FiguresReply
from shoal.flower.node.figures import UnpreparedRows
from shoal.flower.operations.up import FederationFolder, UpOptions, _write_data, data_file
from shoal.flower.preparation import from_pieces, packed_json, to_pieces
from shoal.flower.privacy import Privacy
from shoal.flower.server.members import MemberRegistry

TOWNS = ("Aachen", "Bonn", "Celle", "Delft")
WORDS = ("warm", "cold", "wet", "dry", "late", "early", "full", "empty")
Y: dict[str, Any] = {"ill": {"y": "ill"}, "cost": {"y": "cost"}}


def columns(rows: int, seed: int) -> dict[str, Any]:
    """A table of a member: others' values are not all among its own."""
    draw = np.random.default_rng(seed)
    known = TOWNS[seed % 4 : seed % 4 + 2] or TOWNS
    when = np.datetime64("2026-01-01") + draw.integers(0, 300, rows).astype("timedelta64[D]")
    income = 50_000 + 9_000 * draw.normal(size=rows) + 5_000 * seed
    income[0] = np.nan
    return {
        "age": draw.integers(20, 80, rows),
        "seen": 1.7e9 + 1000.0 * draw.normal(size=rows),
        "income": income,
        "same": np.full(rows, 0.1),
        "town": draw.choice(known, rows),
        "when": when,
        "note": [" ".join(draw.choice(WORDS[seed : seed + 4], 3)) for _ in range(rows)],
        "ill": draw.choice(["no", "yes"], rows),
        "cost": 100.0 + 20.0 * draw.normal(size=rows),
    }


def written(folder: Path, y: str, members: int = 4) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for member in range(members):
        own = columns(40 + 10 * member, member)
        own = {name: values for name, values in own.items() if name in (y, *INPUTS)}
        files.append(folder / f"{member}.csv")
        csv.write_csv(pa.table(own), files[-1])
    return files


INPUTS = ("age", "seen", "income", "same", "town", "when", "note")
NUMBERS = ["age", "seen", "income", "same"]
DATE = {"column": "when", "features": ["month", "weekday", "elapsed"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "standard": {"y": "ill", "date": DATE, "text": {"column": "note", "vocabulary": 7}},
    "minmax": {"y": "cost", "date": DATE, "leave_out": ["note"], "normalize": "minmax"},
    "numbers": {"y": "cost", "x": NUMBERS},
    "labels": {"y": "ill", "x": NUMBERS},
    "tokens": {
        "y": "ill",
        "x": "note",
        "text": {"column": "note", "as": "tokens", "vocabulary": 8, "length": 4},
    },  # fmt: skip
}


def pooled(files: list[Path], folder: Path, marked: list[Any], options: dict[str, Any]) -> Any:
    """What the simulator makes of all rows, those that members hold out marked as test rows."""
    tables = [csv.read_csv(file) for file in files]
    whole = pa.concat_tables(tables).append_column("test", pa.array(np.concatenate(marked)))
    csv.write_csv(whole, folder / "pooled.csv")
    return load("files", path=str(folder / "pooled.csv"), test="test", **options)


class Club:
    """A federation of tables, in one process."""

    def __init__(self, folder: Path, options: dict[str, Any], members: int = 4, **more: Any):
        y = options["y"]
        self.folder, self.files = folder, written(folder / "rows", y, members)
        example = folder / "example.csv"  # the author's own rows: of its form, and none of theirs
        own = {n: v for n, v in columns(60, 2).items() if n in (y, *INPUTS)}
        csv.write_csv(pa.table(own), example)
        secure = more.pop("secure", None)
        model: Any = {"name": "mlp", "hidden": 5}
        if options.get("x") == "note":
            model = {"name": "char_lstm"}
        config = from_mapping({
            "data": {"name": "files", "path": str(example), **options},
            "model": model, "local": {"epochs": 1, "batch": 16, "lr": 0.05},
            "world": {"name": "static", "members": 2, "rounds": 2}, "seed": 3, **more,
        })  # fmt: skip
        self.path = write_app(folder / "app", config, secure=secure)
        self.what = load_agreement(self.path)
        self.grid, self.keys, self.said = LocalGrid(), some_keys(folder, 8), list[str]()
        for member in range(members):
            self.join(member)

    def join(self, member: int) -> TwistedNode:
        data = data_of(str(self.files[member]), None, self.what)
        home, name = self.folder / f"home-{member}", f"node-{member}"
        node = TwistedNode(self.what, data, self.keys[member], name, home)
        self.grid.nodes[100 + member] = node
        roster = MemberRegistry(self.folder / "server" / "roster.json")
        roster.add(name, self.keys[member].public)
        return node

    def server(self, **rules: Any) -> Any:
        given = {"num_server_rounds": 2, "start_members": 3, **rules}
        return serve(self.grid, self.what, self.folder, self.said, **given)

    def rows(self, member: int) -> UnpreparedRows:
        data = self.grid.nodes[100 + member].data
        assert isinstance(data, UnpreparedRows)
        return data


@pytest.mark.parametrize("case", OPTIONS)
def test_figures_are_the_simulators(case: str, tmp_path: Path) -> None:
    club = Club(tmp_path, OPTIONS[case])
    server = club.server()
    server.play()
    held = [club.rows(m).held for m in range(4)]
    expected = pooled(club.files, tmp_path, held, OPTIONS[case])
    form = server.agreement.expects
    assert form.shape == expected.shape and form.vocabulary == expected.vocabulary
    own = [club.grid.nodes[100 + m].ready.train for m in range(4)]
    x = torch.cat([one.pool.x[one.rows] for one in own])
    y = torch.cat([one.labels for one in own])
    assert torch.equal(y, expected.train.y)
    if form.known is not None:
        assert form.known.tokens == expected.known.tokens and torch.equal(x, expected.train.x)
        return
    assert form.columns.names == expected.columns.names
    assert torch.allclose(x, expected.train.x, rtol=0, atol=2e-6)
    assert np.allclose(form.unit, expected.unit, rtol=1e-6)
    if case == "standard":
        assert np.allclose(form.columns.width, expected.columns.width, rtol=1e-6)
        assert float(x[:, 1].std(correction=0)) == pytest.approx(1, abs=1e-4)
        assert x[:, form.columns.names.index("same")].abs().max() < 1e-12
    if form.target == "number":
        task = server.player.plan.settings.task
        spread = expected.train.y.double().var(0, correction=0)
        assert np.allclose(task.variances, spread, rtol=1e-6)


def test_figures_under_masks_are_the_same(tmp_path: Path) -> None:
    plain = Club(tmp_path / "plain", OPTIONS["numbers"])
    plain.server().play()
    club = Club(tmp_path / "masked", OPTIONS["numbers"], secure=Secure(3))
    seen: list[FiguresReply] = []
    for node in club.grid.nodes.values():
        tell = node._tell
        node._tell = lambda frame, tell=tell: seen.append(tell(frame)) or seen[-1]  # type: ignore
    club.server(start_members=4).play()
    told = [json.loads((f / "server" / "preparation.json").read_text())
            for f in (plain.folder, club.folder)]  # fmt: skip
    assert told[0] == told[1] and told[0]["rows"] > 100
    assert len(seen) == 4 and not any(reply.found.numel() for reply in seen)
    age = [abs(float(from_pieces(reply.sums)[1])) for reply in seen]
    assert all(total > 1e9 for total in age)  # no age of anybody's: it is under a mask


@pytest.mark.parametrize(
    ("case", "reason"),
    [("standard", "which values column 'town' has"), ("minmax", "which values column 'town' has"),
     ("tokens", "which words column 'note' has")],
)  # fmt: skip
def test_what_is_no_sum_is_not_told_under_masks(case: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        Club(tmp_path, OPTIONS[case], secure=Secure(3))
    assert not (tmp_path / "app").exists()
    ends = {**OPTIONS["numbers"], "normalize": "minmax"}
    with pytest.raises(UserError, match="the smallest and largest value of 'age'"):
        Club(tmp_path, ends, secure=Secure(3))


def test_private_members_tell_nothing(tmp_path: Path) -> None:
    club = Club(tmp_path, OPTIONS["numbers"])
    private = replace(club.what, privacy=Privacy(1.0, 1.0, 3))
    with pytest.raises(UserError, match="privacy: expects.table needs sums over members' rows"):
        private.plan()
    with pytest.raises(UserError, match="privacy: expects.table needs sums"):
        TwistedNode(private, club.rows(0), club.keys[0], "n", tmp_path / "n")
    plain = from_mapping({"loss": {"class_weights": "balanced"}})
    with pytest.raises(UserError, match="privacy: loss.class_weights: balanced needs sums"):
        Agreement(replace(club.what.expects, table=None, shape=(4,), target="class", classes=2,
                          answer=()), plain, Privacy(1.0, 1.0, 3)).plan()  # fmt: skip


def test_who_comes_late_and_a_server_that_returns_use_the_figures(tmp_path: Path) -> None:
    club = Club(tmp_path, OPTIONS["standard"], members=3)
    club.files = written(tmp_path / "rows", "ill", 4)
    asked: list[str] = []
    for name, node in club.grid.nodes.items():
        tell = node._tell
        node._tell = lambda f, n=name, t=tell: asked.append(str(n)) or t(f)  # type: ignore
    club.server().play()
    figures = (tmp_path / "server" / "preparation.json").read_bytes()
    late = club.join(3)
    late._tell = None  # type: ignore[assignment,method-assign]
    again = club.server(num_server_rounds=4, start_members=4, min_members=4)
    again.play()
    assert sorted(asked) == ["100", "101", "102"]
    assert (tmp_path / "server" / "preparation.json").read_bytes() == figures
    assert late.ready.train.pool.x.shape[1:] == again.agreement.expects.shape
    names = again.agreement.expects.columns.names
    assert "town=Aachen" in names  # which this member has, and others'
    record = json.loads((tmp_path / "server" / "rounds.jsonl").read_text().splitlines()[-1])
    assert record["accepted"] == [0, 1, 2, 3]
    restarted = TwistedNode(club.what, club.rows(3), club.keys[3], "node-3", late.home)
    assert torch.equal(restarted.ready.train.pool.x, late.ready.train.pool.x)


HUGE = 1 << 200


def sums(change: Any) -> Any:
    """A reply whose sums are others."""

    def changed(reply: FiguresReply) -> FiguresReply:
        found = from_pieces(reply.sums)
        change(found)
        return replace(reply, sums=to_pieces(found))

    return changed


def told(**more: Any) -> Any:
    return lambda reply: replace(reply, found=packed_json(more))


HOSTILE: dict[str, tuple[Any, str]] = {
    "nan": (lambda r: replace(r, sums=torch.full((len(r.sums),), np.nan)), "type torch.float32"),
    "short": (lambda r: replace(r, sums=r.sums[:-1]), "sums of shape"),
    "pieces": (lambda r: replace(r, sums=r.sums - 1), "sums that are no numbers"),
    "negative count": (sums(lambda s: s.__setitem__(0, s[0] - HUGE)), "values of 'age' in"),
    "too many rows": (sums(lambda s: s.__setitem__(0, s[0] + 100)), "values of 'age' in"),
    "half a row": (sums(lambda s: s.__setitem__(0, s[0] / 3)), "values of 'age' in"),
    "no such squares": (sums(lambda s: s.__setitem__(1, s[1] * 10)), "sum of squares of 'age'"),
    "negative squares": (sums(lambda s: s.__setitem__(2, -s[2])), "sum of squares of 'age'"),
    "negative class": (sums(lambda s: s.__setitem__(-1, s[-1] - 1000)), "rows of a class"),
    "other columns": (told(secret=["a"]), "nobody asked for"),
    "no list": (told(town="Bonn"), "no values of column 'town'"),
    "many values": (told(town=[str(i) for i in range(101)]), "no values of column 'town'"),
    "long value": (told(town=["a" * 300]), "no values of column 'town'"),
    "huge vocabulary": (told(note=[[f"w{i}", 1, 1] for i in range(100_001)]), "no words of"),
    "negative word": (told(note=[["warm", -4, -4]]), "no words of column 'note'"),
    "word in more rows than there are": (told(note=[["warm", 9000, 9000]]), "no words of"),
    "escape": (told(note=[["\x1b[2J", 1, 1]]), "no words of column 'note'"),
    "infinite end": (
        lambda r: replace(r, found=torch.tensor(list(b'{"when elapsed":[0.0,1e999]}')).byte()),
        "no ends of column 'when elapsed'",
    ),
    "nan end": (
        lambda r: replace(r, found=torch.tensor(list(b'{"when elapsed":[NaN,NaN]}')).byte()),
        "no JSON",
    ),
    "deep": (lambda r: replace(r, found=torch.tensor(list(b"[" * 9000)).byte()), "no JSON"),
    "bytes": (lambda r: replace(r, found=torch.tensor([255, 0]).byte()), "no JSON"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_figures_are_left_out(case: str, tmp_path: Path) -> None:
    twist, reason = HOSTILE[case]
    club = Club(tmp_path, OPTIONS["standard"])
    liar = club.grid.nodes[101]
    tell = liar._tell
    liar._tell = lambda frame: twist(tell(frame))  # type: ignore[assignment,method-assign]
    server = club.server(start_members=4)
    said = [text for text in club.said if "node-1" in text and "refused" in text]
    assert said and reason in said[0], club.said
    honest = [club.rows(m).sizes[0] for m in (0, 2, 3)]
    assert server.agreement.expects.learnt.rows == sum(honest)


def test_a_node_takes_no_figures_that_do_not_fit(tmp_path: Path) -> None:
    from shoal.flower.messages import NodeRefusedError, Welcome

    club = Club(tmp_path, OPTIONS["standard"])
    club.server().play()
    good = json.loads((tmp_path / "server" / "preparation.json").read_text())
    node = club.grid.nodes[100]
    for path, value in (
        (("numbers", "age"), [1.0, -1.0]),
        (("numbers", "age"), [1.0, "wide"]),
        (("numbers",), {}),
        (("values", "town"), []),
        (("values", "town"), ["a"] * 1000),
        (("values", "town"), [7]),
        (("words", "note"), [["warm", 0]]),
        (("words", "note"), [["warm", 10**9]]),
        (("words", "note"), [[f"w{i}", 1] for i in range(9)]),
        (("counts",), [1]),
        (("rows",), -1),
    ):
        bad = json.loads(json.dumps(good))
        place = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        hello = Welcome("n", club.what.digest, torch.zeros(1), packed_json(bad))
        with pytest.raises(NodeRefusedError, match="do not fit the agreement"):
            node._begin(hello)


def test_a_member_sees_what_it_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    club = Club(tmp_path, OPTIONS["standard"])
    given = ["flower", "node", "--federation", str(club.path), "--key", str(tmp_path / "key-0")]
    given += ["--home", str(tmp_path / "h"), "--check", "--data"]
    assert call([*given, str(club.files[0])]) == 0
    out = capsys.readouterr().out
    assert "this member tells the server: counts, sums and sums of squares of age, seen" in out
    assert "the values of town" in out and "the words of note" in out
    for text, reason in (("age,ill\n1,no\n", "no column 'seen'"), ("", "cannot be read|empty")):
        (tmp_path / "bad.csv").write_text(text)
        assert call([*given, str(tmp_path / "bad.csv")]) == 2
        import re

        assert re.search(reason, capsys.readouterr().err)


def test_loss_weights_are_balanced_by_all_members_rows(tmp_path: Path) -> None:
    club = Club(tmp_path, {**OPTIONS["labels"]}, loss={"class_weights": "balanced"})
    server = club.server(start_members=4)
    counts = torch.bincount(torch.cat([
        club.rows(m).y[torch.from_numpy(~club.rows(m).held)] for m in range(4)]))  # fmt: skip
    assert server.agreement.expects.learnt.counts == tuple(counts.tolist())
    rows = server.player.plan.settings.task.rows
    logits, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    weights = counts.sum() / (2 * counts)
    assert torch.allclose(rows(logits, labels), weights * np.log(2), rtol=1e-6)
    server.play()


@pytest.mark.parametrize("case", ["standard", "labels"])
def test_members_on_this_machine_get_rows_as_they_were_written(case: str, tmp_path: Path) -> None:
    """Not as the author's own figures have prepared them."""
    club = Club(tmp_path, OPTIONS[case])
    place = FederationFolder(tmp_path / "up")
    up = UpOptions(str(tmp_path / "app"), 2, "127.0.0.1", 1, False, {})
    _write_data(place, up)
    whole = csv.read_csv(tmp_path / "example.csv").to_pandas()
    given = [parquet.read_table(data_file(place, i)).to_pandas() for i in range(2)]
    for name in NUMBERS:
        every = np.concatenate([one[name] for one in given])
        known = set(whole[name].dropna())
        assert len(every) > 40 and set(every[~np.isnan(every)]) <= known
    rows = data_of(str(data_file(place, 0)), None, club.what)
    assert isinstance(rows, UnpreparedRows)
    assert sum(rows.sizes) == len(given[0]) and set(rows.y.tolist()) == {0, 1}
