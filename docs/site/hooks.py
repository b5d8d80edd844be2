"""MkDocs hooks: the home page from the README, reference pages from docstrings, and links that leave `docs`.

A link to a file of the repository outside `docs` becomes a page of the site (README, CONTRIBUTING, CHANGELOG,
SECURITY) or a copy of the file; a link to a folder becomes plain text. So the site needs no other host.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import reference  # noqa: E402
import tables  # noqa: E402

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {"SECURITY.md": "security.md"}
COPIES, PROOFS = "files", "proofs/README.md"
_LINK = re.compile(r"(?<!`)(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\(([^)\s]+)\)")
_DESCRIBE = re.compile(r"^::: ([\w.*]+)$", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of a folder in the navigation where `mkdocs.yml` names the folder alone."""
    folders = {"reference/": _names("reference"), "proofs/": [PROOFS, *_names("proofs")]}
    folders["reference/methods/"] = list(reference.method_pages())
    config.nav = _replaced(config.nav, {mark: [_entry(page) for page in pages] for mark, pages in folders.items()})
    rest = sorted(_every_page() - set(_listed(config.nav)))
    config.nav += [{"More": rest}] if rest else []
    return config


def _every_page() -> set[str]:
    return {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def _listed(nav: Any) -> Iterator[str]:
    """Every page of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(item)


def _names(folder: str) -> list[str]:
    names = (path.name for path in sorted((ROOT / "docs" / folder).glob("*.md"), key=lambda path: path.name.lower()))
    return [f"{folder}/{name}" for name in names if name != "README.md"]


def _entry(page: str) -> Any:
    return page if page == PROOFS else {page.rpartition("/")[2].removesuffix(".md"): page}


def _replaced(nav: Any, folders: dict[str, list[Any]]) -> Any:
    if isinstance(nav, list):
        return [_replaced(item, folders) for item in nav]
    if isinstance(nav, dict):
        return {name: _replaced(item, folders) for name, item in nav.items()}
    return folders.get(nav, nav)


def _proofs() -> str:
    """The index of the proofs."""
    links = "\n".join(f"- [{path[7:-3]}]({path[7:]})" for path in _names("proofs"))
    return f"""# Proofs

Every event that a certificate can charge has a proof. A proof names the code that it was read against by its digest; a
test fails if that code changes.

{links}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, of the methods, and the files that pages link to."""
    for source, path in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text(encoding="utf-8")))
    for path, text in {PROOFS: _proofs(), **reference.method_pages()}.items():
        files.append(File.generated(config, path, content=text))
    for target in sorted(set().union(*(linked(file) for file in files.documentation_pages()))):
        files.append(File.generated(config, f"{COPIES}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    text = _DESCRIBE.sub(lambda match: reference.described(match[1]), markdown)
    return outside_code(text, lambda part: _LINK.sub(lambda match: _rewritten(match, page.file.src_uri), part))


def on_page_content(html: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    return tables.breakable(html)


def outside_code(text: str, change: Any) -> str:
    """The text with its prose changed and its fenced code as it is."""
    return "".join(part if part.startswith("```") else change(part) for part in _FENCE.split(text))


def linked(file: File) -> set[str]:
    """The files outside `docs` that a page links to."""
    targets = (target_of(match[2], file.src_uri) for match in _LINK.finditer(file.content_string))
    outside = (one for one in targets if one and one not in PAGES and not one.startswith("docs/"))
    return {one for one in outside if (ROOT / one).is_file()}


def target_of(link: str, page: str) -> str | None:
    """The path from the root of the repository that a link leads to; None for a link that stays as it is."""
    if re.match(r"[a-z]+:|#|/", link):
        return None
    origin = {path: source for source, path in PAGES.items()}.get(page, f"docs/{page}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link.partition("#")[0]))
    is_page = target.startswith("docs/") and origin.startswith("docs/") and not (ROOT / target).is_dir()
    return None if is_page else target


def _rewritten(match: re.Match[str], page: str) -> str:
    words, link = match[1], match[2]
    target, anchor = target_of(link, page), link.partition("#")[2]
    if target is None:
        return match[0]
    if target in PAGES:
        path = PAGES[target]
    elif target.startswith("docs/"):
        path = target.removeprefix("docs/")
        path = f"{path}/README.md" if (ROOT / target).is_dir() else path
    elif (ROOT / target).is_file():
        path = f"{COPIES}/{target}"
    else:
        return f"`{target}`"
    relative = posixpath.relpath(path, posixpath.dirname(page) or ".")
    return f"{words}({relative}{'#' + anchor if anchor else ''})"
