"""In `make test-slow` nothing is left out because a package is missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

EXTRAS = ("peft", "transformers", "onnx", "onnxscript", "onnxruntime", "mlflow", "wandb")


@pytest.mark.slow
@pytest.mark.parametrize("package", EXTRAS)
def test_is_installed(package: str) -> None:
    assert find_spec(package) is not None, "pip install -r requirements/extra.txt"
