"""Fuzz for some minutes, or one seed: ``python -m fuzz --minutes 60``, ``python -m fuzz --seed 7``.

Seeds follow one another from ``--first``; each is one case, whatever was played before. A case
that breaks a law is played again alone, made smaller where that is cheap, and printed with the
command that plays it again. The exit code is 1 if one was broken.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fuzz.draw import Case, drawn
from fuzz.laws import Verdict
from fuzz.processes import Judge
from fuzz.shrink import smaller

TOGETHER = 60  # cases that follow one another in one process
SHRINKING = 20.0  # seconds


@dataclass
class Tally:
    """What came of the cases so far."""

    began: float = field(default_factory=time.monotonic)
    statuses: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    chaotic: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)

    def add(self, seed: int, verdict: Verdict) -> None:
        self.statuses[verdict.status] += 1
        self.laws.update(verdict.laws)
        self.ways.update(verdict.ways)
        if verdict.status == "refused":
            self.refusals[verdict.sentence[:100]] += 1
        if verdict.status == "chaotic":
            self.chaotic.append(seed)
        if verdict.status == "broken":
            self.broken.append(seed)

    def __str__(self) -> str:
        total, took = sum(self.statuses.values()), time.monotonic() - self.began
        said = ", ".join(
            f"{self.statuses[s]} {s}" for s in ("kept", "refused", "chaotic", "broken")
        )
        tried, ways = (
            ", ".join(f"{name} {n}" for name, n in counted.most_common())
            for counted in (self.laws, self.ways)
        )
        lines = [f"{total} cases in {took:.0f} s: {said}", f"laws: {tried}", f"ways: {ways}"]
        if self.chaotic:
            lines.append(f"not decided, rounding grows in them: seeds {self.chaotic}")
        if self.broken:
            lines.append(f"broken: seeds {self.broken}")
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    judge, tally = Judge(), Tally()
    try:
        if asked.seed is not None:
            return _one(asked.seed, judge, asked.law)
        seed = asked.first
        while not _over(asked, tally, seed - asked.first):
            verdict = judge.verdict(drawn(seed))
            tally.add(seed, verdict)
            if asked.verbose or verdict.status == "broken":
                print(f"seed {seed}: {verdict.status} {verdict.sentence}", flush=True)
            if verdict.status == "broken":
                _told(drawn(seed), judge)
            if len(judge.played) >= TOGETHER:
                judge.close()
            seed += 1
    except KeyboardInterrupt:
        pass
    finally:
        judge.close()
    print(tally)
    for sentence, count in tally.refusals.most_common(5 if not asked.verbose else None):
        print(f"  refused {count}: {sentence}")
    return 1 if tally.broken else 0


def _over(asked: argparse.Namespace, tally: Tally, count: int) -> bool:
    if asked.count is not None and count >= asked.count:
        return True
    return asked.minutes is not None and time.monotonic() - tally.began > 60 * asked.minutes


def _one(seed: int, judge: Judge, law: str | None) -> int:
    case = drawn(seed)
    if law is not None:
        case = replace(case, laws=(law,))
    print(f"seed {seed}:\n{case}")
    verdict = judge.verdict(case)
    print(f"{verdict.status} {verdict.sentence}{', '.join(verdict.laws)}")
    return 1 if verdict.status == "broken" else 0


def _told(case: Case, judge: Judge) -> None:
    """How to play it again, and a smaller case that breaks a law as well."""
    before = list(judge.played[:-1])
    judge.close()
    again = judge.verdict(case)
    if again.status != "broken":
        first = before[0] if before else case.seed
        print(f"  not alone: python -m fuzz --first {first} --count {case.seed - first + 1}")
        return
    print(f"  again: python -m fuzz --seed {case.seed}")
    small = smaller(case, lambda c: _kind(judge.verdict(c)) == _kind(again), SHRINKING)
    judge.close()
    print(f"{small}", flush=True)


def _kind(verdict: Verdict) -> tuple[str, ...]:
    """The fault, as far as its words tell it from others."""
    return (verdict.status, re.sub(r"[\d.e+-]+", "", verdict.sentence)[:30])


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m fuzz", description=(__doc__ or "").split("\n")[0]
    )
    found.add_argument("--seed", type=int, help="play this one alone")
    found.add_argument("--law", help="with --seed: this law beside the comparison of engines")
    found.add_argument("--first", type=int, default=0, help="the first seed (0)")
    found.add_argument("--count", type=int, help="so many cases")
    found.add_argument("--minutes", type=float, help="so long")
    found.add_argument("--verbose", action="store_true", help="a line for every case")
    return found


if __name__ == "__main__":
    sys.exit(main())
