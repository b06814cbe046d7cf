"""Compares what a file expects with what was found."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.verify.registry import Values


@dataclass
class Comparison:
    """Floats within a tolerance; everything else exactly; keys of our own are ignored.

    >>> check = Comparison(1e-9)
    >>> check.compare({"w": [0.5, 2]}, {"w": [0.5, 3], "more": 1})
    >>> check.problems
    ['w[1]: expected 2, found 3']
    """

    tolerance: float
    worst: float = 0.0
    values: int = 0
    problems: list[str] = field(default_factory=list)

    def compare(self, expected: Values, found: Values, path: str = "") -> None:
        if isinstance(expected, dict):
            self._maps(expected, found, path)
        elif isinstance(expected, list):
            self._lists(expected, found, path)
        else:
            self.values += 1
            self._leaf(expected, found, path)

    def _maps(self, expected: dict[str, Values], found: Values, path: str) -> None:
        if not isinstance(found, dict):
            return self._wrong(path, f"expected a map, found {_short(found)}")
        # a map by client holds participants only, so there a key too many is wrong as well
        by_client = bool(expected) and all(key.isdigit() for key in expected)
        if by_client and (more := sorted(found.keys() - expected.keys())):
            self._wrong(path, f"has clients {', '.join(more)} that are not expected")
        for key, value in expected.items():
            inside = f"{path}.{key}" if path else key
            if key in found:
                self.compare(value, found[key], inside)
            else:
                self._wrong(inside, "is not produced")

    def _lists(self, expected: list[Values], found: Values, path: str) -> None:
        if not isinstance(found, list):
            return self._wrong(path, f"expected a list, found {_short(found)}")
        if len(expected) != len(found):
            self._wrong(path, f"expected {len(expected)} entries, found {len(found)}")
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            self.compare(one, other, f"{path}[{index}]")

    def _leaf(self, expected: Values, found: Values, path: str) -> None:
        if isinstance(expected, float) and _is_number(found):
            deviation = abs(expected - found)
            # a NaN on either side is the worst there is, and never within the tolerance
            self.worst = max(self.worst, deviation if deviation == deviation else float("inf"))
            right = deviation <= self.tolerance
        elif isinstance(expected, bool) or not isinstance(expected, int):
            right = type(expected) is type(found) and expected == found
        else:
            right = _is_number(found) and expected == found
        if not right:
            self._wrong(path, f"expected {_short(expected)}, found {_short(found)}")

    def _wrong(self, path: str, what: str) -> None:
        self.problems.append(f"{path}: {what}" if path else what)


def _is_number(value: Values) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Values) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
