"""What a node answers when it does not do what it was told."""

from __future__ import annotations


class CannotError(Exception):
    """Why a node does not do what it was told; the sentence goes to the server."""
