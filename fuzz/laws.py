"""What every case must keep, and what is said where one does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from fuzz import by_hand
from fuzz.draw import Case, drawn
from fuzz.play import Outcome, plan_of, play, play_resumed, unpacked
from shoal.core.errors import UserError
from shoal.engines.stacked.plan import Path as Way
from shoal.models.adapters import OF_SERVER

FLOAT64 = 1e-9  # how far engines may be apart
# Adam divides by 1e-8 what a gradient that is zero but for rounding has (1e-15), at every step.
ADAPTIVE = 1e-7
NUDGES = {True: 1e-13, False: 1e-6}  # of the initial model, in float64 and float32
CHAOS = 1e3  # times a nudge: a run that makes so much of it says nothing about engines
INFINITE = "uploads are not finite"
LONG = 1000  # characters of a sentence
EXACT = ("round", "session", "task", "cohort", "attempts", "noticed", "steps", "samples", "epochs",
         "bytes_up", "bytes_down", "active", "asked")  # fmt: skip
ANOTHER = 1_000_003  # a program that has nothing to do with the case's

Elsewhere = Callable[[str, Case], bytes]  # plays a case in a process that has played nothing


class BrokenError(Exception):
    """A law that a case does not keep; its sentence says which, and by how much."""


# A share of two numbers that may both be nothing but rounding. Reports alone read it.
SCALE_FREE = ("DriftState.beta3",)


@dataclass(frozen=True)
class Verdict:
    """How a case went: ``kept``, ``refused`` (in one sentence), ``chaotic`` or ``broken``."""

    status: str
    sentence: str = ""
    laws: tuple[str, ...] = ()  # that were tried
    ways: tuple[str, ...] = ()  # how the fast engine went


def judged(case: Case, elsewhere: Elsewhere | None = None) -> Verdict:
    """Plays a case; a chaotic one again at a tenth of its rate, and a hundredth."""
    why = "a nudge of the initial model grows beyond any law"
    for factor in (1.0, 0.1, 0.01):
        slower = scaled(case, factor)
        trial = _Trial(slower, elsewhere)
        try:
            laws = trial.run()
        except UserError as error:
            return Verdict("refused", str(error))
        except _ChaoticError as error:
            why = str(error) or why
            continue
        except BrokenError as error:
            return Verdict("broken", str(error))
        return Verdict("kept", laws=laws, ways=trial.ways())
    if why.startswith(INFINITE) and not _wild(slower):
        return Verdict("broken", f"{why}, whatever the rate, and FedAvg's are")
    return Verdict("chaotic", why)


def _wild(case: Case) -> bool:
    """Whether FedAvg diverges in the place of the case's method."""
    return bool(play(replace(case, config={**case.config, "method": "fedavg"}), "loop").sentence)


def scaled(case: Case, factor: float) -> Case:
    local = dict(case.config["local"])
    return replace(case, config={**case.config, "local": {**local, "lr": local["lr"] * factor}})


class _ChaoticError(Exception):
    """Rounding decides where the run ends."""


class _Trial:
    """A case and its run on the fast engine, which the laws compare others with."""

    def __init__(self, case: Case, elsewhere: Elsewhere | None) -> None:
        self.case, self.elsewhere = case, elsewhere
        self.eager = ""  # why the method cannot be stacked

    def run(self) -> tuple[str, ...]:
        """The names of the laws that were tried; all of them hold."""
        self.slow = self._reference()
        if "not finite" in self.slow.sentence:
            raise _ChaoticError(INFINITE)
        try:
            self.base = self._played("stacked")
        except UserError as error:
            if "cannot be stacked" not in str(error):
                raise BrokenError(f"only stacked refuses it: {error}") from None
            self.eager, self.base = str(error), self.slow
        tried = []
        if not self.eager:
            self._near(self.base, "stacked and loop differ")
            tried.append("engines")
        if self._is_plain():
            tried.append(self._by_hand())
        for law in self.case.laws:
            tried.append(getattr(self, f"_{law}")() or law)
        return tuple(law for law in tried if law)

    def ways(self) -> tuple[str, ...]:
        """Paths of the plans, and whether steps were recorded."""
        found = sorted(f"path {way.value}" for way in self.base.paths)
        alone = any("one by one" in note for note in self.base.notes)
        return (*found, *["clients one by one"] * alone, *["loop only"] * bool(self.eager))

    def _reference(self) -> Outcome:
        try:
            return play(self.case, "loop")
        except UserError as error:
            text = str(error)
            if "\n" in text.strip() or not text or len(text) > LONG:
                raise BrokenError(f"this refusal is no sentence: {text!r}") from None
            raise
        except Exception as error:
            raise BrokenError(f"loop: {_last_line(error)}") from error

    def _played(self, engine: str, **changes: Any) -> Outcome:
        try:
            return play(self.case, engine, **changes)
        except UserError:
            raise
        except Exception as error:
            raise BrokenError(f"{engine} {changes or ''}: {_last_line(error)}") from error

    # ---- nearly equal ----
    def _near(self, found: Outcome, what: str) -> None:
        """As near to the loop engine's run as its own rounding lets it be."""
        limit = self._limit()
        only = "" if self.case.double else "model"  # what is stated for float32 is of models
        apart, where = distance(found, self.slow, only)
        if apart <= limit:
            return
        nudged = self._played("loop", nudge=NUDGES[self.case.double])
        grown, _ = distance(nudged, self.slow, only)
        wild = grown > CHAOS * NUDGES[self.case.double] and apart <= CHAOS * grown
        if wild or apart <= 100 * grown:
            raise _ChaoticError
        raise BrokenError(f"{what} by {apart:.1e} ({where}); allowed are {limit:.0e}")

    def _limit(self) -> float:
        plain = self.case.config["local"].get("optimizer", "sgd") == "sgd"
        if self.case.double:
            return FLOAT64 if plain else ADAPTIVE
        gaps = plan_of(self.case).settings.method.float32_gaps
        return gaps.sgd if plain else gaps.adaptive

    def _is_plain(self) -> bool:
        """Whether the case is what ``by_hand`` knows."""
        config = self.case.config
        plain = config.get("method", "fedavg") in ("fedavg", [{"fedavg": {}}])
        if config.get("adapters", {}).get("rule") in OF_SERVER:
            return False
        return plain and self.case.double and not {"problem", "guard"} & set(config)

    def _by_hand(self) -> str:
        plan = plan_of(self.case)
        try:
            model = by_hand.fedavg(plan)
        except Exception as error:
            raise BrokenError(f"only plain torch raises: {_last_line(error)}") from error
        tensors = {"model 0": model.theta, "statistics 0": model.stats}
        self._near(Outcome(tensors, ()), "plain torch and loop differ")
        return "by hand"

    def _paths(self) -> str:
        if self.eager or self.base.paths <= {Way.GENERAL}:
            return ""
        ways = [Way.GENERAL, Way.UNIFORM] if Way.FACTORED in self.base.paths else [Way.GENERAL]
        for way in ways:
            other = self._played("stacked", path=way)
            self._near(other, f"path {way.value} and loop differ")
        return "paths"

    # ---- the same bits ----
    def _same(self, found: Outcome, what: str) -> None:
        where = first_difference(found, self.base)
        if where:
            raise BrokenError(f"{what}: {where}")

    def _threads(self) -> str:
        if self.eager:
            return ""
        for threads in {1, 2, 5} - {self.case.config["threads"]}:
            self._same(self._played("stacked", threads=threads), f"{threads} threads change bits")
        return "threads"

    def _history(self) -> None:
        """Other programs first, and the same with clients and batches of other sizes."""
        for before in (_another(self.case.seed), _reshaped(self.case)):
            try:
                play(before, self._engine())
            except UserError:
                continue
            except Exception as error:
                raise BrokenError(f"history: {_last_line(error)}") from error
        self._same(self._played(self._engine()), "what was played before changes bits")

    def _fresh(self) -> str:
        if self.elsewhere is None:
            return ""
        told = unpacked(self.elsewhere("played", replace(self.case, config=self._config())))
        self._same(told, "a fresh process has other bits")
        return "fresh"

    def _resume(self) -> None:
        rounds = len(self.slow.records)
        if self.base.sentence or rounds < 2:
            return
        with TemporaryDirectory() as folder:
            after = self.case.seed % (rounds - 1) + 1
            try:
                found = play_resumed(self.case, Path(folder) / "run", self._engine(), after)
            except Exception as error:
                raise BrokenError(f"resumed after round {after}: {_last_line(error)}") from error
        self._same(found, f"resumed after round {after} it has other bits")

    def _sweep(self) -> str:
        if self.elsewhere is None or self.base.sentence:
            return ""
        told = unpacked(self.elsewhere("swept", replace(self.case, config=self._config())))
        if told.sentence:
            raise BrokenError(f"in a sweep: {told.sentence}")
        self._same(replace(self.base, model=told.model), "a sweep has other bits")
        return "sweep"

    def _engine(self) -> str:
        return "loop" if self.eager else "stacked"

    def _config(self) -> dict[str, Any]:
        return {**self.case.config, "engine": self._engine()}


def distance(found: Outcome, wanted: Outcome, only: str = "") -> tuple[float, str]:
    """The largest distance of two runs' tensors (those whose names begin so), relative, and where
    it is; infinity for what has another name, shape or count."""
    worst, where = 0.0, ""
    if found.sentence != wanted.sentence:
        return math.inf, f"one ended with {found.sentence or wanted.sentence!r}"
    if found.records:
        if set(found.tensors) != set(wanted.tensors):
            odd = sorted(set(found.tensors) ^ set(wanted.tensors))
            return math.inf, f"only one has {odd[0]!r}"
        for a, b in zip(found.records, wanted.records, strict=True):
            for key in EXACT:
                if a.get(key) != b.get(key):
                    return math.inf, f"round {a['round']}: {key} is {a.get(key)}, not {b.get(key)}"
    size = max((float(t.norm()) for n, t in wanted.tensors.items() if n[:5] == "model"), default=0)
    for name, tensor in found.tensors.items():
        if not name.startswith(only) or name.endswith(SCALE_FREE):
            continue
        apart = _apart(tensor, wanted.tensors[name], 1e-3 * size)
        if apart > worst:
            worst, where = apart, name
    return worst, where


def _apart(a: Tensor, b: Tensor, least: float) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else math.inf
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return math.inf
    a, b = a[finite].double(), b[finite].double()
    scale = max(float(b.norm()), least, 1e-30)
    return float((a - b).norm()) / scale


def first_difference(found: Outcome, wanted: Outcome) -> str:
    """Where two runs that should have the same bits differ; empty if nowhere."""
    if found.sentence != wanted.sentence:
        return f"it ended with {found.sentence!r}, not {wanted.sentence!r}"
    if len(found.records) != len(wanted.records):
        return f"{len(found.records)} rounds, not {len(wanted.records)}"
    for a, b in zip(found.records, wanted.records, strict=True):
        for key in sorted({*a, *b}):
            if repr(a.get(key)) != repr(b.get(key)):
                return f"{key} of round {a['round']} is {a.get(key)}, not {b.get(key)}"
    ours, others = {**found.model, **found.tensors}, {**wanted.model, **wanted.tensors}
    if set(ours) != set(others):
        return f"only one has {sorted(set(ours) ^ set(others))[0]!r}"
    for name, tensor in ours.items():
        other = others[name]
        if tensor.dtype != other.dtype or not torch.equal(_bits(tensor), _bits(other)):
            return f"{name} by {_apart(tensor, other, 0.0):.1e}"
    return ""


def _bits(tensor: Tensor) -> Tensor:
    """Numbers that compare as bits do: what is no number equals itself."""
    return torch.nan_to_num(tensor, nan=7.7e30) if tensor.is_floating_point() else tensor


def _another(seed: int) -> Case:
    return replace(drawn(seed + ANOTHER), laws=())


def _reshaped(case: Case) -> Case:
    """The same program with other clients, batches and seeds."""
    local = dict(case.config["local"])
    size = local.get("batch")
    changed = {**local, "batch": 6 if size is None else size + 1}
    config: Mapping[str, Any] = {
        **case.config, "local": changed, "seed": case.config["seed"] + 1, "participation": 1.0,
    }  # fmt: skip
    rows = (5,) if case.rows is None else tuple(n + 1 for n in case.rows)
    return replace(case, config=config, rows=rows)


def _last_line(error: BaseException) -> str:
    """Its kind, its words, and the line of ours that it came from."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/shoal/" in file or "/fuzz/" in file:
            place = f"{Path(file).parent.name}/{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]} ({place})"
