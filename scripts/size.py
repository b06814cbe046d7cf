"""How large the package is, in all and without what came after version 0.1.

    python scripts/size.py

Counts modules and lines of code (no blank lines, docstrings, lines of comment). A module counts as
later only if all that it is for came later: what later features added to older modules counts as
version 0.1's.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "shoal"
LATER = {
    "adapters": """config/adapters.py methods/adapter_rules.py models/adapters.py
        papers/worked_examples/adapters.py""",
    "targets and losses": "data/targets.py metrics/losses.py",
    "layers that draw, augmentation": """core/layers/drawing.py core/layers/keeping.py
        data/augment.py""",
    "code of one's own": """config/gradients.py config/own_names.py core/own_code.py
        flower/agreed_code.py""",
    "tables as people have them": """cli/first_config.py data/columns.py data/given.py
        data/later_rows.py data/survey.py""",
    "tables and all targets in a real federation": """flower/data_form.py flower/node/figures.py
        flower/preparation.py flower/server/preparation.py""",
    "calendars": """data/sources/dated_tables.py data/time_column.py worlds/calendar.py
        worlds/changes/arrivals.py worlds/members/stays.py worlds/periods.py""",
    "changes that are compressed or private": "methods/parts/sent_changes.py",
    "runs that stop, go on, are scored again": "runs/longer.py runs/score.py runs/stopping.py",
    "exports": """cli/exports.py runs/exports/__init__.py runs/exports/card.py
        runs/exports/formats.py runs/exports/predict.py runs/exports/trained.py""",
    "sweeps on a cluster": "cli/clusters.py runs/sweep/on_ray.py",
    "clients' memories on the nodes of a cluster": """rounds/elsewhere.py runs/cluster/memories.py
        runs/cluster/share_crew.py""",
    "explained configs": "config/reference.py",
}


def lines_of_code(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    documented = set[int]()
    for node in ast.walk(ast.parse(text)):
        may = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if may and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(text.splitlines(), 1)
    )


def counted() -> dict[str, tuple[int, int]]:
    """Modules and lines of code: in all, of each later feature, and of the rest."""
    sizes = {str(p.relative_to(ROOT)): lines_of_code(p) for p in ROOT.rglob("*.py")}
    found = {"all": (len(sizes), sum(sizes.values()))}
    for feature, names in LATER.items():
        found[feature] = (len(names.split()), sum(sizes.pop(name) for name in names.split()))
    return {**found, "features of version 0.1": (len(sizes), sum(sizes.values()))}


if __name__ == "__main__":
    for what, (modules, lines) in counted().items():
        print(f"{what:42} {modules:4} modules {lines:6,} lines of code")
