"""What ``ray:`` says: every key, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.schema import from_mapping
from shoal.core.errors import UserError
from shoal.runs.cluster.connect import Cluster, connected

WORLD = {"name": "static", "members": 3, "rounds": 1, "partition": "iid"}


def settings(ray: Any) -> Any:
    return from_mapping({"data": "digits", "world": WORLD, "engine": "ray", "ray": ray}).ray


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"address": "a.b:6379"}, "a.b:6379"),
        ({"address": "ray://a:10001"}, "ray://a:10001"),
        ({"address": "[::1]:6379"}, "[::1]:6379"),
        ({"address": "auto"}, "auto"),
        ({"address": "local"}, "local"),
        ({"address": None}, None),
        ({"workers": 3}, 3),
        ({"cpus_per_worker": 2}, 2),
        ({"gpus_per_worker": 0}, 0),
        ({"memory": "1.5GiB"}, 3 * 2**29),
        ({"memory": 2**20}, 2**20),
        ({"runtime_env": {"env_vars": {"A": "1"}}}, {"env_vars": {"A": "1"}}),
        ({"working_dir": "s3://own/code.zip"}, "s3://own/code.zip"),
        ({"patience": 600}, 600.0),
    ],
)
def test_is_taken(given: dict[str, Any], found: object) -> None:
    assert getattr(settings(given), *given) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *[({"address": bad}, "write host:port") for bad in ("", "nowhere", "http://a:1", "a:b")],
        ({"address": 7}, "ray.address must be host:port"),
        *[({"workers": bad}, "ray.workers must be") for bad in (0, -1, "two", 2.5, True)],
        *[({"cpus_per_worker": bad}, "ray.cpus_per_worker must be") for bad in (0, 0.5)],
        *[({"gpus_per_worker": bad}, "use engine: stacked") for bad in (1, 0.5, -1)],
        *[({"memory": bad}, "ray.memory must be .*at least 1MiB")
          for bad in (0, 10, "10", "0GiB", "-1GiB", "much")],
        ({"runtime_env": ["pip"]}, "ray.runtime_env must be a mapping"),
        ({"runtime_env": {"env_var": {}}}, "Ray knows no 'env_var'.*did you mean 'env_vars'"),
        ({"runtime_env": {"working_dir": "."}}, "a key of its own"),
        *[({"working_dir": bad}, "is no folder on this machine") for bad in ("", "no/where")],
        *[({"patience": bad}, "ray.patience must be a number above 0") for bad in (0, -1)],
        ({"patience": float("inf")}, "ray.patience must be a finite number above 0, not inf"),
        ({"adress": "a:1"}, "did you mean 'address'"),
        ("auto", "ray must be a mapping of settings"),
    ],
)  # fmt: skip
def test_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as told:
        settings(given)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runtime_env": {"pip": 3}}, r"runtime_env\['pip'\] must be"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, r"runtime_env\['env_vars'\] must be"),
        ({"runtime_env": {"pip": ["a"], "conda": "b"}}, "cannot be specified at the same time"),
        ({"working_dir": "own://code.zip"}, "is not a valid URI"),
    ],
)
def test_what_ray_would_not_take_is_said_before_anything_starts(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=f"^ray.runtime_env, ray.working_dir: .*{said}") as told:
        connected(Cluster(**given))
    assert "\n" not in str(told.value)
