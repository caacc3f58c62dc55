"""Apply the lists of `rules.py` to Python files and Markdown pages."""

from __future__ import annotations

import ast
import doctest
import io
import re
import textwrap
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.style import rules

ROOT = Path(__file__).parents[2]
KINDS = ("phrase", "name", "definition", "description", "summary", "override")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
LEAVES = (ast.Name, ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
CHECKED_NODES = (*DEFINITIONS, ast.Module, ast.Expr, ast.Constant, ast.JoinedStr)
SECTIONS = ("Parameters", "Other Parameters", "Attributes", "Returns", "Yields")
STORE = ast.Store()
NAME_ATTRIBUTES = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.Attribute: "attr",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.alias: "asname",
}
IGNORED_NAMES = frozenset({"_", "self", "cls"})

OVERRIDE = re.compile(
    r"(?:#|<!--)\s*style:\s*ok\b[,:]?\s*(?P<reason>.*?)\s*(?:-->|$)", re.MULTILINE
)
PYTHON_BLOCK = re.compile(r"^(?P<fence>`{3,})python[^\n]*\n(?P<code>.*?)^(?P=fence)", re.M | re.S)
DIRECTIVE_PREFIX = re.compile(r"\A(?:\s*:[\w-]+:.*\n)+")
RATE_NAME = re.compile(r"(?:^|_)\w+s_an?_\w+$")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# A space of a phrase also matches a line break, in a comment or between joined string literals.
SPACE = r"""(?:[\s#]+|\s*["']\s+f?["']\s*)"""


class Finding(NamedTuple):
    """One place to rewrite."""

    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


@dataclass
class Report:
    """The findings of one or several files, with the counts behind their shares."""

    findings: list[Finding] = field(default_factory=list)
    assigned: int = 0
    fillers: int = 0
    code_lines: int = 0
    comments: int = 0

    def add(self, other: Report) -> None:
        """Add the findings and counts of another report."""
        self.findings += other.findings
        self.assigned += other.assigned
        self.fillers += other.fillers
        self.code_lines += other.code_lines
        self.comments += other.comments

    @property
    def filler_share(self) -> float:
        """Share of filler names among assigned names, marked exceptions included."""
        return self.fillers / max(self.assigned, 1)

    def count_by_kind(self) -> Counter[str]:
        """Number of findings of each kind."""
        return Counter(finding.kind for finding in self.findings)


class Span(NamedTuple):
    """Character offsets of a string literal, and whether it contains prose."""

    start: int
    end: int
    is_prose: bool


def _compile_phrase(pattern: str) -> re.Pattern[str]:
    """The pattern of a phrase in text of lower case, with spaces that match line breaks."""
    # look-behinds have a fixed width, so the spaces in them stay as they are
    pieces = re.split(r"(\(\?<![^)]*\))", pattern)
    spaced = (piece if piece.startswith("(?<!") else piece.replace(" ", SPACE) for piece in pieces)
    return re.compile(f"(?:{''.join(spaced)})" + AFTER)


# Names in code stand in backticks, are attributes, calls, keywords or words of longer names: a
# phrase is not preceded and not followed by these characters.
BEFORE = frozenset("`.{[-_")
AFTER = r"(?![\w`=(\[]|\.\w|-\w)"
PHRASES = [(_compile_phrase(pattern), instead) for pattern, instead in rules.PHRASES]


# -- names ---------------------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """The words of a name in lower case, without underscores, digits and capitals."""
    plain = re.sub(r"\d+", "", CAMEL_CASE.sub("_", name)).lower()
    return [word for word in plain.split("_") if word]


@cache
def is_filler(name: str) -> bool:
    """Whether a name consists of filler words, with or without glue words."""
    words = words_of(name)
    if "_".join(words) in rules.FILLERS:
        return True
    has_filler = any(word in rules.FILLERS for word in words)
    return has_filler and all(word in rules.FILLERS or word in rules.GLUE for word in words)


def is_participle(name: str) -> bool:
    """Whether a name is a single past participle."""
    words = words_of(name)
    if len(words) != 1 or words[0] in rules.NOT_PARTICIPLES:
        return False
    return words[0] in rules.IRREGULAR_PARTICIPLES or bool(re.fullmatch(r"\w{2,}ed", words[0]))


class AssignedName(NamedTuple):
    """A name that is assigned, its line, and the dotted name of its function or class."""

    name: str
    line: int
    owner: str


def walk(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """All nodes of a tree but contexts, each with the dotted name of its function or class."""
    stack = [(tree, "")]
    while stack:
        node, owner = stack.pop()
        yield node, owner
        if isinstance(node, LEAVES):
            continue
        if isinstance(node, DEFINITIONS):
            owner = f"{owner}.{node.name}".lstrip(".")
        for field_name in node._fields:
            value = getattr(node, field_name, None)
            if isinstance(value, list):
                stack += [(item, owner) for item in value if isinstance(item, ast.AST)]
            elif field_name != "ctx" and isinstance(value, ast.AST):
                stack.append((value, owner))


def assigned_names(nodes: Iterable[tuple[ast.AST, str]]) -> Iterator[AssignedName]:
    """Names that are assigned: variables, targets, parameters, fields, and `as` targets."""
    for node, owner in nodes:
        attribute = NAME_ATTRIBUTES.get(type(node))
        # the contexts of variables and attributes are Store where they are assigned
        if attribute is None or not isinstance(getattr(node, "ctx", STORE), ast.Store):
            continue
        # only attributes of `self` are fields of the class at hand
        is_foreign = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self"
        if not is_foreign and (name := getattr(node, attribute)):
            yield AssignedName(name, node.lineno, owner)


def check_names(path: str, nodes: Iterable[tuple[ast.AST, str]], offset: int = 0) -> Report:
    """Count the assigned names of a tree, and list the fillers among them."""
    report = Report()
    reported = set()
    for name, line, owner in assigned_names(nodes):
        if name in IGNORED_NAMES or name.startswith("__"):
            continue
        report.assigned += 1
        if f"{owner}.{name}" in rules.PUBLIC:
            continue
        if is_filler(name):
            report.fillers += 1
            text = f"`{name}` does not say what the thing is"
        elif RATE_NAME.search(name):
            text = f"`{name}`: write `_per_` for a rate"
        else:
            continue
        if (name, line) not in reported:
            reported.add((name, line))
            report.findings.append(Finding(path, line + offset, "name", text))
    return report


def _returns_bool(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(node.returns, ast.Name) and node.returns.id == "bool"


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def definition_fault(node: Definition, owner: str) -> str | None:
    """The fault in the name of a function or class, if any."""
    name = node.name
    if f"{owner}.{name}".lstrip(".") in rules.PUBLIC or name.startswith(("__", "test_")):
        return None
    if is_filler(name):
        return f"`{name}` does not say what it is: use a noun for a class, a verb for a function"
    if isinstance(node, ast.ClassDef):
        return f"class `{name}` is a participle: use a noun" if is_participle(name) else None
    if RATE_NAME.search(name):
        return f"`{name}`: write `_per_` for a rate"
    if _is_property(node) or _returns_bool(node):
        return None
    if is_participle(name):
        return f"function `{name}` is a participle: use a verb, or the noun that it returns"
    if name.lstrip("_").startswith(rules.PREPOSITION_PREFIXES):
        return f"function `{name}` starts with a preposition: use a verb, or `from_...`"
    return None


# -- docstrings ----------------------------------------------------------------------------------


def opening_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern of texts that start with one of the words."""
    return re.compile(rf"(?:{'|'.join(words)})\b(?![-`(\[=_])")


DESCRIPTION_OPENING = opening_pattern(rules.DESCRIPTION_OPENINGS)
SUMMARY_OPENING = opening_pattern(rules.SUMMARY_OPENINGS)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def description_faults(docstring: str) -> Iterator[tuple[int, str]]:
    """Line offsets and openings of descriptions in numpydoc sections that are not noun phrases."""
    lines = docstring.expandtabs().split("\n")
    section_indent: int | None = None
    entry: str | None = None
    for index, line in enumerate(lines):
        underline = lines[index + 1].strip() if index + 1 < len(lines) else ""
        if line.strip() and len(underline) > 2 and set(underline) == {"-"}:
            section_indent = _indent(line) if line.strip() in SECTIONS else None
            entry = None
        elif section_indent is None or not line.strip() or set(line.strip()) == {"-"}:
            continue
        elif _indent(line) <= section_indent:
            entry = line.strip()
        elif entry is not None:
            if match := DESCRIPTION_OPENING.match(line.strip()):
                name = entry.split(" :")[0].split(":")[0].strip()
                yield index, f'"{match.group()} ..." describes {name}: start with a noun phrase'
            entry = None


def check_docstrings(path: str, nodes: Iterable[ast.AST], report: Report) -> None:
    """List the faults in summaries and descriptions, and the fillers in examples."""
    for node in nodes:
        if not isinstance(node, (*DEFINITIONS, ast.Module)) or not node.body:
            continue
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if not is_text or not isinstance(first.value.value, str):
            continue
        docstring, line = first.value.value, first.value.lineno
        if match := SUMMARY_OPENING.match(docstring.strip()):
            text = f'docstring starts with "{match.group()}": say what it does, or what it is'
            report.findings.append(Finding(path, line, "summary", text))
        if "---" in docstring:
            for offset, text in description_faults(docstring):
                report.findings.append(Finding(path, line + offset, "description", text))
        if ">>>" in docstring:
            for example in doctest.DocTestParser().get_examples(docstring):
                if tree_of_example := parse(example.source):
                    report.add(check_names(path, walk(tree_of_example), line + example.lineno - 1))


def parse(source: str) -> ast.Module | None:
    """The syntax tree of a source, or None where it is not complete Python."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


# -- text ----------------------------------------------------------------------------------------


class Source:
    """The text of a Python file, with the offsets of its lines, strings and comments."""

    def __init__(self, text: str, nodes: Iterable[ast.AST]) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.spans = self._string_spans(nodes)
        self._span_starts = [span.start for span in self.spans]
        # offset of the comment of each line that has one
        self.comments = dict(self._find_comments())

    def line_at(self, offset: int) -> int:
        """Number of the line that contains a character offset, from 1."""
        return bisect_right(self.starts, offset)

    def string_at(self, offset: int) -> Span | None:
        """The string literal that contains a character offset."""
        index = bisect_right(self._span_starts, offset) - 1
        if index >= 0 and offset < self.spans[index].end:
            return self.spans[index]
        return None

    def is_prose(self, offset: int) -> bool:
        """Whether a character belongs to a comment, or to a string literal with a space."""
        if (span := self.string_at(offset)) is not None:
            return span.is_prose
        return offset > self.comments.get(self.line_at(offset), len(self.text))

    def _offset(self, line: int, column: int) -> int:
        """Character offset of a line and a column in bytes, as syntax trees count them."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column

    def _string_spans(self, nodes: Iterable[ast.AST]) -> list[Span]:
        """Spans of string literals in order, an f-string as one."""
        spans: list[Span] = []
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
            if not is_text and not isinstance(node, ast.JoinedStr):
                continue
            start = self._offset(node.lineno, node.col_offset)
            end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
            spans.append(Span(start, end, " " in self.text[start:end].strip()))
        # longest first among those that start together: the parts of an f-string are inside of it
        spans.sort(key=lambda span: (span.start, -span.end))
        outer: list[Span] = []
        for span in spans:
            if not outer or span.start >= outer[-1].end:
                outer.append(span)
        return outer

    def _find_comments(self) -> Iterator[tuple[int, int]]:
        """(line, offset) of each comment."""
        for match in re.finditer("#", self.text):
            line, offset = self.line_at(match.start()), match.start()
            if "#" in self.text[self.starts[line - 1] : offset] and self._has_comment(line, offset):
                continue
            span = self.string_at(offset)
            if span is None or self._is_between_literals(span, offset):
                yield line, offset

    def _has_comment(self, line: int, offset: int) -> bool:
        """Whether a comment of this line starts before an offset."""
        start = self.starts[line - 1]
        hashes = (start + match.start() for match in re.finditer("#", self.text[start:offset]))
        return any(self.string_at(earlier) is None for earlier in hashes)

    def _is_between_literals(self, span: Span, offset: int) -> bool:
        """Whether a `#` inside of joined string literals starts a comment between two of them."""
        joined = "(" + self.text[span.start : span.end] + ")"
        if "\n" not in joined or re.match(r"\([a-zA-Z]*(?:\"{3}|'{3})", joined):
            return False
        lines = joined.split("\n")
        for token in tokenize.generate_tokens(io.StringIO(joined).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                start = sum(len(line) + 1 for line in lines[: row - 1]) + column
                if span.start - 1 + start == offset:
                    return True
        return False


def phrases(text: str) -> Iterator[tuple[int, str]]:
    """Offsets of the dialect phrases of a text, and what to write in their place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals have no single small letter
        lower = text
    for pattern, instead in PHRASES:
        for match in pattern.finditer(lower):
            start, end = match.span()
            if start and (lower[start - 1].isalnum() or lower[start - 1] in BEFORE):
                continue
            words = re.sub(r"[\s#\"]+", " ", text[start:end])
            yield start, f'"{words}": write {instead}'


def _without_overrides(
    findings: list[Finding], spans: dict[int, range], lines: list[str]
) -> list[Finding]:
    """Findings that are not marked as exceptions, and the marks that give no reason.

    `spans` maps the first line of a string literal of several lines to its lines: a mark on any of
    them, or behind its end, is for the whole literal.
    """
    reasons = {
        number: match["reason"]
        for number, line in enumerate(lines, start=1)
        if "style:" in line and (match := OVERRIDE.search(line))
    }
    if not reasons:
        return findings
    covered = set(reasons)
    for span in spans.values():
        if any(number in reasons for number in span):
            covered.update(span)
    path = findings[0].path if findings else ""
    open_findings = [finding for finding in findings if finding.line not in covered]
    for number, reason in reasons.items():
        if len(reason) < 3 and path:
            text = "an exception needs a reason: `style: ok, reason`"
            open_findings.append(Finding(path, number, "override", text))
    return open_findings


# -- files ---------------------------------------------------------------------------------------


def check_python(path: str, text: str) -> Report:
    """Check the source of a Python file."""
    owned_nodes = list(walk(ast.parse(text)))
    # most nodes are names, which have neither text nor docstring
    nodes = [node for node, _ in owned_nodes if isinstance(node, CHECKED_NODES)]
    source = Source(text, nodes)
    report = check_names(path, owned_nodes)
    for node, owner in owned_nodes:
        if isinstance(node, DEFINITIONS) and (fault := definition_fault(node, owner)):
            report.findings.append(Finding(path, node.lineno, "definition", fault))
    check_docstrings(path, nodes, report)
    if path not in rules.QUOTING:
        for offset, advice in phrases(text):
            if source.is_prose(offset):
                report.findings.append(Finding(path, source.line_at(offset), "phrase", advice))
    spans = {
        first: range(first, last + 1)
        for span in source.spans
        if (first := source.line_at(span.start)) < (last := source.line_at(span.end - 1))
    }
    report.findings = _without_overrides(report.findings, spans, source.lines)
    report.comments = len(source.comments)
    report.code_lines = _count_code_lines(source, nodes)
    return report


def _count_code_lines(source: Source, nodes: Iterable[ast.AST]) -> int:
    """Lines that are neither blank nor only a comment or a docstring."""
    not_code = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            not_code.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        1
        for number, line in enumerate(source.lines, start=1)
        if line.strip() and number not in not_code and not line.lstrip().startswith("#")
    )


def check_markdown(path: str, text: str) -> Report:
    """Check a Markdown page: its text, and the names in its Python blocks."""
    report = Report()
    blocks = []  # (offset, source) of the Python code
    for match in PYTHON_BLOCK.finditer(text):
        code = DIRECTIVE_PREFIX.sub(lambda prefix: "\n" * prefix.group().count("\n"), match["code"])
        if tree := parse(textwrap.dedent(code)):
            report.add(check_names(path, walk(tree), text.count("\n", 0, match.start("code"))))
            if len(code) == len(textwrap.dedent(code)) == len(match["code"]):
                blocks.append((match.start("code"), Source(code, ast.walk(tree))))
    for offset, advice in phrases(text):
        in_code = any(
            0 <= offset - start < len(source.text) and not source.is_prose(offset - start)
            for start, source in blocks
        )
        if not in_code:
            line = text.count("\n", 0, offset) + 1
            report.findings.append(Finding(path, line, "phrase", advice))
    report.findings = _without_overrides(report.findings, {}, text.split("\n"))
    return report


def path_name(path: Path) -> str:
    """The path of a file relative to the repository, as findings show it."""
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def check_file(path: Path) -> Report:
    """Check a Python file or a Markdown page."""
    name, text = path_name(path), path.read_text(encoding="utf-8")
    report = check_python(name, text) if path.suffix == ".py" else check_markdown(name, text)
    report.findings.sort(key=lambda finding: finding.line)
    return report
