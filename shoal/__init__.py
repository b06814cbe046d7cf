"""Federated learning for federations that never hold still."""

__version__ = "0.1.0"
