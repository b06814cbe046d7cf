"""Executes a notebook without Jupyter: ``python scripts/docs/notebook.py examples/tour.ipynb``.

Cells run one after another in one namespace; what they print and show is stored in the file, as
Jupyter would, and nothing else of the file changes.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def executed(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with their outputs; raises what a cell raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done, count = [], 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _run("".join(cell["source"]), names, count)
            cell = {**cell, "execution_count": count, "outputs": outputs}
        done.append(cell)
    return done


def _run(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        outputs.append({"output_type": "execute_result", "execution_count": count,
                        "metadata": {}, "data": shown(value)})  # fmt: skip
    return outputs


def shown(value: Any) -> dict[str, str]:
    """The faces of a value: text, and HTML or a picture where it has them."""
    found = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_") and (text := value._repr_html_()):
        found["text/html"] = text
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=80)
        found["image/png"] = base64.b64encode(picture.getvalue()).decode()
    return found


def main() -> None:
    path = Path(sys.argv[1])
    book = json.loads(path.read_text(encoding="utf-8"))
    book["cells"] = executed(book["cells"])
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
