"""One page per public name, and summary tables that lead to them.

The pages of docs/api list the public names by directives (`autofunction`, `autoclass`,
`automodule`). The build writes a page for each name into docs/api/generated and replaces the
directives by tables of names and first sentences. Names of the modules on the pages `papers` and
`reproductions` stay together on a page of their module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sections
from numpydoc.docscrape import NumpyDocString

API = Path(__file__).parent / "api"
GENERATED = API / "generated"
BY_MODULE = ("papers", "reproductions")  # pages whose modules are shown as a whole
BLOCK = re.compile(r"```\{eval-rst\}\n(?P<directives>.*?)```\n", flags=re.DOTALL)


class GeneratedPage(NamedTuple):
    """A page of docs/api/generated: its name and its text."""

    name: str
    text: str


def short_name(name: str) -> str:
    """A name as users write it after `sgd.`; of another distribution, with its package."""
    return name.removeprefix("sgdynamics.")


def summary(target: Any) -> str:
    """First sentence of a docstring, for a cell of a table."""
    paragraph = " ".join(NumpyDocString(inspect.getdoc(target) or "")["Summary"])
    sentence = re.split(r"(?<=[.:])\s(?=[A-Z])", paragraph, maxsplit=1)[0].rstrip(":")
    return sentence.replace("|", "\\|").replace("*", "\\*")


def table(objects: list[tuple[str, Any]]) -> str:
    """Names with links to their pages, and their first sentences."""
    rows = [
        f"| {{py:obj}}`{short_name(name)} <{name}>` | {summary(target)} |"
        for name, target in objects
    ]
    return "\n".join(["| name | summary |", "| --- | --- |", *rows])


def page_of(name: str, directive: str) -> GeneratedPage:
    """The page of a name or a module."""
    return GeneratedPage(name, f"# `{short_name(name)}`\n\n```{{eval-rst}}\n{directive}```\n")


def members(directive: re.Match[str]) -> list[tuple[str, Any]]:
    """The functions and classes that a directive documents, without methods and properties."""
    objects = sections.objects_of(directive)
    return [(name, target) for kind, name, target in objects if kind in ("function", "class")]


def replacement(page: str, directive: re.Match[str]) -> tuple[list[tuple[str, Any]], str, list]:
    """Rows of the table, directives that stay on the page, and generated pages."""
    rows = members(directive)
    text = directive[0] if directive[0].endswith("\n") else f"{directive[0]}\n"
    if directive["kind"] != "module":
        return rows, "", [page_of(directive["name"], text)]
    if page in BY_MODULE:
        return rows, "", [page_of(directive["name"], text)]
    pages = []
    for name, target in rows:
        kind = "autoclass" if inspect.isclass(target) else "autofunction"
        option = "   :members:\n" if kind == "autoclass" else ""
        pages.append(page_of(name, f".. {kind}:: {name}\n{option}"))
    return rows, f".. automodule:: {directive['name']}\n", pages


def with_tables(page: str, text: str) -> tuple[str, list[GeneratedPage]]:
    """The text of a page of docs/api with tables, and the pages to which they lead."""
    pages: list[GeneratedPage] = []

    def replace(block: re.Match[str]) -> str:
        rows, remaining = [], ""
        for directive in sections.DIRECTIVE.finditer(block["directives"]):
            new_rows, directives_left, new_pages = replacement(page, directive)
            rows += new_rows
            remaining += directives_left
            pages.extend(new_pages)
        directives = f"```{{eval-rst}}\n{remaining}```\n\n" if remaining else ""
        return f"{directives}{table(rows)}\n"

    text = BLOCK.sub(replace, text)
    if pages:
        names = "\n".join(f"{short_name(name)} <generated/{name}>" for name, _ in pages)
        text += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return text, pages


def sources() -> Iterator[tuple[str, str]]:
    """Names and texts of the pages of docs/api."""
    for file in sorted(API.glob("*.md")):
        yield file.stem, file.read_text(encoding="utf-8")


def write_pages(app: Any) -> None:
    """Write the generated pages, and remove those of names that no longer exist."""
    GENERATED.mkdir(exist_ok=True)
    pages: dict[str, str] = {}
    for name, text in sources():
        pages |= dict(with_tables(name, text)[1])
    for file in GENERATED.glob("*.md"):
        if file.stem not in pages:
            file.unlink()
    for name, text in pages.items():
        file = GENERATED / f"{name}.md"
        # A file that does not change is not read again.
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def insert_tables(app: Any, docname: str, source: list[str]) -> None:
    folder, _, page = docname.rpartition("/")
    if folder == "api":
        source[0] = with_tables(page, source[0])[0]


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    app.connect("source-read", insert_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
