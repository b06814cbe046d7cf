"""What is taken home answers as the run did, whoever reads it; and the card says what went in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

import shoal
from shoal import models
from shoal.cli import call
from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.data.dataset import load
from shoal.runs.exports.formats import export
from shoal.runs.exports.predict import predict
from shoal.runs.exports.trained import TrainedModel, read_model
from shoal.runs.run import DurableRun

DIGITS = load("digits")
BASE: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]},
    "world": {"name": "static", "members": 4, "rounds": 3, "partition": "iid"},
    "local": {"lr": 0.1},
    "evaluate": {"rows": "members_held_out"},
}


def played(where: Path, **changes: Any) -> Path:
    DurableRun.create(where, from_mapping({**BASE, **changes})).play()
    return where


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    adapters = {"rule": "svd", "rank": {"default": 2, "1": 4}, "alpha": 4}
    return {
        "plain": played(folder / "plain", evaluate={"rows": "test_all"}),
        "personal": played(folder / "personal", method="ditto"),
        "clusters": played(folder / "clusters", method={"hypcluster": {"k": 2}}),
        "adapters": played(folder / "adapters", adapters=adapters),
    }


def plain_network(folder: Path) -> torch.nn.Module:
    """Somebody else's: the network as its author wrote it."""
    network = models.build("mlp", (64,), 10, hidden=(16,))
    network.load_state_dict(load_file(folder / "model.safetensors"))
    return network.eval()


@torch.inference_mode()
def logits(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = network(x)
    return found[0] if isinstance(found, tuple) else found


# ---- formats -------------------------------------------------------------------------------------
def test_a_plain_network_has_the_accuracy_that_the_run_recorded(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    export(read_model(runs["plain"]), "safetensors", tmp_path / "out")
    hits = logits(plain_network(tmp_path / "out"), DIGITS.test.x).argmax(-1) == DIGITS.test.y
    last = (runs["plain"] / "rounds.jsonl").read_text().splitlines()[-1]
    assert f'"accuracy": {hits.double().mean().item()}' in last


def test_members_have_models_of_their_own(runs: dict[str, Path], tmp_path: Path) -> None:
    """Scored on each member's held-out rows, they have the accuracies of the run's table."""
    table = parquet.read_table(runs["personal"] / "clients.parquet").to_pylist()
    recorded = {row["client"]: row["accuracy"] for row in table if row["round"] == 2}
    networks = []
    for member in range(4):
        trained = read_model(runs["personal"], member=member)
        export(trained, "safetensors", tmp_path / str(member))
        networks.append(plain_network(tmp_path / str(member)))
        own = trained.plan.world.own(member, 2)  # type: ignore[attr-defined]
        x = own.pool.x[own.rows]
        hits = logits(networks[-1], x).argmax(-1) == own.labels
        assert hits.double().mean().item() == pytest.approx(recorded[member])
    first, second = (net.state_dict()["head.weight"] for net in networks[:2])
    assert not torch.equal(first, second)


def test_clusters_have_models_of_their_own(runs: dict[str, Path], tmp_path: Path) -> None:
    for cluster in range(2):
        export(
            read_model(runs["clusters"], cluster=cluster), "safetensors", tmp_path / f"{cluster}"
        )
        stored = load_file(runs["clusters"] / "model.safetensors")
        found = load_file(tmp_path / f"{cluster}" / "model.safetensors")
        assert all(torch.equal(stored[f"model_{cluster}.{n}"], t) for n, t in found.items())


def test_adapters_are_merged_into_the_plain_network(runs: dict[str, Path], tmp_path: Path) -> None:
    trained = read_model(runs["adapters"])
    export(trained, "safetensors", tmp_path / "out")
    found = logits(plain_network(tmp_path / "out"), DIGITS.test.x)
    torch.testing.assert_close(found, trained.outputs(DIGITS.test.x), atol=1e-5, rtol=1e-5)
    small = read_model(runs["adapters"], member=0)  # cut to its own rank
    assert not torch.allclose(small.outputs(DIGITS.test.x), found, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "adapters"])
def test_a_traced_program_takes_any_number_of_rows(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    trained = read_model(runs[name])
    export(trained, "torch.export", tmp_path / "out")
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    for rows in (1, 5, 300):
        x = DIGITS.test.x[:rows]
        torch.testing.assert_close(program(x), trained.outputs(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_onnx(runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'shoal[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'shoal[onnx]'")
    trained = read_model(runs["plain"])
    export(trained, "onnx", tmp_path / "out")
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    for rows in (1, 300):
        x = DIGITS.test.x[:rows]
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(found, trained.outputs(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("member", [None, 0])
def test_peft_reads_the_adapters(runs: dict[str, Path], tmp_path: Path, member: int | None) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'shoal[hf]'")
    trained = read_model(runs["adapters"], member)
    export(trained, "peft", tmp_path / "out")
    network = models.build("mlp", (64,), 10, hidden=(16,))
    network.load_state_dict(load_file(tmp_path / "out" / "base.safetensors"))
    found = logits(peft.PeftModel.from_pretrained(network, tmp_path / "out"), DIGITS.test.x)
    torch.testing.assert_close(found, trained.outputs(DIGITS.test.x), atol=1e-5, rtol=1e-5)


# ---- what is refused -----------------------------------------------------------------------------
def test_other_outputs_leave_nothing(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = read_model(runs["plain"])
    own = TrainedModel.outputs
    monkeypatch.setattr(TrainedModel, "outputs", lambda self, x: own(self, x) + 1e-3)
    with pytest.raises(UserError, match="gives other outputs than the run"):
        export(trained, "safetensors", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_replaced(runs: dict[str, Path], tmp_path: Path) -> None:
    trained, out = read_model(runs["plain"]), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="no export, so --force does not"):
        export(trained, "safetensors", out, force=True)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    export(trained, "safetensors", tmp_path / "again")
    with pytest.raises(UserError, match="--force replaces it"):
        export(trained, "safetensors", tmp_path / "again")
    export(trained, "torch.export", tmp_path / "again", force=True)
    assert not (tmp_path / "again" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("plain", "--to", "pickle"),
            "--to pickle: must be safetensors, onnx, torch.export or peft",
        ),
        (("plain", "--member", "9"), "--member 9: no member of that name"),
        (("plain", "--cluster", "1"), "--cluster 1: the run has one global model"),
        (("clusters", "--cluster", "2"), "--cluster 2: the run has models 0 to 1"),
        (("plain", "--member", "1", "--cluster", "0"), "name one of them"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    run, *options = arguments
    assert call(["export", str(runs[run]), "-o", str(tmp_path / "out"), *options]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert sentence in shown and "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


# ---- runs of other kinds -------------------------------------------------------------------------
def test_a_run_that_stopped_gives_its_newest_checkpoint(tmp_path: Path) -> None:
    config = from_mapping({**BASE, "checkpoint": {"every": 1}})
    run, said = DurableRun.create(tmp_path / "run", config), list[str]()
    record, clients = run.player.play()
    run.journal.append(record, clients)
    run._good = (run.player.federation, run.journal.lengths)
    run._checkpoint()
    theta = run.player.federation.models[0].theta
    run.close()
    trained = read_model(tmp_path / "run", say=said.append)
    assert torch.equal(trained.model.theta, theta) and trained.rounds == 1
    assert said == [f"{tmp_path / 'run'} has finished 1 of 3 rounds"]


def test_a_saved_result_has_the_global_model_alone(tmp_path: Path) -> None:
    result = shoal.run(**BASE)
    result.save(tmp_path / "run")
    trained = read_model(tmp_path / "run")
    export(trained, "safetensors", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], t) for name, t in result.model.items())
    with pytest.raises(UserError, match="has no checkpoint"):
        read_model(tmp_path / "run", member=1)


# ---- card ----------------------------------------------------------------------------------------
def test_the_card_says_what_went_in(runs: dict[str, Path], tmp_path: Path) -> None:
    export(read_model(runs["personal"], member=2), "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    table = parquet.read_table(runs["personal"] / "clients.parquet").to_pylist()
    went = [row for row in table if row["steps"] > 0]
    assert f"{len({r['client'] for r in went})} members, {len(went)} accepted uploads" in card
    assert f"{sum(row['samples'] for row in went):,} samples seen" in card
    last = {row["client"]: row["accuracy"] for row in table if row["round"] == 2}
    for member, accuracy in last.items():
        assert f"| {member} | 3 |" in card and f"| {100 * accuracy:.2f} % |" in card
    assert "No differential privacy" in card and "the files hold member 2" in card


def test_the_card_has_the_account_of_a_private_run(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"private": {"clip": 1.0, "noise": 2.0, "delta": 1e-3}}
    run = played(tmp_path / "run", method=["fedavg", private], client_weights="equal")
    export(read_model(run), "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])["epsilon"]
    assert f"epsilon {last:.4g} at delta 0.001" in card and "No differential" not in card


# ---- predict -------------------------------------------------------------------------------------
@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """A run on a file of three named classes, with columns in an order of their own."""
    draw = np.random.default_rng(0)
    kinds = draw.choice(["rose", "tulip", "violet"], 120)
    width = draw.normal(size=120) + 3 * (kinds == "tulip") - 3 * (kinds == "violet")
    lines = [f"{k},{w:.3f},{w * 2:.3f}" for k, w in zip(kinds, width, strict=True)]
    (tmp_path / "flowers.csv").write_text("\n".join(["kind,width,height", *lines]) + "\n")
    data = {"name": "files", "path": str(tmp_path / "flowers.csv"), "y": "kind"}
    world = {**BASE["world"], "rounds": 20}
    model, local = {"name": "mlp", "hidden": [8]}, {"lr": 0.5, "batch": 8}
    return played(tmp_path / "run", data=data, model=model, world=world, local=local)


def test_rows_of_a_file_are_answered_with_names(flowers: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("height,width\n6,3\n-6,-3\n")  # found by name, not by place
    text = predict(read_model(flowers), tmp_path / "new.csv", None)
    header, *rows = [line.split(",") for line in text.splitlines()]
    assert header == ["prediction", "probability", "p_rose", "p_tulip", "p_violet"]
    assert [row[0] for row in rows] == ["tulip", "violet"]  # they were normalised as in training
    for row in rows:
        assert sum(map(float, row[2:])) == pytest.approx(1.0, abs=1e-4)
        assert float(row[1]) == max(map(float, row[2:]))


def test_the_card_says_how_rows_become_inputs(flowers: Path, tmp_path: Path) -> None:
    """By hand: the card's shift and width, the plain network, softmax; as predict answers."""
    trained = read_model(flowers)
    export(trained, "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| ")]
    scale = {row[0]: list(map(float, row[2:])) for row in cells if row[0] in ("width", "height")}
    assert "0 rose, 1 tulip, 2 violet" in card and list(scale) == ["width", "height"]
    rows = [(v - scale[n][0]) / scale[n][1] for n, v in (("width", 3.0), ("height", 6.0))]
    network = models.build("mlp", (2,), 3, hidden=(8,))
    network.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    by_hand = logits(network, torch.tensor([rows])).softmax(-1)[0].tolist()
    (tmp_path / "new.csv").write_text("width,height\n3,6\n")
    answer = predict(trained, tmp_path / "new.csv", None).splitlines()[1].split(",")
    assert [float(p) for p in answer[2:]] == pytest.approx(by_hand, abs=1e-5)


def prices_and_labels(folder: Path) -> Path:
    """Three columns; a price far from 0, and two labels, red and blue."""
    x = np.random.default_rng(0).normal(size=(160, 3))
    table = np.c_[x, 1000 + 50 * x @ [1, 2, -1], x[:, :2] > 0]
    head = "a,b,c,price,red,blue"
    np.savetxt(folder / "t.csv", table, delimiter=",", header=head, comments="", fmt="%.4f")
    (folder / "new.csv").write_text("a,b,c\n1,1,-1\n-1,-1,1\n")
    return folder / "t.csv"


@pytest.mark.parametrize("kind", ["number", "labels"])
def test_other_answers_go_home(tmp_path: Path, kind: str) -> None:
    """Prices in their own unit, though the network learns deviations; labels by their names."""
    number = kind == "number"
    data = {"path": str(prices_and_labels(tmp_path)), "y": "price" if number else ["red", "blue"]}
    data |= {"regression": True, "leave_out": ["red", "blue"]} if number else {"leave_out": "price"}
    world, model = {**BASE["world"], "rounds": 20}, {"name": "mlp", "hidden": [16]}
    run = played(
        tmp_path / "run", data=data, world=world, model=model, local={"lr": 0.1, "batch": 8}
    )
    trained = read_model(run)
    for form in ("safetensors", "torch.export"):
        export(trained, form, tmp_path / form)
    program, x = (
        torch.export.load(tmp_path / "torch.export" / "model.pt2").module(),
        trained.rows(7),
    )
    torch.testing.assert_close(program(x), trained.outputs(x), atol=1e-2, rtol=1e-5)
    header, *rows = predict(trained, tmp_path / "new.csv", None).splitlines()
    card = (tmp_path / "safetensors" / "MODEL_CARD.md").read_text()
    if number:  # 1000 and four deviations of 50
        assert header == "prediction" and "the answer is" in card and "| r2 on its own" in card
        assert [float(row) for row in rows] == pytest.approx([1200, 800], abs=60)
    else:
        assert header == "prediction,p_red,p_blue"
        assert [row.split(",")[0] for row in rows] == ["red;blue", ""]


def test_rows_that_do_not_fit_are_one_sentence(flowers: Path, tmp_path: Path) -> None:
    trained, file = read_model(flowers), tmp_path / "new.csv"
    for text, sentence in (
        ("heigth,width\n1,2\n", "no column 'height' for the model's inputs; did you mean"),
        ("height,width\n", "no rows"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=sentence):
            predict(trained, file, None)
    with pytest.raises(UserError, match="there is no file"):
        predict(trained, tmp_path / "none.csv", None)


def test_answers_go_to_a_file(runs: dict[str, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=DIGITS.test.x.numpy())
    trained = read_model(runs["plain"])
    assert "360 rows" in predict(trained, tmp_path / "rows.npz", tmp_path / "answers.csv")
    lines = (tmp_path / "answers.csv").read_text().splitlines()[1:]
    wanted = trained.outputs(DIGITS.test.x).argmax(-1).tolist()
    assert [int(line.split(",")[0]) for line in lines] == wanted


def test_numbers_are_answered_in_their_unit(tmp_path: Path) -> None:
    """Learnt as deviations; predicted, and written into programs, as the file has them."""
    size = np.linspace(-1, 1, 60)
    lines = [f"{v:.4f},{50_000 + 1000 * v:.1f}" for v in size]
    (tmp_path / "t.csv").write_text("\n".join(["size,price", *lines]) + "\n")
    data = {"path": str(tmp_path / "t.csv"), "y": "price", "target": "number"}
    world = {**BASE["world"], "rounds": 30}
    where = played(tmp_path / "r", data=data, model="linear", world=world, local={"lr": 0.1})
    trained = read_model(where)
    (tmp_path / "new.csv").write_text("size\n0.5\n")
    answer = float(predict(trained, tmp_path / "new.csv", None).splitlines()[1])
    assert answer == pytest.approx(50_500, abs=20)
    assert export(trained, "safetensors", tmp_path / "out").apart < 1e-5
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "the answer is 50" in card and "x output" in card
