"""The loggers by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from shoal.errors import UserError, suggestion
from shoal.loggers.sink import Sink, Source


class _Entry(NamedTuple):
    module: str
    sink: str
    needs: tuple[str, ...]  # modules that must be there


_ENTRIES = {
    "csv": _Entry("csv_file", "CsvFile", ()),
    "tensorboard": _Entry("tensorboard_events", "TensorBoardEvents", ("tensorboard",)),
    "mlflow": _Entry("mlflow_store", "MlflowStore", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": _Entry("wandb_run", "WandbRun", ("wandb",)),
}
NAMES = tuple(_ENTRIES)


def check(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; an unknown name or a missing package is one sentence.

    >>> check(["csv", "csv"])
    ('csv',)
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in _ENTRIES:
            raise UserError(f"logger {name!r} is not known; {suggestion(name, NAMES)}")
        missing = [module for module in _ENTRIES[name].needs if find_spec(module) is None]
        if missing:
            raise UserError(
                f"logger {name!r} needs {' and '.join(missing)}, which is not installed; "
                f"get it with: pip install 'shoal[{name}]'"
            )
    return wanted


def open_sink(name: str, source: Source) -> Sink:
    """A logger on a run; its package is imported here, not before."""
    entry = _ENTRIES[name]
    make: Callable[[Source], Sink] = getattr(
        import_module(f"shoal.loggers.{entry.module}"), entry.sink
    )
    return make(source)
