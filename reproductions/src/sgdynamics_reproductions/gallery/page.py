"""Pages of the gallery: index.md with links to the pictures, and a self-contained index.html."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from sgdynamics.base import files
from sgdynamics_reproductions.gallery.claims import POWER, RATE

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; color: #222; background: #fff }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc } h3 { margin: 2.2rem 0 .4rem }
img { max-width: 100%; height: auto } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }
table.findings { font-size: 13px; width: auto; margin: .4rem 0 }
table.findings td, table.findings th { border-top: 1px solid #ddd }
.reproduced { color: #17692f } .differs { color: #a03000 }
.undecided, .skipped, .unfinished { color: #666 } .failed { color: #b00020; font-weight: 600 }
small { color: #666 } a { color: #1a4fa0 }
"""


WORDS = {"undecided": "not decided at this size"}


def write_pages(out: str | Path, records: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Write index.md (pictures as links) and index.html (pictures embedded).

    The records are those that ``gallery.make`` returns.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    pages = (folder / "index.md", folder / "index.html")
    for page, text in zip(
        pages, (markdown(records, folder), webpage(folder, records)), strict=True
    ):
        with files.atomic_file(page) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return pages


def _stem(record: dict[str, Any]) -> str:
    return f"{record['document']}-{record['number']}"


def _title(record: dict[str, Any]) -> str:
    named = record["number"] if len(record["number"]) > 2 else f"figure {record['number'].upper()}"
    return f"{named.replace('_', ' ')}: {record['line']}"


def _state(record: dict[str, Any]) -> str:
    from sgdynamics_reproductions.gallery import UNFINISHED, skipped

    if record["error"]:
        return record["verdict"] if skipped(record) or record["verdict"] == UNFINISHED else "failed"
    word = record["verdict"].split(":")[0]
    return word if word in ("reproduced", "differs") else "undecided"


def _word(record: dict[str, Any]) -> str:
    return WORDS.get(_state(record), _state(record))


def _at_full_size(record: dict[str, Any]) -> dict[str, Any] | None:
    """Record of the full-size figure, if this record is quick and full-size data are stored."""
    from sgdynamics_reproductions.gallery import full_size, verdict_with_remark

    full = full_size().get(_stem(record)) if record["quick"] else None
    return None if full is None else {**full, "verdict": verdict_with_remark(full), "error": ""}


def _full_words(record: dict[str, Any]) -> str:
    full = _at_full_size(record)
    return "" if full is None else f"{_word(full)} at full size"


def _parameters(record: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in record["parameters"].items()
    )


def _summary(records: list[dict[str, Any]]) -> str:
    counts = [
        (sum(_state(record) == state for record in records), state)
        for state in ("reproduced", "differs", "undecided", "skipped", "unfinished", "failed")
    ]
    verdicts = ", ".join(f"{count} {WORDS.get(state, state)}" for count, state in counts if count)
    quick = sum(record["quick"] for record in records)
    sizes = (
        f"{quick} of quick and {len(records) - quick} of full size"
        if 0 < quick < len(records)
        else "quick sizes"
        if quick
        else "full size"
    )
    if not records:
        return "No figures yet."
    claims = [finding for record in records for finding in record.get("findings", ())]
    explanation = (
        f" They rest on {len(claims)} claims. A true claim is called different with a probability "
        f"of at most {RATE:g}. A claim is called reproduced only if an error of its own size would "
        f"have been detected with probability {POWER:g}."
    )
    version = records[0]["version"]
    return (
        f"{len(records)} figures ({sizes}, version {version}): {verdicts}."
        f"{explanation if claims else ''}"
    )


def _documents(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    from sgdynamics_reproductions.gallery import DOCUMENTS

    return {
        DOCUMENTS[name]: [record for record in records if record["document"] == name]
        for name in dict.fromkeys(record["document"] for record in records)
    }


def _pictures(folder: Path | None, record: dict[str, Any]) -> list[tuple[str, str]]:
    """Picture files with the text above each: the stored full size first, then the quick run."""
    from sgdynamics_reproductions.gallery import LARGE

    large = f"{_stem(record)}{LARGE}"
    if folder is None or not record["quick"] or not (folder / large).is_file():
        return [(f"{_stem(record)}.png", "")]
    full = _at_full_size(record) or {}
    sizes = ", ".join(
        f"{name} = {value:g}" for name, value in full["parameters"].items() if name in ("N", "runs")
    )
    caption = (
        f"At full size ({sizes}), drawn from stored data, which were made on {full['device']}:"
    )
    return [
        (large, caption),
        (f"{_stem(record)}.png", "The quick run, which the verdict and the table below judge:"),
    ]


def markdown(records: list[dict[str, Any]], folder: Path | None = None) -> str:
    """The page as Markdown, for the folder of the pictures."""
    lines = [
        "# Gallery",
        "",
        _summary(records),
        "",
        "| document | figure | verdict | on a GPU | time |",
    ]
    lines += ["| --- | --- | --- | --- | --- |"]
    for title, group in _documents(records).items():
        for record in group:
            cells = (title, _title(record), _word(record), _full_words(record))
            lines.append(f"| {' | '.join(cells)} | {record['seconds']} s |")
    for title, group in _documents(records).items():
        lines += ["", f"## {title}"]
        for record in group:
            lines += ["", f"### {_title(record)}", ""]
            if record["error"]:
                state = _state(record).capitalize()
                lines += [f"**{state}** after {record['seconds']} s: {record['error']}"]
                continue
            for file, words in _pictures(folder, record):
                lines += [*([words, ""] if words else []), f"![{_title(record)}]({file})", ""]
            lines += [
                f"- Claim: {record['claim']}",
                f"- Verdict: **{_word(record)}**: {_details(record)}",
            ]
            if full := _at_full_size(record):
                lines += [
                    f"- At full size ({full['device']}, {full['seconds']} s): "
                    f"**{_word(full)}**: {_details(full)} ({_parameters(full)})"
                ]
            lines += [
                f"- Parameters: {_parameters(record)}",
                f"- Data: [{_stem(record)}.nc]({_stem(record)}.nc), {record['seconds']} s",
            ]
            lines += _findings_markdown(record)
    return "\n".join(lines) + "\n"


COLUMNS = ("claim", "statistic", "value", "threshold", "power", "verdict")


def _rows(record: dict[str, Any]) -> list[list[str]]:
    """Findings behind a verdict as text: one row per claim, in the order of COLUMNS."""
    return [
        [
            finding["claim"],
            finding["statistic"],
            f"{finding['value']:.3g}",
            f"{finding.get('side', 'at most')} {finding['threshold']:.3g}",
            finding["power"],
            finding["verdict"],
        ]
        for finding in record.get("findings", ())
    ]


def _findings_markdown(record: dict[str, Any]) -> list[str]:
    rows = _rows(record)
    if not rows:
        return []
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [
        "",
        f"| {' | '.join(COLUMNS)} |",
        "| --- " * len(COLUMNS) + "|",
        *(f"| {' | '.join(row)} |" for row in escaped),
    ]


def _findings_html(record: dict[str, Any]) -> str:
    rows = _rows(record)
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


def _details(record: dict[str, Any]) -> str:
    return record["verdict"].partition(": ")[2]


def webpage(folder: Path, records: list[dict[str, Any]]) -> str:
    """The page as HTML with embedded pictures."""
    blocks = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Gallery</title>"
        f"<style>{STYLE}</style><h1>Gallery</h1>"
    ]
    blocks.append(f"<p>{html.escape(_summary(records))}</p><table>")
    for title, group in _documents(records).items():
        blocks.append(f"<tr><th colspan='4'>{html.escape(title)}</th></tr>")
        for record in group:
            link = f"<a href='#{_stem(record)}'>{html.escape(_title(record))}</a>"
            full = _at_full_size(record)
            cells = [
                (_state(record), _word(record)),
                (_state(full) if full else "", _full_words(record)),
                ("", f"{record['seconds']} s"),
            ]
            blocks.append(
                f"<tr><td>{link}</td>"
                + "".join(f"<td class='{kind}'>{text}</td>" for kind, text in cells)
                + "</tr>"
            )
    blocks.append("</table>")
    for title, group in _documents(records).items():
        blocks.append(f"<h2>{html.escape(title)}</h2>")
        for record in group:
            blocks.append(f"<h3 id='{_stem(record)}'>{html.escape(_title(record))}</h3>")
            if record["error"]:
                blocks.append(
                    f"<p class='{_state(record)}'>{_state(record)} after {record['seconds']} s: "
                    f"{html.escape(record['error'])}</p>"
                )
                continue
            for file, words in _pictures(folder, record):
                image = base64.b64encode((folder / file).read_bytes()).decode()
                blocks.append(f"<p>{html.escape(words)}</p>" if words else "")
                blocks.append(
                    f"<img alt='{html.escape(_title(record), quote=True)}' "
                    f"src='data:image/png;base64,{image}'>"
                )
            blocks.append(
                f"<p>Claim: {html.escape(record['claim'])}<br>"
                f"Verdict: <b class='{_state(record)}'>{_word(record)}</b>: "
                f"{html.escape(_details(record))}<br>"
            )
            if full := _at_full_size(record):
                blocks.append(
                    f"At full size ({html.escape(full['device'])}, {full['seconds']} s): "
                    f"<b class='{_state(full)}'>{_word(full)}</b>: "
                    f"{html.escape(_details(full))} ({html.escape(_parameters(full))})<br>"
                )
            blocks.append(
                f"<small>{html.escape(_parameters(record))}; data: {_stem(record)}.nc; "
                f"{record['seconds']} s</small></p>"
            )
            blocks.append(_findings_html(record))
    return "\n".join(blocks) + "</html>\n"
