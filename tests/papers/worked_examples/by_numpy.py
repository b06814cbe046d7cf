"""Base methods by plain numpy loops, section by section of their specification, on quadratics.

Nothing of the library is used: drawn cases are played here and by ``verify_case``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Vector = Any  # an array of float64
Data = Sequence[tuple[Vector, Vector]]  # a client's mini-batches: slopes and centres
Pull = Callable[[Vector], Vector]


class Base:
    """One method: what clients and server keep, and how a round goes."""

    def __init__(self, name: str, hyper: Mapping[str, Any], start: Vector) -> None:
        self.name, self.hyper, self.start = name, hyper, start
        self.kept: dict[int, Any] = {}  # by client
        self.begin()

    def begin(self) -> None:
        """Fresh server states, and control variates with them."""
        zero = np.zeros_like(self.start)
        self.m, self.d, self.c = zero, zero, zero
        self.v = zero + self.hyper["tau"] ** 2 if self.name == "FedAdam" else zero
        if self.name == "SCAFFOLD":
            self.kept = {}
        if self.name == "FedDC":
            self.kept = {i: (drift, zero) for i, (drift, _) in self.kept.items()}

    # ---- a client --------------------------------------------------------------------------------
    def slope(self, x: Vector, batch: tuple[Vector, Vector]) -> Vector:
        a, b = batch
        return a * (x - b) + self.hyper.get("weight_decay", 0.0) * x

    def corrected(self, i: int, x: Vector, start: Vector, sent: Vector, batch: Any) -> Vector:
        """The gradient that the method steps along."""
        name, hyper, zero = self.name, self.hyper, np.zeros_like(x)
        g, (a, b) = self.slope(x, batch), batch
        decay = g - a * (x - b)
        if name == "FedSAM":
            plain = a * (x - b)
            ahead = x + hyper["rho"] * plain / (np.linalg.norm(plain) + 1e-7)
            return a * (ahead - b) + decay
        if name == "FedCM":
            return hyper["alpha"] * a * (x - b) + (1 - hyper["alpha"]) * self.c + decay
        if name == "FedACG":
            return g + hyper["beta"] * (x - sent)
        if name in ("FedProx", "FedNova"):
            return g + hyper.get("mu", 0.0) * (x - sent)
        if name == "SCAFFOLD":
            return g + self.c - self.kept.get(i, zero)
        if name == "FedDyn":
            return g + hyper["alpha"] * (x - start) - self.kept.get(i, zero)
        if name == "FedDC":
            drift, own = self.kept.get(i, (zero, zero))
            return g + hyper["alpha"] * (x + drift - start) + self.c - own
        return g

    def train(self, i: int, sent: Vector, data: Data, rate: float, pull: Pull | None) -> Any:
        """Where the client begins, where it ends, and in how many steps; ``pull`` after epochs."""
        hyper, start = self.hyper, sent
        if self.name == "FedInit":
            start = sent + hyper["beta"] * (sent - self.kept.get(i, self.start))
        momentum = hyper.get("rho" if self.name == "FedNova" else "momentum", 0.0)
        x, buffer = start, np.zeros_like(sent)
        steps = hyper["E"] * len(data) if "E" in hyper else hyper["K"]
        for k in range(steps):
            g = self.corrected(i, x, start, sent, data[k % len(data)])
            buffer = momentum * buffer + g
            x = x - rate * buffer
            if pull is not None and (k + 1) % len(data) == 0:
                x = pull(x)
        return start, x, steps

    # ---- a round ---------------------------------------------------------------------------------
    def round(
        self,
        w: Vector,
        clients: Mapping[int, Data],
        weights: Sequence[float],
        rate: float,
        present: Sequence[int],
        factor: float = 1.0,
        pull: Pull | None = None,
    ) -> Vector:
        """The model after one; ``factor`` multiplies the server's rate."""
        shares = np.array(weights) / np.sum(weights)
        sent = w + self.hyper["lambda"] * self.m if self.name == "FedACG" else w
        ends = {i: self.train(i, sent, data, rate, pull) for i, data in clients.items()}
        moves = np.array([end - sent for _, end, _ in ends.values()])
        if self.name == "FedNova":
            norms = np.array([self.effort(steps, rate) for *_, steps in ends.values()])
            done = [steps for *_, steps in ends.values()] if self.hyper.get("mu") else norms
            moves = moves * (shares @ done / norms)[:, None]
        if self.name == "FedCM":
            slopes = [(start - end) / (steps * rate) for start, end, steps in ends.values()]
            self.c = shares @ np.array(slopes)
        changed = [self.remember(i, sent, ends[i], data, rate) for i, data in clients.items()]
        self.c = self.c + np.sum(changed, 0) / len(present)
        return self.stepped(w, shares @ moves, factor, present)

    def remember(self, i: int, sent: Vector, trip: Any, data: Data, rate: float) -> Vector:
        """The client's new memory, and by how much its variate changed."""
        (start, end, steps), zero = trip, np.zeros_like(sent)
        if self.name == "FedInit":
            self.kept[i] = end
        elif self.name == "SCAFFOLD":
            old = self.kept.get(i, zero)
            self.kept[i] = old - self.c + (start - end) / (steps * rate)
            if self.hyper.get("option") == 1:
                self.kept[i] = np.mean([self.slope(sent, batch) for batch in data], 0)
            return self.kept[i] - old
        elif self.name == "FedDyn":
            self.kept[i] = self.kept.get(i, zero) - self.hyper["alpha"] * (end - start)
        elif self.name == "FedDC":
            drift, old = self.kept.get(i, (zero, zero))
            new = old - self.c + (start - end) / (steps * rate)
            self.kept[i] = (drift + end - start, new)
            return new - old
        return zero

    def effort(self, steps: int, rate: float) -> float:
        """FedNova's ``|a_i|``, by its recursions."""
        total = count = 0.0
        for _ in range(steps):
            if self.hyper.get("mu"):
                total = (1 - rate * self.hyper["mu"]) * total + 1
            else:
                count = self.hyper.get("rho", 0.0) * count + 1
                total += count
        return total

    def stepped(self, w: Vector, D: Vector, factor: float, present: Sequence[int]) -> Vector:
        """The server's step."""
        hyper, rate = self.hyper, self.hyper.get("eta_g", 1.0) * factor
        if self.name == "FedAvgM":
            self.m = hyper["beta"] * self.m + D
            return w + rate * self.m
        if self.name == "FedACG":
            self.m = hyper["lambda"] * self.m + factor * D
            return w + self.m
        kept = [self.kept[i] for i in present if i in self.kept]
        if self.name == "FedDyn":
            return w + factor * D - sum(kept) / len(present) / hyper["alpha"]
        if self.name == "FedDC":
            return w + factor * D + sum(drift for drift, _ in kept) / len(present)
        if self.name not in ("FedAdam", "FLASH"):
            return w + rate * D
        b1, b2, old = hyper["beta1"], hyper["beta2"], self.v
        self.m = b1 * self.m + (1 - b1) * D
        self.v = b2 * old + (1 - b2) * D**2
        if hyper.get("base") == "yogi":
            self.v = old - (1 - b2) * D**2 * np.sign(old - D**2)
        if self.name == "FedAdam":
            return w + rate * self.m / (np.sqrt(self.v) + hyper["tau"])
        scale = np.abs(D**2 - self.v) + np.abs(old)
        b3 = np.divide(np.abs(old), scale, out=np.ones_like(scale), where=scale > 0)
        self.d = b3 * self.d + (1 - b3) * (D**2 - self.v)
        return w + rate * self.m / (np.maximum(np.sqrt(self.v) - self.d, 0) + hyper["tau"])
