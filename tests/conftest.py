"""Under tests a bug in a compiler's pass is an error, not a note; in processes they start, too."""

from __future__ import annotations

import os

os.environ["SHOAL_STRICT"] = "1"
