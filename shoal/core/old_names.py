"""Names that version 0.1 used, and what they are called now.

The old ones are read everywhere (configs, ``--set``, recipes, sweeps, agreements, ``world.json``),
written nowhere, and no message shows them. What is made of a complete config and must stay the same
(hashes, names of reproduced runs, digests of agreements) is made of them: :func:`spelled_as_0_1`.
So a key may be renamed by a line in ``KEYS``, and a value by one in ``VALUES``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

from shoal.core.errors import UserError

# ---- words of today that stand for others ----
Weights = Literal["by_samples", "equal"]
Rows = Literal[
    "test_present",
    "test_all",
    "test_by_task",
    "members_held_out",
    "members_held_out_by_samples",
    "members_held_out_both_models",
]
BY_SAMPLES: Final = "members_held_out_by_samples"
BOTH_MODELS: Final = "members_held_out_both_models"
OF_MEMBERS: Final = ("members_held_out", BY_SAMPLES, BOTH_MODELS)

# ---- the table ----
# a key of a config, dotted -> what it is called now, in the same place
KEYS: Final[Mapping[str, str]] = {
    "weights": "client_weights",
    "local.rate": "local.lr",
    "evaluate.on": "evaluate.rows",
    "evaluate.local": "evaluate.local_models_every",
    "guard.enabled": "guard.reject_non_finite",
    "guard.norm": "guard.max_norm",
}
CLIENT_WEIGHTS: Final[Mapping[str, Weights]] = {"samples": "by_samples", "uniform": "equal"}
ROWS: Final[Mapping[str, Rows]] = {
    "active": "test_present",
    "global": "test_all",
    "tasks": "test_by_task",
    "members": "members_held_out",
    "own": "members_held_out_by_samples",
    "each": "members_held_out_both_models",
}
WORLDS: Final[Mapping[str, str]] = {"still": "static"}
# a key of today -> its values: old -> new
VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "client_weights": CLIENT_WEIGHTS,
    "evaluate.rows": ROWS,
    "world": WORLDS,
    "world.name": WORLDS,
}
# a rule of a real federation's server -> what it is called now
SERVER_RULES: Final[Mapping[str, str]] = {
    "settle": "stable-rounds",
    "enough": "enough-share",
    "grace": "grace-seconds",
    "absent-after": "missed-before-gone",
}
# A slot of a part, or what a part says of itself -> what it is called now
PART: Final[Mapping[str, str]] = {
    "init_bank": "initial_models",
    "session_start": "start_model",
    "begin": "session_begins",
    "member_end": "client_session_end",
    "regroup": "update_models",
    "ask": "before_training",
    "route": "assign_models",
    "travels": "sent_share",
    "anchor": "after_server_step",
    "notice": "detect",
    "serve": "model_for",
    "payload_once": "payload_is_sent",
    "derivable_upload": "upload_costs_nothing",
    "displacement_memory": "needs_plain_sgd",
    "eager_reason": "loop_only_reason",
    "stays_put": "leaves_zero_gradients_alone",
}
PAYLOAD_IS_SENT: Final[Mapping[str, str]] = {"round": "each_round", "stage": "once_per_task"}
# ``processes`` ran methods that cannot be stacked, too: the rule finds the engine for those. How a
# run is computed is no part of a hash, so these are not turned back.
ENGINES: Final[Mapping[str, str]] = {"vectorized": "stacked", "processes": "auto"}
# Keys that moved into a section: neither was ever part of a hash.
MOVED: Final[Mapping[str, str]] = {"workers": "ray", "address": "ray"}
# Keys that mean nothing any more.
GONE: Final = ("engine_reason",)

_OLD_KEYS: Final = {new: old for old, new in KEYS.items()}
_OLD_VALUES: Final = {
    _OLD_KEYS.get(key, key): {new: old for old, new in values.items()}
    for key, values in VALUES.items()
}
_SECTIONS: Final = {key.split(".")[0] for key in (*KEYS, *VALUES) if "." in key}
assert set(ROWS.values()) == set(get_args(Rows))
assert set(CLIENT_WEIGHTS.values()) == set(get_args(Weights))


class TwiceError(UserError):
    """A mapping has one key under both of its names."""


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config with today's names; it may be incomplete, and in any mixture of the two spellings.

    >>> renamed({"engine": "vectorized", "seed": 1, "local": {"epochs": 2, "rate": 0.1}})
    {'engine': 'stacked', 'seed': 1, 'local': {'epochs': 2, 'lr': 0.1}}
    >>> renamed({"engine": "processes", "workers": 4, "world": "still"})
    {'engine': 'auto', 'world': 'static', 'threads': 4}
    >>> renamed({"engine": "ray", "workers": 4})
    {'engine': 'ray', 'ray': {'workers': 4}}
    >>> renamed({"local": {"lr": 0.1, "rate": 0.1}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    shoal.core.old_names.TwiceError: local.lr is given twice, ...
    """
    kept = {key: value for key, value in values.items() if key not in GONE}
    out = _spelled(kept, KEYS, VALUES)
    engine = out.get("engine")
    if isinstance(engine, str) and engine in ENGINES:
        out["engine"] = ENGINES[engine]
        workers = out.pop("workers", None)
        if workers is not None:
            out.setdefault("threads", workers)
    for key, section in MOVED.items():
        if key in out:
            inner, value = out.get(section) or {}, out.pop(key)
            if isinstance(inner, Mapping) and inner.get(key) not in (None, value):
                raise TwiceError(f"{section}.{key} is given twice, also as {key}; leave one out")
            out[section] = {**inner, key: value} if isinstance(inner, Mapping) else inner
    return out


def spelled_as_0_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same config with version 0.1's names of keys and values, in the same order.

    >>> spelled_as_0_1({"client_weights": "equal", "evaluate": {"rows": "test_all"}, "seed": 1})
    {'weights': 'uniform', 'evaluate': {'on': 'global'}, 'seed': 1}
    """
    return _spelled(values, _OLD_KEYS, _OLD_VALUES)


def todays_path(path: Sequence[Any]) -> tuple[Any, ...]:
    """The steps of a dotted key, by today's names.

    >>> todays_path(["local", "rate"]), todays_path(["world", "members"])
    (('local', 'lr'), ('world', 'members'))
    """
    if len(path) == 1 and path[0] in MOVED:
        return MOVED[path[0]], path[0]
    new = KEYS.get(".".join(map(str, path)))
    return tuple(path) if new is None else tuple(new.split("."))


def todays_world(spec: Any) -> Any:
    """A world's mapping under its name of today."""
    return renamed({"world": spec})["world"]


def _spelled(
    values: Mapping[Any, Any],
    keys: Mapping[str, str],
    choices: Mapping[str, Mapping[str, str]],
    section: str = "",
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        path = keys.get(f"{section}{key}", f"{section}{key}")
        name = path.removeprefix(section) if isinstance(key, str) else key
        if name in out:
            today = KEYS.get(path, path)
            raise TwiceError(f"{today} is given twice, also by version 0.1's name; leave one out")
        if isinstance(value, str):
            out[name] = choices.get(path, {}).get(value, value)
        elif isinstance(value, Mapping) and not section and name in _SECTIONS:
            out[name] = _spelled(value, keys, choices, f"{name}.")
        else:
            out[name] = value
    return out
