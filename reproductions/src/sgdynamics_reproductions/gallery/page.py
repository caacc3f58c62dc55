"""The pages of the gallery: index.md beside the pictures, and one index.html that holds them."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from sgdynamics.base import files
from sgdynamics_reproductions.gallery.claims import POWER, RATE

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc } h3 { margin: 2.2rem 0 .4rem } img { max-width: 100%; height: auto }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }
table.findings { font-size: 13px; width: auto; margin: .4rem 0 } table.findings td, table.findings th { border-top: 1px solid #ddd }
.reproduced { color: #17692f } .differs { color: #a03000 }
.undecided, .skipped, .unfinished { color: #666 } .failed { color: #b00020; font-weight: 600 }
small { color: #666 } a { color: #1a4fa0 }
"""


WORDS = {"undecided": "not decided at this size"}


def write_pages(out: str | Path, found: list[dict[str, Any]]) -> tuple[Path, Path]:
    """index.md (pictures as links) and index.html (pictures inside, nothing else needed) for what
    `gallery.make` returned.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    pages = (folder / "index.md", folder / "index.html")
    for page, text in zip(pages, (markdown(found, folder), webpage(folder, found)), strict=True):
        with files.atomic_file(page) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return pages


def _stem(one: dict[str, Any]) -> str:
    return f"{one['document']}-{one['number']}"


def _title(one: dict[str, Any]) -> str:
    named = one["number"] if len(one["number"]) > 2 else f"figure {one['number'].upper()}"
    return f"{named.replace('_', ' ')}: {one['line']}"


def _state(one: dict[str, Any]) -> str:
    from sgdynamics_reproductions.gallery import UNFINISHED, skipped

    if one["error"]:
        return one["verdict"] if skipped(one) or one["verdict"] == UNFINISHED else "failed"
    word = one["verdict"].split(":")[0]
    return word if word in ("reproduced", "differs") else "undecided"


def _word(one: dict[str, Any]) -> str:
    return WORDS.get(_state(one), _state(one))


def _at_full_size(one: dict[str, Any]) -> dict[str, Any] | None:
    """What was found at full size, if this one is quick and the other was made once."""
    from sgdynamics_reproductions.gallery import full_size, verdict_with_remark

    found = full_size().get(_stem(one)) if one["quick"] else None
    return None if found is None else {**found, "verdict": verdict_with_remark(found), "error": ""}


def _full_words(one: dict[str, Any]) -> str:
    found = _at_full_size(one)
    return "" if found is None else f"{_word(found)} at full size"


def _parameters(one: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in one["parameters"].items()
    )


def _summary(found: list[dict[str, Any]]) -> str:
    counts = [
        (sum(_state(one) == state for one in found), state)
        for state in ("reproduced", "differs", "undecided", "skipped", "unfinished", "failed")
    ]
    said = ", ".join(f"{count} {WORDS.get(state, state)}" for count, state in counts if count)
    quick = sum(one["quick"] for one in found)
    sizes = (
        f"{quick} of quick and {len(found) - quick} of full size"
        if 0 < quick < len(found)
        else "quick sizes"
        if quick
        else "full size"
    )
    if not found:
        return "No figures yet."
    claims = [one for figure in found for one in figure.get("findings", ())]
    rests = (
        f" They rest on {len(claims)} claims; one that holds is said to differ with a probability of {RATE:g} at most, and is said to be "
        f"reproduced only where a wrong of its scale would have been seen with {POWER:g}."
    )
    return f"{len(found)} figures ({sizes}, version {found[0]['version']}): {said}.{rests if claims else ''}"


def _documents(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    from sgdynamics_reproductions.gallery import DOCUMENTS

    return {
        DOCUMENTS[name]: [one for one in found if one["document"] == name]
        for name in dict.fromkeys(one["document"] for one in found)
    }


def _pictures(folder: Path | None, one: dict[str, Any]) -> list[tuple[str, str]]:
    """The files to show, with the words above each: what is stored at full size first, then what
    was run.
    """
    from sgdynamics_reproductions.gallery import LARGE

    large = f"{_stem(one)}{LARGE}"
    if folder is None or not one["quick"] or not (folder / large).is_file():
        return [(f"{_stem(one)}.png", "")]
    full = _at_full_size(one) or {}
    sizes = ", ".join(
        f"{name} = {value:g}" for name, value in full["parameters"].items() if name in ("N", "runs")
    )
    told = f"At full size ({sizes}), drawn from stored data, which were made on {full['device']}:"
    return [
        (large, told),
        (f"{_stem(one)}.png", "The quick run, which the verdict and the table below judge:"),
    ]


def markdown(found: list[dict[str, Any]], folder: Path | None = None) -> str:
    """The page as Markdown, in the folder of the pictures."""
    lines = [
        "# Gallery",
        "",
        _summary(found),
        "",
        "| document | figure | verdict | on a GPU | time |",
    ]
    lines += ["| --- | --- | --- | --- | --- |"]
    for title, group in _documents(found).items():
        lines += [
            f"| {title} | {_title(one)} | {_word(one)} | {_full_words(one)} | {one['seconds']} s |"
            for one in group
        ]
    for title, group in _documents(found).items():
        lines += ["", f"## {title}"]
        for one in group:
            lines += ["", f"### {_title(one)}", ""]
            if one["error"]:
                lines += [
                    f"**{_state(one).capitalize()}** after {one['seconds']} s: {one['error']}"
                ]
                continue
            for file, words in _pictures(folder, one):
                lines += [*([words, ""] if words else []), f"![{_title(one)}]({file})", ""]
            lines += [
                f"- Claim: {one['claim']}",
                f"- Verdict: **{_word(one)}**: {_numbers(one)}",
            ]
            if full := _at_full_size(one):
                lines += [
                    f"- At full size ({full['device']}, {full['seconds']} s): **{_word(full)}**: {_numbers(full)} ({_parameters(full)})"
                ]
            lines += [
                f"- Parameters: {_parameters(one)}",
                f"- Data: [{_stem(one)}.nc]({_stem(one)}.nc), {one['seconds']} s",
            ]
            lines += _findings_markdown(one)
    return "\n".join(lines) + "\n"


COLUMNS = ("claim", "statistic", "value", "threshold", "power", "verdict")


def _rows(one: dict[str, Any]) -> list[list[str]]:
    """The findings that a verdict rests on, as text: one row a claim, in the order of COLUMNS."""
    return [
        [
            found["claim"],
            found["statistic"],
            f"{found['value']:.3g}",
            f"{found.get('side', 'at most')} {found['threshold']:.3g}",
            found["power"],
            found["verdict"],
        ]
        for found in one.get("findings", ())
    ]


def _findings_markdown(one: dict[str, Any]) -> list[str]:
    rows = _rows(one)
    if not rows:
        return []
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [
        "",
        f"| {' | '.join(COLUMNS)} |",
        "| --- " * len(COLUMNS) + "|",
        *(f"| {' | '.join(row)} |" for row in escaped),
    ]


def _findings_html(one: dict[str, Any]) -> str:
    rows = _rows(one)
    if not rows:
        return ""
    states = {"reproduced": "reproduced", "differs": "differs"}
    lines = [
        "".join(f"<td>{html.escape(cell)}</td>" for cell in row[:-1])
        + f"<td class='{states.get(row[-1], 'undecided')}'>{html.escape(row[-1])}</td>"
        for row in rows
    ]
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    return (
        f"<table class='findings'><tr>{head}</tr>"
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</table>"
    )


def _numbers(one: dict[str, Any]) -> str:
    return one["verdict"].partition(": ")[2]


def webpage(folder: Path, found: list[dict[str, Any]]) -> str:
    """The page as HTML with the pictures inside."""
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Gallery</title><style>{STYLE}</style><h1>Gallery</h1>"
    ]
    parts.append(f"<p>{html.escape(_summary(found))}</p><table>")
    for title, group in _documents(found).items():
        parts.append(f"<tr><th colspan='4'>{html.escape(title)}</th></tr>")
        for one in group:
            link = f"<a href='#{_stem(one)}'>{html.escape(_title(one))}</a>"
            full = _at_full_size(one)
            cells = [
                (_state(one), _word(one)),
                (_state(full) if full else "", _full_words(one)),
                ("", f"{one['seconds']} s"),
            ]
            parts.append(
                f"<tr><td>{link}</td>"
                + "".join(f"<td class='{kind}'>{text}</td>" for kind, text in cells)
                + "</tr>"
            )
    parts.append("</table>")
    for title, group in _documents(found).items():
        parts.append(f"<h2>{html.escape(title)}</h2>")
        for one in group:
            parts.append(f"<h3 id='{_stem(one)}'>{html.escape(_title(one))}</h3>")
            if one["error"]:
                parts.append(
                    f"<p class='{_state(one)}'>{_state(one)} after {one['seconds']} s: {html.escape(one['error'])}</p>"
                )
                continue
            for file, words in _pictures(folder, one):
                image = base64.b64encode((folder / file).read_bytes()).decode()
                parts.append(f"<p>{html.escape(words)}</p>" if words else "")
                parts.append(
                    f"<img alt='{html.escape(_title(one), quote=True)}' src='data:image/png;base64,{image}'>"
                )
            parts.append(
                f"<p>Claim: {html.escape(one['claim'])}<br>"
                f"Verdict: <b class='{_state(one)}'>{_word(one)}</b>: {html.escape(_numbers(one))}<br>"
            )
            if full := _at_full_size(one):
                parts.append(
                    f"At full size ({html.escape(full['device'])}, {full['seconds']} s): <b class='{_state(full)}'>{_word(full)}</b>: "
                    f"{html.escape(_numbers(full))} ({html.escape(_parameters(full))})<br>"
                )
            parts.append(
                f"<small>{html.escape(_parameters(one))}; data: {_stem(one)}.nc; {one['seconds']} s</small></p>"
            )
            parts.append(_findings_html(one))
    return "\n".join(parts) + "</html>\n"
