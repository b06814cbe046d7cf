"""Does a change keep the figures? Makes the result pages again from their archives and compares.

python scripts/pages.py make DIR [--only PAPER,PAPER]     # with the package that Python imports
python scripts/pages.py compare docs/results DIR/pages    # the pages here with those made again
python scripts/pages.py compare OLD/pages NEW/pages

``make`` runs ``shoal reproduce PAPER --report-only --publish`` for every archive in
``docs/results/runs``; the archives themselves are not written. A second ``make`` into the same
folder reads the runs that the first one unpacked.

Compared are all lines of the pages and all verdicts with their numbers. Left out is what says how a
page was made (the command, the commit and day, the machine) and the words of a claim's rule. One
line is printed per difference; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ARCHIVES = HERE / "docs" / "results" / "runs"
MADE = ("- command:", "- reported by", "- shoal ", "- machine:")  # how a page was made
RULE = "rule"  # a column of words


def make(folder: Path, only: list[str]) -> None:
    """Every page again, in ``folder/pages``; tables and runs are in ``folder/PAPER``."""
    for archive in sorted(ARCHIVES.glob("*.tar.xz")):
        paper = archive.name.partition(".")[0]
        if only and paper not in only:
            continue
        out = folder / paper
        if not (out / "runs").exists():
            (out / "runs").mkdir(parents=True)
            subprocess.run(["tar", "-xJf", archive, "-C", out / "runs"], check=True)
        command = [sys.executable, "-m", "shoal", "reproduce", paper, "--report-only"]
        command += ["-o", str(out), "--publish", str(folder / "pages")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"{paper}: made", flush=True)


def lines_of(page: Path) -> list[str]:
    """What a page says, without how it was made and without the words of rules."""
    out: list[str] = []
    dropped: int | None = None  # the column of the rule, inside the table of claims
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = line.replace("\\|", "\0").split("|")
        if not line.startswith("|"):
            dropped = None
        elif f" {RULE} " in cells and " claim " in cells:
            dropped = cells.index(f" {RULE} ")
        if dropped is not None:
            line = "|".join(cells[:dropped] + cells[dropped + 1 :])
        if not line.startswith(MADE):
            out.append(line)
    return out


def claims_of(file: Path) -> list[str]:
    """Verdicts with their numbers, one line per claim."""
    with file.open(newline="", encoding="utf-8") as opened:
        return [str({k: v for k, v in row.items() if k != RULE}) for row in csv.DictReader(opened)]


def compare(old: Path, new: Path, only: list[str]) -> int:
    """Print every difference; returns how many there are."""
    pages = sorted(new.glob("*.md")) + sorted(new.glob("claims/*.csv"))
    pages = [page for page in pages if not only or page.stem in only]
    if not pages:
        sys.exit(f"{new} has no pages")
    count = 0
    for page in pages:
        other = old / page.relative_to(new)
        read = lines_of if page.suffix == ".md" else claims_of
        before, after = read(other) if other.exists() else [], read(page)
        found = [d for d in difflib.unified_diff(before, after, lineterm="", n=0)
                 if d[:1] in "+-" and not d.startswith(("+++", "---"))]  # fmt: skip
        said = f"{len(found)} differ" if found else "equal"
        print("\n".join([f"{page.relative_to(new)}: {len(after)} lines, {said}", *found]))
        count += len(found)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (("make", ["folder"]), ("compare", ["old", "new"])):
        command = commands.add_parser(name)
        for place in places:
            command.add_argument(place, type=Path)
        command.add_argument("--only", default="", help="papers, with commas")
    given = parser.parse_args()
    only = [paper for paper in given.only.split(",") if paper]
    if given.command == "make":
        make(given.folder, only)
    else:
        sys.exit(bool(compare(given.old, given.new, only)))


if __name__ == "__main__":
    main()
