"""Which of a config's names are code of the user's, and where that comes from."""

from __future__ import annotations

from collections.abc import Iterator

from shoal import models
from shoal.config.schema import Config
from shoal.core.own_code import CodeSource, import_module, is_own, source_of
from shoal.data import dataset
from shoal.methods import catalog


def own_names(config: Config) -> Iterator[tuple[str, str]]:
    """Keys and their ``module:name``, and names that nothing has been registered under."""
    if config.problem is None:
        if config.model.name not in models.names():
            yield "model", config.model.name
        if dataset.is_users(config.data.name):
            yield "data", config.data.name
    for item in config.method if isinstance(config.method, list) else [config.method]:
        for name in [item] if isinstance(item, str) else item:
            if name not in catalog.METHODS:
                yield "method", name
    loss = getattr(config.loss, "name", None)
    named = [("loss", loss or ""), *(("evaluate.metrics", n) for n in config.evaluate.metrics)]
    yield from ((key, name) for key, name in named if ":" in name)


def sources(config: Config) -> dict[str, CodeSource]:
    """Where the modules of a config's own names are, by the name of the module or package."""
    named = ((key, name.partition(":")[0]) for key, name in own_names(config) if is_own(name))
    found = [source_of(key, module) for key, module in named]
    return {source.module: source for source in found}


def import_own(config: Config) -> None:
    """Import them all, as states of a user's parts must be known before a checkpoint is read."""
    for key, name in own_names(config):
        if is_own(name):
            import_module(key, name.partition(":")[0])
