"""Does a change keep the bits? Plays the nets on two checkouts and compares what they leave.

python scripts/nets.py OLD NEW [--only NAME] [--ways plain,killed,twice] [--jobs 2]
python scripts/nets.py OLD NEW --float64 --tolerance 1e-12

OLD and NEW are folders with a package ``shoal``; both are played with this interpreter, on this
machine, since another processor rounds otherwise. The nets (``scripts/nets/configs.yaml``) are
small configs, each for the engines ``loop`` and the fast one, whatever a checkout calls it.
Compared are every tensor of the model, the rounds' records (without seconds, host and notes) and
the table of clients. Ways:

- plain: OLD and NEW, each uninterrupted in a fresh process; equal within ``--tolerance``
- killed: NEW, killed after some rounds and resumed; it must have the bits of its plain run
- twice: NEW from Python, before and after another run in one process; the same

Where OLD's runs depend on kills or history in just the way that NEW's do, the line says "as OLD".
One line is printed per net, engine and way; the exit code is 1 if one differs or cannot be
played, and 2 for a command that makes no sense.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).resolve().parent / "nets"
WAYS = ("plain", "killed", "twice")
ENGINES = ("loop", "stacked")
APART = float("inf")  # not two numbers that are near each other
UNCOMPARED = ("notes", "host", "hostname")  # and everything that begins with "seconds"


class NotPlayedError(Exception):
    """A run that did not end; its sentence is for the user."""


class BadWishError(Exception):
    """What cannot be done; its sentence is for the user."""


@dataclass(frozen=True)
class Net:
    """A config and an engine."""

    name: str
    engine: str
    config: Mapping[str, Any]
    after: int | None  # rounds after which it is killed; None: half of them


@dataclass(frozen=True)
class Difference:
    """How far two runs are apart: relative, and 0 only where every bit is the same."""

    apart: float
    model: float = 0.0
    round: int | None = None  # the first whose record differs
    what: str = ""

    def within(self, tolerance: float) -> bool:
        return self.apart <= tolerance

    def __str__(self) -> str:
        if self.apart == 0:
            return "equal"
        begin = "the model is equal" if self.model == 0 else f"differs by {self.model:.1e} (model)"
        if self.round is not None:
            return f"{begin}; first in round {self.round}: {self.what}"
        return f"{begin}; no round's record differs" + (f", but {self.what}" if self.what else "")


def nets_of(table: Path, only: Sequence[str]) -> tuple[list[Net], dict[str, Any]]:
    """The nets that were asked for, and what is played between two runs."""
    with table.open() as file:
        values = yaml.safe_load(file)
    known = values["nets"]
    if unknown := [name for name in only if name not in known]:
        raise BadWishError(f"there is no net {unknown[0]!r}; there are {', '.join(known)}")
    found = []
    for name in only or known:
        own = {**values["base"], **known[name]}
        play = own.pop("play", {})
        config = {key: value for key, value in own.items() if value is not None}
        found += [
            Net(name, engine, config, play.get("after")) for engine in play.get("engines", ENGINES)
        ]
    return found, values["between"]


class Checkout:
    """A process that plays runs of one checkout, each in a child of its own."""

    def __init__(self, folder: Path, float64: bool, between: Mapping[str, Any]) -> None:
        self.folder, self.float64, self.between = folder, float64, between
        path = os.pathsep.join([str(folder), str(HERE)])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "player.py")],
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            hello = self._answer()
        except NotPlayedError:
            raise BadWishError(f"{folder} has a shoal that cannot be imported, see above") from None
        if Path(hello["home"]) != folder / "shoal":
            raise BadWishError(f"{folder} was asked for, but {hello['home']} was imported")
        self.fast = hello["fast"]

    def play(self, net: Net, way: str, where: Path) -> list[Path]:
        """The directories of the runs that this comes to."""
        engine = self.fast if net.engine == "stacked" else net.engine
        config = {**net.config, "engine": engine}
        wish = {"way": way, "folder": str(where), "float64": self.float64}
        if way == "killed":
            config["checkpoint"] = {"every": 1}
            wish["after"] = net.after or rounds_of(net.config) // 2
        if way == "twice":
            wish["between"] = {**self.between, "engine": engine}
        self._wish({**wish, "config": config})
        if sentence := self._answer()["failed"]:
            raise NotPlayedError(f"{way} on {self.folder}: {sentence}")
        names = ("first", "second") if way == "twice" else ("run",)
        runs = [where / name for name in names]
        if self.float64 and any(t.dtype == np.float32 for r in runs for t in tensors(r).values()):
            raise NotPlayedError(f"{way} on {self.folder}: the model is not in float64")
        return runs

    def _wish(self, wish: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(wish) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NotPlayedError(f"the player of {self.folder} has died") from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotPlayedError(f"the player of {self.folder} has died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def rounds_of(config: Mapping[str, Any]) -> int:
    """The rounds of a world that says them in one number (others say `after`)."""
    return int((config.get("problem") or config["world"])["rounds"])


def tensors(run: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(run / "model.safetensors"))


def apart(old: Any, new: Any) -> float:
    """Of two values of a record, or two arrays: 0 if they are the same, else relative to the
    largest number there (in a record at least 1: figures may be next to nothing), else infinity."""
    if isinstance(old, np.ndarray):
        if old.shape != new.shape or old.dtype != new.dtype:
            return APART
        if old.tobytes() == new.tobytes():
            return 0.0
        a, b = old.astype(np.float64), new.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return APART
        wide = float(np.nanmax(np.abs(a), initial=np.finfo(np.float64).tiny))
        return max(float(np.nanmax(np.abs(a - b), initial=0.0)) / wide, np.finfo(np.float64).tiny)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max((apart(a, b) for a, b in zip(old, new, strict=True)), default=0.0)
    if isinstance(old, dict) and isinstance(new, dict):
        return max((apart(v, new[k]) if k in new else APART for k, v in old.items()), default=0.0)
    if old == new and type(old) is type(new):
        return 0.0
    if isinstance(old, float) and isinstance(new, float):
        return abs(old - new) / max(abs(old), abs(new), 1.0)
    return APART


def records_of(run: Path) -> list[dict[str, Any]]:
    """What the rounds' records say, but for time and place."""
    lines = map(json.loads, (run / "rounds.jsonl").read_text().splitlines())
    return [
        {k: v for k, v in line.items() if not (k.startswith("seconds") or k in UNCOMPARED)}
        for line in lines
        if "round" in line
    ]


def clients_of(run: Path) -> dict[str, Any]:
    from pyarrow import parquet

    table = parquet.read_table(run / "clients.parquet")
    return {name: table.column(name).to_numpy() for name in table.column_names}


def difference(old: Path, new: Path, tolerance: float) -> Difference:
    """How far a run is from another, and the first round that is further apart than allowed."""
    models = named(tensors(old), tensors(new))
    model = max((far for _, far in models), default=APART)
    worst, where, what = model, None, ""
    before, after = records_of(old), records_of(new)
    if len(before) != len(after) or not before:
        worst, where = APART, min(len(before), len(after))
        what = f"{len(before)} rounds against {len(after)}"
    for a, b in zip(before, after, strict=False):
        for key, far in named(a, b):
            worst = max(worst, far)
            if far > tolerance and (where is None or a["round"] < where):
                where, what = a["round"], f"{key} is {short(a[key])}, was {short(b.get(key))}"
    for key, far in named(clients_of(old), clients_of(new)):
        worst = max(worst, far)
        if far > tolerance and not what:
            what = f"{key} of the table of clients does"
    return Difference(worst, model, where, what)


def named(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in old.items():
        yield key, apart(value, new[key]) if key in new else APART


def short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(frozen=True)
class Bench:
    """Both checkouts, the folder that runs go to, and how far apart they may be."""

    old: Checkout
    new: Checkout
    folder: Path
    tolerance: float

    def close(self) -> None:
        self.old.close()
        self.new.close()

    def lines(self, net: Net, ways: Iterable[str]) -> Iterator[tuple[bool, str, str]]:
        """Whether it is as it should be, the way, and what there is to say; one per way."""
        here = self.folder / net.name / net.engine
        try:
            (was,) = self.old.play(net, "plain", here / "old")
            (now,) = self.new.play(net, "plain", here / "new")
        except NotPlayedError as error:
            yield False, "plain", f"not played: {error}"
            return
        for way in ways:
            try:
                yield self._line(net, way, here, was, now)
            except NotPlayedError as error:
                yield False, way, f"not played: {error}"

    def _line(self, net: Net, way: str, here: Path, was: Path, now: Path) -> tuple[bool, str, str]:
        if way == "plain":
            found = difference(was, now, self.tolerance)
            fine = found.within(self.tolerance)
            return fine, way, f"{found}{' (tolerated)' if fine and found.apart else ''}"
        runs = self.new.play(net, way, here / f"new {way}")
        own = [difference(now, run, 0.0) for run in runs]
        said = "; ".join(dict.fromkeys(map(str, own)))
        if all(d.within(0.0) for d in own):
            return True, way, said
        others = self.old.play(net, way, here / f"old {way}")  # is it a fault of before?
        pairs = zip(others, runs, strict=True)
        same = all(difference(*pair, self.tolerance).within(self.tolerance) for pair in pairs)
        same = same and not all(difference(was, run, 0.0).within(0.0) for run in others)
        return same, way, f"as OLD: {said}" if same else said


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    try:
        return compare(asked)
    except BadWishError as error:
        print(f"nets: {error}", file=sys.stderr)
        return 2


def compare(asked: argparse.Namespace) -> int:
    ways = asked.ways.split(",")
    if wrong := [way for way in ways if way not in WAYS]:
        raise BadWishError(f"there is no way {wrong[0]!r}; there are {', '.join(WAYS)}")
    for folder in (asked.old, asked.new):
        if not (folder / "shoal").is_dir():
            raise BadWishError(f"{folder} has no package shoal")
    nets, between = nets_of(HERE / "configs.yaml", asked.only)
    began, good, same = time.monotonic(), 0, 0
    benches: SimpleQueue[Bench] = SimpleQueue()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        for _ in range(asked.jobs):
            old, new = (
                Checkout(p.resolve(), asked.float64, between) for p in (asked.old, asked.new)
            )
            benches.put(Bench(old, new, Path(folder), asked.tolerance))

        def played(net: Net) -> list[tuple[bool, str, str]]:
            bench = benches.get()
            try:
                return list(bench.lines(net, ways))
            finally:
                benches.put(bench)

        for net, lines in zip(nets, pool.map(played, nets), strict=True):
            for fine, way, said in lines:
                print(f"{net.name:16} {net.engine:8} {way:7} {said}", flush=True)
                good, same = good + fine, same + said.startswith("as OLD")
        for _ in range(asked.jobs):
            benches.get().close()
    wanted, took = len(nets) * len(ways), time.monotonic() - began
    only = f" ({same} only as OLD)" if same else ""
    print(f"{good} of {wanted} as they should be{only}, {took:.0f} s")
    return 0 if good == wanted else 1


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("old", type=Path, metavar="OLD", help="the checkout to compare with")
    found.add_argument("new", type=Path, metavar="NEW", help="the checkout that was changed")
    found.add_argument("--only", action="append", default=[], metavar="NAME", help="this net alone")
    found.add_argument("--ways", default=",".join(WAYS), help=",".join(WAYS))
    found.add_argument("--tolerance", type=float, default=0.0, help="relative; 0 is every bit")
    found.add_argument("--float64", action="store_true", help="networks and samples in float64")
    found.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="nets at a time")
    return found


if __name__ == "__main__":
    sys.exit(main())
