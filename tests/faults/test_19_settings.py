"""Every setting has a domain, and what lies outside of it is refused in one sentence."""

from __future__ import annotations

import inspect
import math
from typing import Any, get_type_hints

import pytest

import shoal
from shoal import catalog
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.setting_types import described

SETTINGS = [
    (name, setting)
    for name, function in sorted(catalog.METHODS.items())
    for setting in inspect.signature(function).parameters
]
NEVER = (math.nan, "x", [[]], {}, "0.5")  # no setting of any method takes these
PROBLEM: dict[str, Any] = {
    "problem": {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2},
    "engine": "loop",
}


@pytest.mark.parametrize("name,setting", SETTINGS)
def test_every_setting_has_a_domain(name: str, setting: str) -> None:
    function = catalog.METHODS[name]
    assert described(get_type_hints(function, include_extras=True)[setting]), "it says no domain"
    for value in NEVER:
        with pytest.raises(UserError, match=rf"^method: {name}\.{setting} must be .+, not "):
            function(**{setting: value})
    default = inspect.signature(function).parameters[setting].default
    function(**{setting: default})


@pytest.mark.parametrize("name,setting", SETTINGS)
def test_numbers_are_no_truth_values_and_not_too_small(name: str, setting: str) -> None:
    function = catalog.METHODS[name]
    default = inspect.signature(function).parameters[setting].default
    if isinstance(default, bool):
        with pytest.raises(UserError, match="true or false"):
            function(**{setting: 1})
        return
    with pytest.raises(UserError, match="must be"):
        function(**{setting: True})
    if isinstance(default, int | float) and (name, setting) not in ANY_SIGN:
        with pytest.raises(UserError, match="must be"):
            function(**{setting: -1})


ANY_SIGN = {("fedinit", "beta"), ("flash", "gamma"), ("early_stop", "gamma")}


@pytest.mark.parametrize(
    "method,sentence",
    [
        ({"fedprox": {"mu": -1}}, "method: fedprox.mu must be a number of at least 0, not -1"),
        (
            {"fedprox": {"mu": math.nan}},
            "method: fedprox.mu must be a number of at least 0, not nan",
        ),
        ({"fedadam": {"beta1": 1.0}}, "fedadam.beta1 must be a number of at least 0 and below 1"),
        ({"hypcluster": {"k": 1.5}}, "hypcluster.k must be a whole number of at least 1, not 1.5"),
        ({"special": {"on": ["domains"]}}, "special.on must be a list of members, concept,"),
        ({"scaffold": {"option": 3}}, "scaffold.option must be 1 or 2, not 3"),
        ({"fedagg": {"eta_min": 0.5, "eta_max": 0.1}}, "fedagg.eta_min must be at most eta_max"),
        ({"fedagg": {"phi": "history", "probe_passes": 2}}, "probe_passes is 2; it is for phi"),
        ({"flwf_2t": {"a": 0.8, "b": 0.5}}, "a and b must add up to at most 1, not to 1.3"),
        (["fedavg", {"fedinit": {"beta": math.inf}}], "fedinit.beta must be a finite number"),
    ],
)
def test_a_config_is_refused_before_the_first_round(method: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build(from_mapping({**PROBLEM, "method": method}))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_what_papers_and_neutral_settings_use_is_admitted() -> None:
    inf = math.inf
    for name, settings in (
        ("fedinit", {"beta": -0.1}),
        ("flash", {"gamma": inf}),
        ("flash", {"gamma": -inf}),
        ("flash", {"gamma": None}),
        ("feddrift_eager", {"delta": inf}),
        ("dynamic_init", {"R": 0}),
        ("fedcm", {"alpha": 1}),
        ("fedadam", {"v_init": 0}),
        ("sr_fdil", {"B": 0}),
        ("fedgh", {"header_rate": 0}),
        ("flwf_2t", {"a": 1, "b": 0}),
        ("fedsam", {"rho": 0, "eps": 0}),
        ("pfeddil", {"threshold": 1.01}),
        ("fedcil", {"M": 0}),
    ):
        catalog.METHODS[name](**settings)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert catalog.build({"hypcluster": {"k": 3.0}}) == catalog.hypcluster(k=3)


@pytest.mark.parametrize(
    "change,sentence",
    [
        ({"local": {"schedule": {"name": "factor", "factor": True}}}, "factor must be"),
        ({"local": {"schedule": {"name": "polynomial", "final": math.nan}}}, "final must be"),
        ({"problem": {**PROBLEM["problem"], "b": [math.nan, 1]}}, "problem.b"),
        ({"problem": {**PROBLEM["problem"], "w0": [math.inf]}}, "problem.w0"),
        ({"problem": {**PROBLEM["problem"], "rounds": True}}, "problem.rounds must be"),
        ({"seed": 2**63}, "seed must be"),
        ({"guard": {"quorum": math.nan}}, "guard.quorum must be"),
        ({"participation": math.nan}, "participation must be"),
        ({"evaluate": {"target": math.nan}}, "evaluate.target must be"),
        ({"local": {"momentum": math.nan}}, "local.momentum must be"),
    ],
)
def test_other_keys(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        shoal.run(**{**PROBLEM, **change})
    assert sentence in str(caught.value)
