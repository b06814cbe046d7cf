"""``shoal new``, ``shoal data look``, ``shoal config``: from a table to a config, and its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shoal.core.errors import UserError, shown

if TYPE_CHECKING:
    from shoal.data.survey import Survey

Y = typer.Option("", "--y", metavar="COLUMN,...", help="The column of the answers, or several.")
MEMBER = typer.Option("", "--member", metavar="COLUMN", help="The column of whose row it is.")
DATE = typer.Option("", "--date", metavar="COLUMN", help="The column of when.")
FILE = typer.Argument(help="A table: .csv, .csv.gz, .parquet, .npz.")


def new(file: Path = FILE, y: str = Y, member: str = MEMBER, date: str = DATE) -> None:
    """Look at a table and write a config that runs: ./NAME.yaml.

    What is not named is guessed, and said.
    """
    target = Path(f"{file.name.partition('.')[0]}.yaml")
    if target.exists():
        raise UserError(f"{target} exists already; move it away, or write another config by hand")
    found = looked_at(file, y, member, date)
    from shoal.core.files import write_text

    for line in described(found):
        typer.echo(line)
    write_text(target, written(found, file), shared=True)
    typer.echo(f"\nwrote {target}; next: shoal run {target} -o runs/{target.stem}")


def look(file: Path = FILE, y: str = Y, member: str = MEMBER, date: str = DATE) -> None:
    """What is in a table, and what 'shoal new' would make of it; nothing is written."""
    for line in described(looked_at(file, y, member, date)):
        typer.echo(line)


def looked_at(file: Path, y: str, member: str, date: str) -> Survey:
    from shoal.data.survey import survey

    if not file.exists():
        raise UserError(f"there is no file {file}")
    if file.is_dir():
        raise UserError(f"{file} is a folder; write data: {{path: {file}}} for images in one "
                        f"folder per class")  # fmt: skip
    named = [name.strip() for name in y.split(",") if name.strip()]
    return survey(file, named, member or None, date or None)


# ---- what was found ------------------------------------------------------------------------------
def described(found: Survey) -> Iterator[str]:
    """Lines for people."""
    yield f"{found.where}: {found.rows:,} rows, {len(found.columns)} columns"
    yield ""
    width = max(len(shown(c.name)) for c in found.columns)
    for c in found.columns:
        facts = [c.sort if not c.format else f"{c.sort} written {c.format}"]
        if c.distinct and c.sort in ("categories", "whole numbers"):
            facts.append(f"{c.distinct:,} different")
        if c.missing:
            facts.append(f"{c.missing:,} missing")
        if c.odd:
            facts.append(f"{c.odd[0]!r} for a missing value")
        facts.append(f"such as {shown(c.example, 40)}" if c.example else "")
        told = ", ".join(fact for fact in facts if fact)
        yield f"  {shown(c.name):<{width}}  {_role(found, c.name):<11}{told}"
    yield ""
    yield f"answers: {', '.join(found.y)} ({answers(found)})"
    if found.member:
        yield f"members: {members(found)}"
    for guess in found.guesses:
        yield f"guessed: {guess}"


def _role(found: Survey, name: str) -> str:
    roles = {
        found.member: "member",
        found.date: "date",
        found.test: "test rows",
        found.text: "text",
    }
    out = dict(found.leave_out)
    if name in found.y:
        return "answer"
    return roles.get(name, "left out" if name in out else "input")


def answers(found: Survey) -> str:
    if found.target == "class":
        most = max(count for _, count in found.classes)
        names = ", ".join(shown(name, 20) for name, _ in found.classes[:6])
        more = ", ..." if len(found.classes) > 6 else ""
        share = 100 * most / found.rows
        return f"{len(found.classes)} classes: {names}{more}; the largest has {share:.0f}% of rows"
    return {"number": "numbers", "multi_label": "labels, any of which a row may have"}[found.target]


def members(found: Survey) -> str:
    counts = sorted(count for _, count in found.members)
    middle = counts[len(counts) // 2]
    return (f"{len(counts):,} by {found.member}, with {counts[0]:,} to {counts[-1]:,} rows each "
            f"(half have fewer than {middle:,})")  # fmt: skip


# ---- the config ----------------------------------------------------------------------------------
def written(found: Survey, file: Path) -> str:
    """A commented config. Its rates suit a linear model over normalised columns."""
    import yaml

    def line(key: str, value: Any, why: str = "") -> str:
        flow = yaml.safe_dump({key: value}, default_flow_style=True, width=1 << 20,
                              sort_keys=False, allow_unicode=True)  # fmt: skip
        text = flow.strip()[1:-1]
        return f"  {text}  # {why}" if why else f"  {text}"

    out = [
        f"# Made by `shoal new {file}`: {found.rows:,} rows, {len(found.columns)} columns.",
        *(f"# Guessed: {guess}." for guess in found.guesses),
        "# `shoal config KEY` explains a key; `shoal data info files` the options of data.",
        "seed: 0",
        "data:",
        line("path", str(file)),
        line("y", found.y[0] if len(found.y) == 1 else list(found.y), answers(found)),
    ]
    if found.target != "class" or found.of(found.y[0]).sort == "numbers":
        out.append(line("target", found.target))
    if "x" in found.inputs and len(found.inputs) > 1:  # alone it would be the only input
        out.append(line("x", list(found.inputs), "a column called x alone would be the only input"))
    if found.member:
        out.append(line("client", found.member, members(found)))
    if found.date:
        when: dict[str, Any] = {"column": found.date, "features": list(found.features)}
        form = found.of(found.date).format
        out.append(line("date", {**when, "format": form} if form else when, "what of a date is an "
                        "input; without this line it is none"))  # fmt: skip
    if found.text:
        size = max(200, min(2000, 40_000_000 // found.rows))
        out.append(line("text", {"column": found.text, "as": "counts", "vocabulary": size},
                        "its most frequent words"))  # fmt: skip
    names = [*(name for name, _ in found.leave_out)]
    if found.date and not found.features:
        names.append(found.date)
    if names:
        why = "; ".join(f"{name}: {reason}" for name, reason in found.leave_out)
        out.append(line("leave_out", names, why))
    if found.odd:
        out.append(line("missing", found.odd, "stands for a missing value"))
    out.append(line("normalize", "standard", "mean 0, deviation 1, by training rows"))
    if found.test:
        out.append(line("test", found.test, "rows that are not trained on"))
    else:
        out.append(line("test", 0.2, "the share of rows that are not trained on"))
    return "\n".join([*out, *_training(found)]) + "\n"


def _training(found: Survey) -> list[str]:
    rows = found.rows
    many = len(found.members) > 100
    rounds = 60 if rows < 50_000 else 30
    batch = 32 if rows < 20_000 else 128 if rows < 500_000 else 1024
    kind = {"class": "logistic regression", "multi_label": "logistic regression for each label",
            "number": "linear regression"}[found.target]  # fmt: skip
    # YAML takes 1e-05 for a text
    decay = f"{float(f'{1 / (0.8 * rows):.1g}'):.12f}".rstrip("0")
    penalty = "}" if found.target == "number" else (
        f", weight_decay: {decay}}}  # 1 by training rows, so that rare values are not overrated"
    )  # fmt: skip
    metrics = {"class": "[f1]", "multi_label": "[f1]", "number": "[r2, mae, rmse]"}[found.target]
    if found.member:
        world = f"{{name: static, partition: natural, rounds: {rounds}}}  # each {found.member}"
    else:
        world = (
            f"{{name: static, members: {found.dealt}, partition: iid, rounds: {rounds}}}  # dealt "
            "at random"
        )
    return [
        f"model: {{name: linear}}  # {kind}; {{name: mlp, hidden: [32]}} for what is not linear",
        f"world: {world}",
        *(
            [f"# rows as they came: {{name: dated, column: {found.date}, period: month}}"]
            if found.member and found.date
            else []
        ),
        f"participation: {'100' if many else '1.0'}  # members per round: a number, or a share",
        f"local: {{epochs: 2, batch: {batch}, lr: 0.1, optimizer: adam, schedule: polynomial"
        f"{penalty}",
        "method: fedavg  # `shoal methods` lists the others",
        "evaluate:",
        "  rows: test_all  # the test rows above; members_held_out scores each member on its own",
        f"  metrics: {metrics}",
    ]


# ---- the keys of a config ------------------------------------------------------------------------
def config(
    key: str = typer.Argument("", help="A key, such as local.lr; left out: all keys."),
    schema: bool = typer.Option(False, "--schema", help="Print a JSON schema for editors."),
) -> None:
    """What a config may say."""
    from shoal.config.reference import described_key, json_schema

    if schema and key:
        raise UserError("--schema prints all keys; leave out the key")
    typer.echo(json.dumps(json_schema(), indent=2) if schema else described_key(key))


__all__: Sequence[str] = ["config", "look", "new"]
