"""Each peer in an environment of its own, under ``.peers``: their pins exclude one another.

torch comes first and exactly, since any other request for it may bring a build for GPUs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".peers"
TORCH = "torch==2.13.0"
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "jax": (("jax==0.10.2", "jaxlib==0.10.2"),),
    "fedjax": (
        ("jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12", "fedjax==0.0.17", "numpy<2.1"),
    ),
    "pfl": ((TORCH, "numpy"), ("pfl==0.6.0",)),
    "flower": ((TORCH, "numpy"), ("flwr[simulation]>=1.41,<1.43",)),
}


def python_of(name: str) -> Path:
    """The interpreter of an environment; shoal's own is the one that runs this."""
    return Path(sys.executable) if name == "shoal" else FOLDER / name / "bin" / "python"


def install(name: str) -> None:
    """Make the environment, once; a stamp says that it is complete."""
    stamp = FOLDER / name / ".complete"
    wanted = repr(NEEDS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"bench-peers: installing {name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
    for group in NEEDS[name]:
        command = [str(python_of(name)), "-m", "pip", "install", "-q", *group]
        subprocess.run([*command, "--disable-pip-version-check"], check=True)
    stamp.write_text(wanted)
