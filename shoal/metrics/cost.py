"""What a method costs in communication, computation and storage, beside what was printed.

The counting rule: a *vector* is one model (parameters and running statistics). Communication is
vectors down and up per round and participant; computation is gradient evaluations per local step;
storage is what a client has at hand in a round: its working copy, what it kept since earlier rounds
and what it was sent beside the model. Ratios are to FedAvg, which sends 2, evaluates 1 and has 1.
What the server keeps beyond the model is measured too; the table leaves it out.

Two entries of the table follow from no rule: FedInit's storage and FedCM's. Two more count a
vector inside a local step, which no count of bytes sees: FedSAM's and FedDyn's storage.
"""

from __future__ import annotations

from typing import NamedTuple


class MethodCost(NamedTuple):
    """Measured vectors; ``gradients`` is None where it was not counted."""

    down: float
    up: float
    client: float  # kept by each client that was seen
    server: float
    gradients: float | None = None

    @property
    def communication_ratio(self) -> float:
        return (self.down + self.up) / 2.0

    @property
    def storage_ratio(self) -> float:
        """The working copy, what a client keeps, and what it is sent beside the model."""
        return 1.0 + self.client + max(0.0, self.down - 1.0)


class Printed(NamedTuple):
    """A row of FedInit's Table 8: ratios to FedAvg."""

    communication: float
    gradients: float
    storage: float
    note: str = ""


TABLE_8 = {
    "fedavg": Printed(1, 1, 1),
    "fedadam": Printed(1, 1, 1),
    "fedsam": Printed(1, 2, 2, "storage counts the perturbed point inside a step"),
    "scaffold": Printed(2, 1, 3),
    "feddyn": Printed(1, 1, 3, "storage counts the received model inside a step"),
    "fedcm": Printed(2, 1, 3, "printed as 2Cd and as 3x in the same row; follows from no rule"),
    "fedinit": Printed(1, 1, 1, "a client keeps its last model, so no rule gives 1x storage"),
}


def cost(
    vector: int,
    participants: int,
    bytes_down: int,
    bytes_up: int,
    clients: int = 0,
    client_bytes: int = 0,
    server_bytes: int = 0,
    gradients: float | None = None,
) -> MethodCost:
    """From measured bytes: ``vector`` is the size of one model, ``participants`` counts a client
    once for every round it was asked in, ``clients`` those that keep something.

    >>> cost(vector=100, participants=10, bytes_down=2000, bytes_up=1000, clients=4,
    ...      client_bytes=400)
    MethodCost(down=2.0, up=1.0, client=1.0, server=0.0, gradients=None)
    """
    each = vector * max(1, participants)
    return MethodCost(
        bytes_down / each,
        bytes_up / each,
        client_bytes / (vector * clients) if clients else 0.0,
        server_bytes / vector,
        gradients,
    )


def beside_table_8(measured: dict[str, MethodCost]) -> str:
    """Our figures beside the printed ones, one line per method; a dash is not printed there."""
    both = "ours / Table 8"
    lines = [
        f"{'method':<12}{'communication':>20}{'gradients per step':>20}{'storage':>18}",
        f"{'':<12}{both:>20}{both:>20}{both:>18}",
    ]
    for name, own in measured.items():
        there = TABLE_8.get(name)
        cells = (
            (own.communication_ratio, there and there.communication, 20),
            (own.gradients, there and there.gradients, 20),
            (own.storage_ratio, there and there.storage, 18),
        )
        text = "".join(f"{f'{_ratio(a)} / {_ratio(b)}':>{width}}" for a, b, width in cells)
        lines.append(f"{name:<12}{text}")
    notes = [f"{n}: {p.note}" for n, p in TABLE_8.items() if p.note and n in measured]
    return "\n".join([*lines, *notes])


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}x"
