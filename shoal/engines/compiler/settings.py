"""What the environment says about the compiler, read here and nowhere else."""

from __future__ import annotations

import os

# SHOAL_TORCHSCRIPT=0: every step and function is played by Python, as where torch has no
# TorchScript any more. Results are the same, rounds of many small operators slower.
TORCHSCRIPT = os.environ.get("SHOAL_TORCHSCRIPT", "1") != "0"

# SHOAL_STRICT=1 (tests): an exception inside a pass is raised. Otherwise it becomes a note, and the
# step does without the pass.
STRICT = os.environ.get("SHOAL_STRICT", "0") == "1"
