"""Configs: what a YAML file may say, and how it becomes settings, a world and a task."""

from shoal.config.config import Config, from_mapping
from shoal.config.load import load, load_run, located, read

__all__ = ["Config", "from_mapping", "load", "load_run", "located", "read"]
