"""24: nothing that executes, or that unpacks without bound, is read from a file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import stat
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from shoal.cli import call
from shoal.config import load as load_config
from shoal.core.errors import UserError
from shoal.data import tables
from shoal.data.file_formats import tree
from shoal.papers.play import unpack
from shoal.reports.findings import method_name
from shoal.worlds.members.availability import read_traces

RUN = {
    "data": "digits",
    "model": {"name": "linear"},
    "world": {"name": "churn", "members": 4, "sessions": 1, "rounds_per_session": 2},
    "local": {"epochs": 1, "batch": 32, "lr": 0.1},
    "checkpoint": {"every": 1},
}
TOUCHED: list[str] = []


class Runs:
    """Whoever unpickles this has run its code."""

    def __reduce__(self) -> Any:
        return exec, (f"import {__name__} as m; m.TOUCHED.append('ran')",)


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    TOUCHED.clear()
    sys.modules.setdefault(__name__, sys.modules[__name__])
    yield
    assert not TOUCHED


@pytest.fixture
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs of megabytes do for a test: the bound is a megabyte, instead of two gigabytes."""
    from shoal.core import files as untrusted

    monkeypatch.setattr(untrusted, "FREE", 1 << 20)
    monkeypatch.setattr(untrusted, "RATIO", 2)


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a command that is refused."""
    capsys.readouterr()
    assert call(args) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and told[0].startswith("shoal: ") and told[0].isprintable()
    return told[0]


def laughs(levels: int = 9, item: str = "lol", key: str = "a") -> str:
    """Ten of ten of ten ..."""
    lines = [f"{key}0: &{key}0 [{', '.join([item] * 10)}]"]
    for n in range(1, levels):
        lines.append(f"{key}{n}: &{key}{n} [{', '.join([f'*{key}{n - 1}'] * 10)}]")
    return "\n".join(lines) + "\n"


MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 9)
)
YAMLS = {
    "module": "seed: !!python/object/apply:os.system ['touch RAN']\n",
    "name": "seed: !!python/name:os.system\n",
    "new": "seed: !!python/object/new:os.system ['touch RAN']\n",
    "tuple": "seed: !!python/tuple [1, 2]\n",
    "own tag": "seed: !Runs {}\n",
    "laughs": laughs(),
    "merges": MERGES,
    "itself": "seed: &a [*a]\n",
    "deep": "seed: " + "[" * 100_000,
    "deep, and closed": "seed: " + "[" * 5000 + "]" * 5000,
    "a date that is none": "seed: 2026-99-99\n",
    "a base that is none": "seed: 1:99999999999999999999999999:1e\nseed2: 0b\n",
}


@pytest.mark.parametrize("case", YAMLS)
@pytest.mark.timeout(60)
def test_yaml(case: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """As a config, as an agreement, and as what a run says of itself."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "f.yaml"
    file.write_text(YAMLS[case])
    refused(["run", str(file), "-o", "out"], capsys)
    refused(["world", str(file)], capsys)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.yaml"]
    if case != "a base that is none":
        value = YAMLS[case].partition("seed: ")[2].strip()
        if value:
            refused(["run", str(file), "--set", f"seed={value[:90_000]}", "-o", "out"], capsys)


@pytest.mark.parametrize("case", ["module", "laughs", "merges", "itself", "deep"])
@pytest.mark.timeout(60)
def test_yaml_of_others_runs(case: str, tmp_path: Path, capsys: Any) -> None:
    """A run directory that somebody sent: its report, its line in the list of runs."""
    from shoal.reports.watch.runs import read_info
    from shoal.runs.directory import RunDir

    where = played(tmp_path)
    where.config.write_text(YAMLS[case])
    where.summary.unlink()
    assert read_info(RunDir(where.path)).method == "?"
    refused(["report", str(where.path)], capsys)
    refused(["resume", str(where.path)], capsys)


def played(folder: Path) -> Any:
    from shoal.runs.directory import RunDir

    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(RUN))
    assert call(["run", str(config), "-o", str(folder / "run")]) == 0
    return RunDir(folder / "run")


def test_aliases_that_are_honest_are_read(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "model: &m {name: mlp, hidden: [8]}\nlocal: {<<: {epochs: 2}, rate: 0.2}\n"
        "data: digits\nworld: {name: churn, members: 4}\nmethod: [fedinit, &x scaffold]\n"
    )
    assert load_config(file).local.epochs == 2


# ---- pickles ----
def objects(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([Runs()], dtype=object), allow_pickle=True)


def test_arrays_of_objects(tmp_path: Path) -> None:
    objects(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", x=np.array([Runs()], dtype=object), y=np.arange(1))
    (tmp_path / "p.npy").write_bytes(pickle.dumps(Runs()))
    torch.save({"x": Runs()}, tmp_path / "t.npz")
    torch.save({"x": Runs()}, tmp_path / "t.npy")
    for name in ("x.npy", "x.npz", "p.npy", "t.npz", "t.npy"):
        with pytest.raises(UserError, match="cannot be read"):
            tables.read(tmp_path / name)


@pytest.mark.timeout(60)
def test_traces_are_plain(tmp_path: Path) -> None:
    bomb: Any = [1.0] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    endless: list[Any] = []
    endless.append(endless)
    for number, value in enumerate(
        (Runs(), {"a": Runs()}, {"a": bomb}, endless, {1: torch.ones(1)})
    ):
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(UserError, match="cannot be read"):
            read_traces(path)
    for number, content in enumerate(
        (b"\x80\x04\x8d" + b"\xff" * 8, b"(lp0\nR.", b"0", b"\x80\x04.")
    ):
        path = tmp_path / f"broken-{number}.pkl"
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            read_traces(path)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match="cannot be read"):
        read_traces(tmp_path / "deep.json")


def test_model_files_are_not_pickles(tmp_path: Path, capsys: Any) -> None:
    torch.save({"w": Runs()}, tmp_path / "model.pt")
    lies = {
        "long": (1 << 40, b"{}"),
        "offsets": (None, {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}}),
        "shape": (None, {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]}}),
        "type": (None, {"w": {"dtype": "O", "shape": [4], "data_offsets": [0, 16]}}),
        "deep": (None, b"[" * 100_000),
    }
    files = [tmp_path / "model.pt"]
    for name, (length, header) in lies.items():
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        files.append(tmp_path / f"{name}.safetensors")
        files[-1].write_bytes(struct.pack("<Q", length or len(text)) + text + bytes(16))
    for file in files:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(RUN | {"model": {"name": "linear", "init": str(file)}}))
        assert "model.init" in refused(["run", str(config), "-o", str(tmp_path / "o")], capsys)


@pytest.mark.parametrize("kind", ["pickle", "offsets"])
def test_checkpoints_that_lie(tmp_path: Path, capsys: Any, kind: str) -> None:
    """Whoever can write a checkpoint can write its checksums too."""
    from shoal.runs.checkpoint import sha

    where = played(tmp_path)
    where.summary.unlink()
    for folder in where.checkpoint.glob("0*"):
        shard = next(folder.glob("*.safetensors"))
        if kind == "pickle":
            shard.write_bytes(pickle.dumps(Runs()))
        else:
            content = shard.read_bytes()
            length = int.from_bytes(content[:8], "little")
            head = json.loads(content[8 : 8 + length])
            for entry in head.values():
                entry["shape"] = [1 << 50]
            text = json.dumps(head).encode()
            shard.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
        manifest = folder / "manifest.json"
        body = json.loads(json.loads(manifest.read_text())["body"])
        body["shards"][shard.name] = sha(shard.read_bytes())
        text_ = json.dumps(body)
        manifest.write_text(json.dumps({"sha256": sha(text_.encode()), "body": text_}))
    assert "cannot be read" in refused(["resume", str(where.path)], capsys)


def test_checkpoint_of_a_guarded_strategy(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from shoal.flower import GuardedStrategy

    initial = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    guarded = GuardedStrategy(FedAvg(), folder=tmp_path)
    for content in (
        pickle.dumps(Runs()),
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{}",
    ):
        (tmp_path / "guarded.safetensors").write_bytes(content)
        with pytest.raises(UserError, match="no checkpoint"):
            guarded._read(initial)


# ---- archives ----
def tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for about, data in members:
            about.size = len(data)
            packed.addfile(about, io.BytesIO(data))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **pax: str) -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.pax_headers = kind, link, pax
    return about


SLIPS: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "above": [(member("../summary.json"), b"x")],
    "far above": [(member("../../../../tmp/evil/summary.json"), b"x")],
    "absolute": [(member("/summary.json"), b"x")],
    "no run": [(member("summary.json"), b"x")],
    "another file": [(member("run/.bashrc"), b"x")],
    "symlink": [(member("run/summary.json", tarfile.SYMTYPE, "/etc/passwd"), b"")],
    "symlinked folder": [
        (member("run", tarfile.SYMTYPE, "/tmp"), b""),
        (member("run/summary.json"), b"x"),
    ],
    "hard link": [(member("run/summary.json", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device": [(member("run/summary.json", tarfile.CHRTYPE), b"")],
    "pipe": [(member("run/summary.json", tarfile.FIFOTYPE), b"")],
    "pax path": [(member("run/summary.json", path="../summary.json"), b"x")],
    "twice": [(member("run/summary.json"), b"x"), (member("run/summary.json"), b"y")],
    "a name that moves the cursor": [(member("\x1b[2Jrun/summary.json"), b"x")],
}


@pytest.mark.parametrize("case", SLIPS)
def test_archive_writes_nowhere_else(tmp_path: Path, case: str) -> None:
    source, runs = tmp_path / "a.tar.xz", tmp_path / "in" / "runs"
    source.write_bytes(lzma.compress(tar(SLIPS[case])))
    runs.mkdir(parents=True)
    with pytest.raises(UserError, match="is no file of a run") as error:
        unpack(source, runs)
    assert str(error.value).isprintable()
    assert not list(runs.iterdir()) and sorted(p.name for p in tmp_path.iterdir()) == [
        "a.tar.xz",
        "in",
    ]


def test_archive_of_gigabytes(tmp_path: Path, _little_room: None) -> None:
    """A file of zeros, a header of zeros, and a header that says so."""
    zeros = bytes(16 << 20)
    claim = tarfile.TarInfo("run/summary.json")
    claim.size = 1 << 50
    for number, content in enumerate((
        tar([(member("run/summary.json"), zeros)]),
        tar([(member("run/summary.json", comment="0" * (16 << 20)), b"")]),
        claim.tobuf(),
    )):  # fmt: skip
        source = tmp_path / f"{number}.tar.xz"
        source.write_bytes(lzma.compress(content))
        with pytest.raises(UserError, match=r"unpacks to more|no archive of runs"):
            unpack(source, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_archive_of_runs_is_read(tmp_path: Path) -> None:
    source = tmp_path / "a.tar.xz"
    source.write_bytes(lzma.compress(tar([(member("run/summary.json"), b"{}")])))
    assert unpack(source, tmp_path / "runs") == 1


def picture() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("L", (4, 4)).save(out, "PNG")
    return out.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
}  # fmt: skip


@pytest.mark.parametrize("packer", PACKERS)
def test_folders_in_archives(tmp_path: Path, packer: str, _little_room: None) -> None:
    good = tar([(member("a/1.png"), picture()), (member("../../b/2.png"), picture())])
    path = tmp_path / f"good.tar.{packer}"
    path.write_bytes(PACKERS[packer](good))
    with tree(path) as (names, read):
        assert names == ["../../b/2.png", "a/1.png"] and read(names[0]) == picture()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # read, and never unpacked
    for number, bad in enumerate((
        tar([(member("a/1.png"), bytes(16 << 20))]),
        tar([(member("a/1.png", comment="0" * (16 << 20)), b"")]),
    )):  # fmt: skip
        path = tmp_path / f"bomb-{number}.tar.{packer}"
        path.write_bytes(PACKERS[packer](bad))
        with pytest.raises(UserError, match="unpack"), tree(path) as (names, read):
            pass


def test_zips_and_arrays_of_gigabytes(tmp_path: Path, _little_room: None) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/1.png", bytes(16 << 20))
    with pytest.raises(UserError, match="would unpack to"), tree(tmp_path / "bomb.zip"):
        pass
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(4 << 20, np.float32))
    with pytest.raises(UserError, match="would unpack to"):
        tables.read(tmp_path / "bomb.npz")
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"0,0\n" * (4 << 20)))
    with pytest.raises(UserError, match="unpacks to more"):
        tables.read(tmp_path / "bomb.csv.gz")


def test_headers_of_arrays_that_lie(tmp_path: Path) -> None:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    )
    (tmp_path / "x.npy").write_bytes(out.getvalue() + bytes(64))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as packed:
        packed.writestr("x.npy", out.getvalue() + bytes(64))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(UserError, match="cannot be read"):
            tables.read(tmp_path / name)


def test_parquet_of_gigabytes(tmp_path: Path, _little_room: None) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"x": np.zeros(4 << 20), "y": np.zeros(4 << 20, np.int64)})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 1 << 20
    with pytest.raises(UserError, match="would unpack to"):
        tables.read(tmp_path / "x.parquet")


def test_downloads_end(tmp_path: Path, monkeypatch: Any) -> None:
    """A server that never stops sending fills no disk."""
    from shoal.data import download
    from shoal.data.download import Remote

    class Answer:
        headers: dict[str, str] = {}

        def __enter__(self) -> Answer:
            return self

        def __exit__(self, *args: object) -> None: ...

        def read(self, size: int) -> bytes:
            return bytes(size)

    monkeypatch.setattr(download, "urlopen", lambda *args, **kwargs: Answer())
    monkeypatch.setattr(download, "MOST", 1 << 20, raising=False)
    for size in (None, 1 << 18):
        with pytest.raises(UserError, match="more than"):
            download.fetch(Remote("https://example.org/f", "f", size=size), tmp_path, "data")
    assert not list(tmp_path.iterdir())


# ---- names ----
EVIL = "\x1b]0;owned\x07\x1b[2J\u202eeve\r\n"


def test_names_are_written_out(tmp_path: Path, capsys: Any) -> None:
    assert method_name(["fedavg", {EVIL: {}}]).isprintable()
    where = played(tmp_path)
    evil = tmp_path / "\x1b[2J[red]run"
    os.rename(where.path, evil)
    capsys.readouterr()
    assert call(["compare", str(evil), str(evil), "-o", str(tmp_path / "c.png")]) == 0
    shown = capsys.readouterr()
    assert "\x1b[2J" not in shown.out + shown.err
    assert "[red]run" in "".join(shown.out.split())  # a name is no markup
    assert call(["report", str(evil), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert not [c for c in page if ord(c) < 32 and c not in "\n\t"]


def test_names_of_methods_in_others_runs(tmp_path: Path, capsys: Any) -> None:
    """Texts in a run that somebody sent: config, records."""
    where = played(tmp_path)
    records = [json.loads(line) for line in where.rounds.read_text().splitlines()]
    for record in records:
        record["shift"] = {"kinds": ["\x1b[2J<script>"], "announced": True}
    where.rounds.write_text("".join(json.dumps(r) + "\n" for r in records))
    call(["report", str(where.path), "-o", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text() if (tmp_path / "r.html").exists() else ""
    told = capsys.readouterr()
    assert "\x1b" not in page + told.out + told.err and "<script>\x1b" not in page
    assert "\\u003cscript" in page or not page


def test_refusals_are_printable(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(yaml.safe_dump(RUN | {"method": EVIL, EVIL: 1}, allow_unicode=False))
    refused(["run", str(file), "-o", str(tmp_path / "o")], capsys)
    refused(["run", str(tmp_path / "\x1b[2J.yaml")], capsys)


# ---- who may read ----
def modes(folder: Path) -> dict[str, int]:
    return {
        str(p.relative_to(folder)): stat.S_IMODE(p.stat().st_mode)
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_runs_are_their_owners(tmp_path: Path) -> None:
    before = os.umask(0)  # the most careless of masks
    try:
        where = played(tmp_path)
        assert call(["report", str(where.path), "-o", str(tmp_path / "page.html")]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(where.path.stat().st_mode) == 0o700
    found = modes(where.path)
    assert len(found) > 8 and set(found.values()) == {0o600}, found
    # what is made to be shown is as the mask says
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o666


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_federations_are_their_owners(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flower.local_grid import Small

    from shoal.flower.operations.up import FederationFolder, UpOptions

    before = os.umask(0)
    try:
        small = Small(tmp_path, "scaffold")
        small.server(num_server_rounds=1).play()
        place = FederationFolder(tmp_path / "up")
        UpOptions("app", 1, "127.0.0.1", 1, False, {}).write(place)
    finally:
        os.umask(before)
    for folder in (tmp_path / "home-0", tmp_path / "home-0" / "memory", place.path):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    for folder in (tmp_path / "server", tmp_path / "home-0", place.path):
        assert set(modes(folder).values()) == {0o600}, modes(folder)
