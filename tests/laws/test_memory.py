"""Law 6: memory follows the cohort, not the population."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from shoal import run
from shoal.runs.summary import peak_memory_mb
members = int(sys.argv[1])
world = {"name": "churn", "members": members, "lazy": True, "samples": 20, "sessions": 2,
         "rounds_per_session": 3, "groups": 2, "partition": {"name": "dirichlet", "alpha": 0.5}}
result = run(world=world, method="fedavg", participation=20, engine="loop", seed=0)
assert len(result.rounds) == 6
print(int(1024 * peak_memory_mb()))
"""


def peak(members: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(members)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_thousand_times_the_members_costs_less_than_a_tenth_more() -> None:
    few, many = peak(100), peak(100_000)
    assert many < 1.1 * few, f"{few} kB with 100 members, {many} kB with 100,000"
