"""MODEL_CARD.md: what went into a model, how it does, and what is private."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.config.subject import dataset_of
from shoal.data.dataset import about
from shoal.metrics.figures import scored_on
from shoal.models.adapters import AdaptedNetwork
from shoal.runs.exports.trained import TrainedModel
from shoal.runs.origin import read_origin
from shoal.runs.records import read_rounds

LISTED = 50  # members with a line of their own
Table = dict[str, NDArray[Any]]


def model_card(
    trained: TrainedModel, kind: str, files: Sequence[str], rows: int, apart: float
) -> str:
    """The card of an exported model, as Markdown."""
    plan, task = trained.plan, trained.task
    config = plan.config
    records = [r for r in read_rounds(trained.where.rounds) if r["round"] < trained.rounds]
    numbers = task.layout.size
    adapters = task.build.adapters if isinstance(task.build, AdaptedNetwork) else None
    lines = [
        f"# {config.model.name} on {config.data.name}, trained by {plan.settings.method.name}",
        "",
        f"Made by shoal {shoal.__version__} from `{trained.where.path.name}`: {trained.who}, after "
        f"{trained.rounds} of {plan.world.rounds} rounds (seed {config.seed}).",
        "",
        f"- Network: `{config.model.name}`, samples of shape {tuple(task.shape or ())}, "
        f"{'numbers' if task.classes is None else f'{task.classes} classes'} as answers, "
        f"{numbers:,} trained numbers",
    ]
    if adapters is not None:
        lines.append(
            f"- Adapters: LoRA, rule {adapters.rule}, largest rank {adapters.rank}, alpha "
            f"{adapters.alpha:g}; the base is frozen"
        )
    lines += [
        f"- Files ({kind}): {', '.join(f'`{name}`' for name in files)}",
        f"- Checked: read back, the outputs on {rows} rows of the run's are within {apart:.1e} of "
        f"the run's own",
        "",
        "## Data",
        "",
        *_data(trained),
        "",
        *_inputs(trained),
        "## Members and rounds that went in",
        "",
        *_members(trained),
        "",
        "## Figures on held-out rows",
        "",
        *_figures(trained, records),
        "",
        "## Privacy",
        "",
        *_privacy(trained, records),
    ]
    return "\n".join(lines) + "\n"


def _data(trained: TrainedModel) -> Iterator[str]:
    config, world = trained.plan.config, trained.plan.world
    known = about(config.data.name)
    yield f"- `{config.data.name}`: {known.title} (licence: {known.licence})"
    for name, told in (("pool", "training"), ("test_pool", "test")):
        pool = getattr(world, name, None)
        if pool is not None:
            yield f"- {len(pool.y):,} {told} rows"
    origin = read_origin(trained.where.origin)
    for name, digest in (origin.data if origin is not None else {}).items():
        yield f"- digest of `{name}`: `{digest}`"
    yield f"- World: `{config.world.name}`"


def _inputs(trained: TrainedModel) -> Iterator[str]:
    """How rows of the user's own tables become what the files take."""
    if trained.plan.config.data.name != "files":
        return
    data = dataset_of(trained.plan.config)
    if data.class_names:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(data.class_names[:LISTED]))
        yield f"Classes, in the order of the outputs: {names}."
        yield ""
    for mean, deviation in trained.task.unit:
        yield (f"An output of `model.safetensors` is a deviation: the answer is {mean:.8g} + "
               f"{deviation:.8g} x output (other formats and `shoal predict` do it).")  # fmt: skip
        yield ""
    made = data.columns
    if made is None:
        return
    yield (
        "The files take inputs as prepared here (`shoal predict` does it): in this order, the mean "
        "for what is missing, less `shift`, divided by `width`."
    )
    yield ""
    yield "| input | mean | shift | width |"
    yield "|---|---|---|---|"
    offsets = [getattr(e, "offset", 0.0) for e in made.encoders for _ in e.names]
    rows = zip(made.names, offsets, made.mean, made.shift, made.width, strict=True)
    for name, offset, mean, shift, width in list(rows)[: 20 * LISTED]:
        yield f"| {name} | {offset + mean:.8g} | {offset + shift:.8g} | {width:.8g} |"
    yield ""


def _members(trained: TrainedModel) -> Iterator[str]:
    """Whose uploads were accepted, how often, and over how many samples."""
    table = _clients(trained)
    if table is None:
        yield "No table of members was kept."
        return
    went = table["steps"] > 0
    ids, place = np.unique(table["client"][went], return_inverse=True)
    rounds = np.bincount(place, minlength=len(ids))
    samples = np.bincount(place, table["samples"][went], len(ids)).astype(np.int64)
    yield (
        f"{len(ids)} members, {int(rounds.sum()):,} accepted uploads, "
        f"{int(samples.sum()):,} samples seen (a sample counts in every epoch)."
    )
    accuracy = _last_accuracy(table)
    yield ""
    yield "| member | rounds | samples seen | accuracy on its own held-out rows |"
    yield "|---|---|---|---|"
    for member, often, seen in list(zip(ids.tolist(), rounds, samples, strict=True))[:LISTED]:
        own = accuracy.get(member)
        shown = "-" if own is None else f"{100 * own:.2f} %"
        yield f"| {member} | {often} | {seen:,} | {shown} |"
    if len(ids) > LISTED:
        yield ""
        yield f"{len(ids) - LISTED} more members are in `clients.parquet` of the run."


def _figures(trained: TrainedModel, records: Sequence[dict[str, Any]]) -> Iterator[str]:
    scored = [r for r in records if r.get("loss") is not None]
    if not scored:
        yield "The run was not evaluated."
        return
    last, rules = scored[-1], trained.plan.config.evaluate.model_dump()
    yield f"After round {last['round']}, on: {scored_on(rules, last.get('own_rows'))}."
    yield ""
    if last.get("accuracy") is not None:
        yield f"- accuracy {100 * last['accuracy']:.2f} %"
    yield f"- loss {last['loss']:.4g}"
    for name, value in (last.get("metrics") or {}).items():
        yield f"- {name} {value:.4g}" if isinstance(value, int | float) else f"- {name} {value}"
    own = last.get("personalised")
    if own:
        parts = (f"{name} {100 * value:.2f} %" for name, value in own.items() if value is not None)
        yield f"- over members: {', '.join(parts)}"
    if trained.who != "the global model":
        yield ""
        yield f"These are the run's figures; the files hold {trained.who}."
    if not own:
        yield ""
        yield (
            "Members were not scored on rows of their own; write `evaluate: {rows: "
            "members_held_out}` for that."
        )


def _privacy(trained: TrainedModel, records: Sequence[dict[str, Any]]) -> Iterator[str]:
    spent = [r["epsilon"] for r in records if r.get("epsilon") is not None]
    noisy = [p for p in trained.plan.settings.method.parts if p.protects_change]
    if noisy:
        yield f"- {noisy[0].describe()}"
    if spent:
        delta = getattr(noisy[0], "delta", None) if noisy else None
        at = "" if delta is None else f" at delta {delta:g}"
        yield f"- epsilon {float(np.max(spent)):.4g}{at}, for members, over all rounds so far"
    if not noisy:
        yield "- No differential privacy: changes were neither clipped nor covered by noise."
    yield (
        "- The rounds were simulated: one process held all members' rows, and secure aggregation "
        "was not used."
    )
    if trained.who.startswith("member"):
        yield "- A personal model may tell of its member's rows more than the global one does."


def _clients(trained: TrainedModel) -> Table | None:
    from pyarrow import parquet

    path = trained.where.clients
    if not path.exists():
        return None
    columns = ["round", "client", "steps", "samples", "accuracy"]
    table = parquet.read_table(path, columns=columns)
    found = {name: table.column(name).to_numpy() for name in columns}
    kept = found["round"] < trained.rounds
    return {name: values[kept] for name, values in found.items()}


def _last_accuracy(table: Table) -> dict[int, float]:
    """Every member's newest accuracy."""
    scored = np.isfinite(table["accuracy"])
    order = np.argsort(table["round"][scored], kind="stable")
    clients, values = table["client"][scored][order], table["accuracy"][scored][order]
    return dict(zip(clients.tolist(), values.tolist(), strict=True))
