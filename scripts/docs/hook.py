"""What the site's build does beyond Markdown: pages of methods, a navigation that is complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import api_page
import config_page
import method_page
from mkdocs.structure.files import File, Files

MADE = ("methods/", "config.md", "api.md")  # pages that the build makes
# Pages that may be written later; until then, links to them are plain words.
LATER = ("threat_model.md", "real_federation.md", "recipes.md")
LINK = re.compile(r"\[([^\]]+)\]\(([^):#\s]+\.md)\)")
# Links from a page to a file of the repository that is no page: shown as a path.
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Fill in the methods and results, and leave out pages that are not there (yet)."""
    root = Path(config["docs_dir"])
    methods = [{"All methods": "methods/index.md"}]
    for title, names in method_page.families().items():
        methods.append({title: [f"methods/{name}.md" for name in names]})  # type: ignore[dict-item]
    results = sorted(f"results/{p.name}" for p in (root / "results").glob("*.md"))
    filled = {"METHODS": methods, "RESULTS": results}
    config["nav"] = _there(_filled(config["nav"], filled), root)
    return config


def on_files(files: Files, config: Any) -> Files:
    """One page a method, made from the code; nothing is written into the tree."""
    curves = method_page.read_curves()
    pages = {"methods/index.md": method_page.index(curves), "config.md": config_page.page()}
    pages["api.md"] = api_page.page()
    for names in method_page.families().values():
        pages |= {f"methods/{name}.md": method_page.page(name, curves) for name in names}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that lead out of the site, or to pages not yet written, become words."""
    here = Path(config["docs_dir"]) / page.file.src_uri

    def shown(match: re.Match[str]) -> str:
        target = (here.parent / match.group(2).split("#")[0]).resolve()
        docs = Path(config["docs_dir"]).resolve()
        if target.is_relative_to(docs):
            return match.group(0)
        root = docs.parent
        path = str(target.relative_to(root)) if target.is_relative_to(root) else match.group(2)
        label = match.group(1).strip("`")
        return f"`{path}`" if label in path else f"{match.group(1)} (`{path}`)"

    def written(match: re.Match[str]) -> str:
        target = here.parent / match.group(2)
        return match.group(1) if target.name in LATER and not target.exists() else match.group(0)

    return LINK.sub(written, OUTSIDE.sub(shown, markdown))


def _filled(nav: list[Any], filled: dict[str, list[Any]]) -> list[Any]:
    out: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            [(title, inner)] = item.items()
            if isinstance(inner, list):
                out.append({title: _filled(inner, filled)})
            else:
                out.append({title: filled.get(inner, inner)})
        elif item in filled:
            out.extend(filled[item])
        else:
            out.append(item)
    return out


def _there(nav: list[Any], root: Path) -> list[Any]:
    out: list[Any] = []
    for item in nav:
        inner = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(inner, list):
            kept = _there(inner, root)
            out += [{next(iter(item)): kept}] if kept else []
        elif inner.startswith(MADE) or (root / inner).exists():
            out.append(item)
    return out
