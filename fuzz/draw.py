"""What a seed stands for: one small run, drawn so that every corner has a chance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuzz import networks, samples
from fuzz.settings import drawn_method

REGISTERED = (networks.fuzz, samples.fuzz)  # configs name them
ONCE = ("threads", "history", "fresh", "resume", "paths")  # laws that play the case once more
OFTEN = 0.4  # how often each of them is tried
# Constants of the engine's plan, small enough that small runs have chunks, threads and factors.
ROWS = (  # of evaluation; the usual ones more often
    "test_present", "test_present", "test_all", "members_held_out", "members_held_out_both_models",
    "members_held_out_by_samples", "test_by_task",
)  # fmt: skip
LIMITS: Mapping[str, tuple[int, ...]] = {
    "MILLISECOND": (1_000, 100_000, 10_000_000),
    "LARGE_LAYER": (1, 64, 1024),
    "LARGE_STEP": (1, 10_000),
    "FACTORED_BYTES": (1, 20_000),
    "SMALL_STEP": (1, 1_000),
    "LAID_OUT_AT_ONCE": (1, 50),
    "FINEST": (3, 5),
}


@dataclass(frozen=True)
class Case:
    """A run to play: a config, and what no config can say."""

    seed: int
    config: Mapping[str, Any]
    double: bool = True  # float64; else float32
    rows: tuple[int, ...] | None = None  # of the clients in turn; None: what the world gives them
    weighted: bool = False  # rows count differently in the loss
    limits: tuple[tuple[str, int], ...] = ()
    laws: tuple[str, ...] = ()

    def __str__(self) -> str:
        known = {k: v for k, v in self.config.items() if k not in ("device", "checkpoint")}
        said = [f"{key}: {value}" for key, value in known.items()]
        said += [f"float64: {self.double}", f"rows: {self.rows}", f"weighted: {self.weighted}"]
        said += [f"limits: {dict(self.limits)}", f"laws: {', '.join(self.laws)}"]
        return "\n".join(f"  {line}" for line in said)


def drawn(seed: int) -> Case:
    """The case of a seed; the same in every process."""
    draw = random.Random(seed)
    double = draw.random() < 0.85
    laws = tuple(law for law in ONCE if draw.random() < OFTEN)
    sweep = draw.random() < 0.02
    if sweep:  # what no config says has no place in one
        laws, double = (*laws, "sweep"), False
    limits = tuple((k, draw.choice(v)) for k, v in LIMITS.items() if draw.random() < 0.5)
    config: dict[str, Any] = {"seed": draw.randrange(100), "device": "cpu"}
    config["threads"] = draw.choice((1, 2, 5, 16))
    config["method"] = drawn_method(draw)
    config["local"] = _local(draw)
    config["client_weights"] = draw.choice((None, None, "by_samples", "equal"))
    if draw.random() < 0.07:
        config |= _quadratic(draw)
        return Case(seed, _tidy(config), limits=limits, laws=laws)
    members = draw.choice((1, 2, 3, 5, 6, 8, 13, 20))
    config |= _subject(draw, members, double)
    config["participation"] = _participation(draw, members)
    config["sampling"] = draw.choice(("fixed", "fixed", "fixed", "bernoulli"))
    config["evaluate"] = _evaluate(draw)
    if draw.random() < 0.15:
        own = tuple(draw.choice((0.5, 1.0, 3.0)) for _ in range(config["data"]["classes"]))
        config["loss"] = {"class_weights": draw.choice(("balanced", own))}
    if draw.random() < 0.1:
        config["guard"] = {"max_norm": draw.choice((0.1, 1.0, 10.0)), "quorum": 1}
    _learnt(random.Random(~seed), config)
    rows, weighted = (None, False) if sweep else (_rows(draw), draw.random() < 0.1)
    return Case(seed, _tidy(config), double, rows, weighted, limits, laws)


def _tidy(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _learnt(draw: random.Random, config: dict[str, Any]) -> None:
    """Now and then numbers or several labels in place of classes, where the world knows none of
    them; and another loss."""
    world, kind = config["world"], draw.random()
    by_class = world["name"] in ("drift", "classes", "mixed") or world.get("labels")
    if kind < 0.25 and not by_class and config["data"]["name"] == "fuzz":
        target = "number" if kind < 0.15 else "multi_label"
        config["data"] |= {"target": target}
        config["loss"] = draw.choice(({}, "mae", {"name": "huber", "delta": 0.4}))
        config["loss"] = config["loss"] if target == "number" else "bce"
        world["partition"] = "iid"
        world.pop("bias", None)
        config["evaluate"].pop("metrics", None)  # those that fit are measured
    elif kind > 0.92:
        config["loss"] = {**config.get("loss", {}), "label_smoothing": draw.choice((0.1, 0.5))}


def _local(draw: random.Random) -> dict[str, Any]:
    optimizer = draw.choice(("sgd", "sgd", "sgd", "sgd", "adam", "adamw"))
    rate = draw.choice((0.02, 0.1)) * (1.0 if optimizer == "sgd" else 0.2)
    found: dict[str, Any] = {
        "epochs": draw.choice((1, 1, 2, 3)),
        "batch": draw.choice((1, 2, 3, 4, 4, 5, 7, 32, 100, None)),
        "lr": rate,
        "optimizer": optimizer,
        "shuffle": draw.random() < 0.75,
        "last_batch": draw.choice(("keep", "keep", "drop", "merge")),
    }
    if optimizer == "sgd" and draw.random() < 0.25:
        found["momentum"] = draw.choice((0.5, 0.9, 0.99))
    if draw.random() < 0.25:
        found["weight_decay"] = draw.choice((0.001, 0.1))
    if draw.random() < 0.2:
        found["clip"] = draw.choice((0.1, 1.0))
    if draw.random() < 0.2:
        found["steps"] = draw.choice((1, 2, 5, [1, 3, 7], [2, 1]))
    if draw.random() < 0.15:
        found["validation"] = draw.choice((0.0, 0.2, 0.5))
    if draw.random() < 0.2:
        found["schedule"] = draw.choice(
            (
                {"name": "factor", "factor": 0.8},
                {"name": "step", "factor": 0.5, "every": 2, "over": "run"},
                {"name": "step", "factor": 0.5, "over": "round"},
                {"name": "step", "factor": 0.5, "over": "task"},
                {"name": "polynomial", "power": 1.0},
            )
        )
    return found


def _quadratic(draw: random.Random) -> dict[str, Any]:
    clients = draw.choice((1, 2, 5))
    problem = {
        "name": "quadratic", "sessions": draw.choice((1, 2)), "rounds": draw.choice((2, 3)),
        "clients": clients, "size": draw.choice((1, 2, 5)),
        "steps_per_epoch": draw.choice((1, 1, 3)),
        "kind": draw.choice(("members", "domain", "concept")),
    }  # fmt: skip
    return {"problem": problem, "participation": draw.randint(1, clients)}


def _subject(draw: random.Random, members: int, double: bool) -> dict[str, Any]:
    """Data, a network that reads them, and a world."""
    classes = draw.choice((2, 3, 4, 5)) if draw.random() < 0.95 else 1
    family = draw.choice(
        ("linear", "mlp", "mlp", "mlp", "mixing", "wide", "convolutions", "convolutions",
         "sequences", "texts", "texts", "registered", "authored", "authored", "authored",
         "authored")
    )  # fmt: skip
    words, number = 0, draw.randrange(10**6)
    odd = (1, 2, 3, 5)
    if family == "registered":
        return _registered(draw, members, classes, double)
    if family == "convolutions":
        sides = draw.choice(((5,), (8,), (9,), (4, 4), (5, 3), (6, 6)))
        shape: tuple[int, ...] = (draw.choice((1, 2, 3)), *sides)
    elif family == "sequences":
        shape = (draw.choice((1, 3, 6)), draw.choice(odd))
    elif family == "texts":
        shape, words = (draw.choice((1, 4, 7)),), draw.choice((5, 9, 40, 400))
    elif family == "authored":
        kind = draw.choice(("flat", "image", "series", "text"))
        shape = {
            "flat": (draw.choice((3, 4, 7)),),
            "image": (draw.choice((1, 3)), *draw.choice(((5, 5), (6, 6), (8, 5)))),
            "series": (draw.choice((1, 3, 5)), draw.choice((1, 2, 3))),
            "text": (draw.choice((1, 4, 6)),),
        }[kind]
        words = draw.choice((9, 40)) if kind == "text" else 0
    elif family == "wide":
        shape = (draw.choice((64, 100, 256)),)
    else:
        shape = draw.choice(((1,), (3,), (4,), (7,), (16,), (1, 4, 4)))
    model = {"name": "fuzz", "family": family, "draw": number}
    data = {"name": "fuzz", "shape": list(shape), "words": words}
    return _placed(draw, data, model, members, classes, double)


def _registered(draw: random.Random, members: int, classes: int, double: bool) -> dict[str, Any]:
    """A network of the library, whose compiled steps outlive a run."""
    name, shape, options, words = draw.choice(
        (
            ("linear", (5,), {}, 0),
            ("mlp", (6,), {"hidden": [5]}, 0),
            ("mlp", (4,), {"hidden": [7, 3]}, 0),
            ("mlp", (64,), {"hidden": [100]}, 0),
            ("small_cnn", (1, 8, 8), {"widths": [2, 3], "hidden": 5}, 0),
            ("fasttext", (5,), {"width": 4}, 30),
            ("transformer", (4,), {"width": 4, "heads": 2, "hidden": 6, "layers": 1}, 20),
            ("char_lstm", (4,), {"hidden": 4, "layers": 1}, 20),
        )
    )
    data = {"name": "fuzz", "shape": list(shape), "words": words}
    return _placed(draw, data, {"name": name, **options}, members, classes, double)


def _placed(
    draw: random.Random,
    data: dict[str, Any],
    model: dict[str, Any],
    members: int,
    classes: int,
    double: bool,
) -> dict[str, Any]:
    world = _world(draw, members, classes, real=not data["words"])
    each = draw.choice((3, 6, 12)) * (classes if world.get("labels") else 1)
    rows = members * each + classes
    data |= {"classes": classes, "rows": rows, "double": double, "draw": draw.randrange(1000)}
    return {"data": data, "model": model, "world": world}


def _world(draw: random.Random, members: int, classes: int, real: bool) -> dict[str, Any]:
    name = draw.choice(
        ("static", "static", "static", "churn", "drift", "domains", "classes", "mixed")
    )
    rounds = draw.choice((2, 3, 3, 4))
    world: dict[str, Any] = {"name": name, "members": members}
    alpha = {"name": "dirichlet", "alpha": draw.choice((0.1, 1.0, 10.0))}
    world["partition"] = draw.choice(("iid", "iid", alpha))
    domains = draw.sample(["plain", "inverted", "noisy", "permuted", "dim"], 2) if real else [
        "plain", "permuted"
    ]  # fmt: skip
    drift = {"kind": "sudden", "at": 1, "share": draw.choice((0.5, 1.0))}
    if draw.random() < 0.3:
        drift = {"kind": "recurrent", "at": 1, "every": 1}
    if members < 4 or classes < 2:
        name = world["name"] = draw.choice(("static", "domains"))
    if name == "churn":
        world |= {"sessions": 2, "rounds_per_session": 2, "groups": 2, "members": members // 2 * 2}
        if draw.random() < 0.5:
            world |= {"labels": "split"}
    elif name == "domains":
        world |= {"domains": domains, "rounds_per_stage": 2}
    elif name == "classes":
        world |= {"stages": 2, "rounds_per_stage": 2, "cumulative": draw.random() < 0.5}
    elif name == "mixed":
        world |= {
            "sessions": 2, "rounds_per_session": 2, "groups": 2, "members": members // 2 * 2,
            "domains": domains, "rounds_per_stage": 2, "drift": drift,
        }  # fmt: skip
    else:
        world["rounds"] = rounds
        if name == "drift":
            world["drift"] = drift
    if draw.random() < 0.15:
        world["hidden"] = True
    if draw.random() < 0.06:
        world["available"] = {"name": "diurnal", "share": 0.8}
    return world


def _participation(draw: random.Random, members: int) -> int | float:
    here = max(1, members // 2)
    if draw.random() < 0.4:
        return draw.choice((0.2, 0.5, 1.0))
    return draw.choice((1, here, draw.randint(1, here)))


def _evaluate(draw: random.Random) -> dict[str, Any] | None:
    if draw.random() < 0.5:
        return {"every": 10}
    found: dict[str, Any] = {"rows": draw.choice(ROWS)}
    if draw.random() < 0.15:
        found["local_models_every"] = draw.choice((1, 2))
    if draw.random() < 0.15:
        found["train"] = True
    if draw.random() < 0.15:
        found["held_out"] = draw.choice((None, 0.5))
    if draw.random() < 0.15:
        found["metrics"] = draw.choice((["auc"], ["f1"], ["auc", "f1"]))
    if draw.random() < 0.1:
        found["members"] = 2
    return found


def _rows(draw: random.Random) -> tuple[int, ...] | None:
    """Sizes of the clients in turn; a client of fewer rows has all of them."""
    way = draw.choice(("world", "world", "equal", "equal", "unequal", "one", "none"))
    if way == "equal":
        return (draw.choice((1, 2, 3, 4, 8)),)
    if way == "unequal":
        return tuple(draw.choice((1, 2, 3, 5, 6, 9)) for _ in range(draw.choice((2, 3, 5))))
    if way == "none":  # some clients have no rows at all
        return (draw.choice((2, 5)), 0) if draw.random() < 0.3 else (1,)
    return (1, draw.choice((1, 4))) if way == "one" else None
