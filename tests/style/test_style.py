"""The style checker finds planted faults of each kind and passes clean text."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.style import gate, rules
from tests.style.checker import (
    check_markdown,
    check_python,
    is_filler,
    is_participle,
)

CLEAN_SOURCE = '''
"""Overlaps of a network with its teacher."""

RESTARTS = 3  # a local minimum is left by at most this many restarts


class Basis:
    """An orthonormal basis of the gradients.

    Parameters
    ----------
    rank : int
        Number of directions.
    tolerance : float, default 1e-5
        Relative threshold for a new direction. Where it is 0, all gradients add one.
    center : bool
        Whether to subtract the mean.
    verbose : bool
        If True, report each step.
    """

    rank: int

    @property
    def fixed(self) -> float:
        return 0.0

    def is_settled(self) -> bool:
        return True


def diverged(risk: float) -> bool:
    """Whether a risk is too large."""
    return risk > 1e3


def solve(problem, rest_mass, one_pass, /):
    """Solve a problem.

    Raises
    ------
    ValueError
        If the mass is negative. There are so many that a list would be long.
    """
    message = "there is another way, besides this one; it goes on a grid"
    beside_code = {"beside": problem.beside, "keep": problem.beside(1)}  # `beside` is a key
    return [case for case in (message, beside_code, rest_mass, one_pass)]
'''


def kinds_of(source: str) -> list[tuple[int, str]]:
    """(line, kind) of the findings of a source."""
    return [
        (finding.line, finding.kind)
        for finding in check_python("example.py", textwrap.dedent(source)).findings
    ]


def test_clean_source_has_no_findings():
    report = check_python("example.py", CLEAN_SOURCE)
    assert report.findings == []
    assert report.fillers == 0
    assert report.assigned == 9
    assert report.comments == 2


@pytest.mark.parametrize(
    "text",
    [
        "Defaults to 1 unless given.",
        "A grid of so many points.",
        "Its mean step is another at large D.",
        "The laws are others.",
        "The part outside of what is known.",
        "Theory beside simulation.",
        "The other runs go on.",
        "The sweep goes on from there.",
        "Bad input is refused.",
        "Refuse a matrix that is not symmetric.",
        "The folder is made if it is not there.",
        "alpha = samples/d is nothing",
        "Formulas are held against runs.",
        "The attribute `form` tells which.",
        "8 bytes a path and direction",
        "one function a figure",
        "The front doors have one signature.",
        "The rules of the house.",
        "Imports come from rooms above.",
    ],
)
def test_dialect_is_found_in_all_texts(text):
    sources = [
        f'"""{text}"""',
        f"value = 1  # {text}",
        f'raise ValueError("{text}")',
        f'name = "x"\nmessage = f"{{name}}: {text}"',
    ]
    for source in sources:
        assert [kind for _, kind in kinds_of(source)] == ["phrase"], source
    assert len(check_markdown("page.md", f"# Title\n\n{text}\n").findings) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Defaults to 1 if it is not given.",
        "There are so many that sampling is faster.",
        "There is another solver. The end is another question.",
        "Besides, theory and simulation stand side by side.",
        "It goes on the grid of the caller.",
        "What is left of the velocity.",
        "The number of samples in a step is B.",
        "The number a run needs is unknown; the samples a step takes are fresh.",
        "Outdoor temperature.",
    ],
)
def test_plain_english_passes(text):
    assert kinds_of(f'"""Title.\n\n{text}\n"""') == []
    assert check_markdown("page.md", text).findings == []


def test_phrases_across_lines_are_found_where_they_start():
    assert kinds_of('"""One line.\n\nThe default, unless\n    given.\n"""') == [(3, "phrase")]
    assert kinds_of("# a grid of so\n# many points\n") == [(1, "phrase")]
    assert kinds_of('text = (\n    "what is "\n    f"kept {1}"\n)') == [(2, "phrase")]


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "found: int = 1",
        "for one in cases: pass",
        "values = [2 * part for part in cases]",
        "def solve(problem, numbers): pass",
        "solve = lambda given: given",
        "class Basis:\n    rest: int",
        "class Basis:\n    def __init__(self):\n        self.kept = 1",
        "with open(name) as held: pass",
        "import numpy as beside",
        "try: solve()\nexcept ValueError as told: pass",
        "if (more := solve()): pass",
        "first, *rest = cases",
        "every_one = found_all = 1",
        "next_part = 1",
        "_KEPT_2 = 1",
        "bytes_a_run = 8",
    ],
)
def test_filler_names_are_found(source):
    assert {kind for _, kind in kinds_of(source)} == {"name"}


def test_fillers_are_counted_as_a_share():
    report = check_python("example.py", "found = 1\nbasis = 2\nrank = 3\n_ = 4\nfound = 5")
    assert (report.assigned, report.fillers, len(report.findings)) == (4, 2, 2)
    assert report.filler_share == 0.5


@pytest.mark.parametrize("name", ["rest_mass", "one_pass", "part_sizes", "partial", "another_d"])
def test_names_with_a_noun_pass(name):
    assert not is_filler(name)
    assert kinds_of(f"{name} = 1") == []


@pytest.mark.parametrize(
    "source",
    [
        "class Asked: pass",
        "class _Part: pass",
        "class Solved: pass",
        "def opened(): pass",
        "def _planned(): pass",
        "def drawn(): pass",
        "def of_blocks(): pass",
        "def or_raise(): pass",
        "def paths_a_row(): pass",
        "async def one(): pass",
    ],
)
def test_participles_and_fillers_are_no_names_of_functions(source):
    assert kinds_of(source) == [(1, "definition")]


def test_verbs_that_look_like_participles_pass():
    for name in ("seed", "embed", "need", "red", "speed"):
        assert not is_participle(name)
    assert (
        kinds_of("def seed(): pass\ndef from_blocks(): pass\ndef solve_planned_steps(): pass") == []
    )


@pytest.mark.parametrize("opening", ["Of the", "How.", "Where, of", "What is", "With x:", "If so,"])
def test_descriptions_start_with_a_noun_phrase(opening):
    source = f'''
        def solve(seed):
            """Solve.

            Parameters
            ----------
            seed : int
                {opening} random numbers.

            Returns
            -------
            Solution
                Solution of the problem.

            Raises
            ------
            ValueError
                If so.
            """
    '''
    assert kinds_of(source) == [(8, "description")]


@pytest.mark.parametrize("opening", ["Of", "What", "How", "Where"])
def test_docstrings_start_with_what_is_done(opening):
    assert kinds_of(f'def solve():\n    """{opening} the cases."""') == [(2, "summary")]
    assert kinds_of('def solve():\n    """Whether to solve the cases."""') == []


def test_examples_and_code_blocks_are_checked():
    assert kinds_of('"""Solve.\n\n>>> begin = 1\n>>> start = 1\n"""') == [(3, "name")]
    page = "# Title\n\n```python\nstart = 1\nfound = refused(1)  # so many\n```\n\nText.\n"
    findings = check_markdown("page.md", page).findings
    assert [(finding.line, finding.kind) for finding in findings] == [(5, "name"), (5, "phrase")]


def test_exceptions_need_a_reason():
    assert kinds_of("found = 1  # style: ok, the word of the theorem") == []
    assert kinds_of("found = 1  # style: ok") == [(1, "override")]
    assert kinds_of("a = 1  # style: ok, reason\nfound = 1") == [(2, "name")]
    assert kinds_of('"""So many.\n\nSo much.\n"""  # style: ok, a quotation') == []
    assert kinds_of('text = (\n    "so many"  # style: ok, a quotation\n    "so much"\n)') == []
    page = "It is refused. <!-- style: ok, of a visa -->\n\nIt is refused.\n"
    assert [finding.line for finding in check_markdown("page.md", page).findings] == [3]


def test_public_names_pass_at_their_owner_alone():
    assert kinds_of("class FixedPoint:\n    found: int") == []
    assert kinds_of("class Basis:\n    found: int") == [(2, "name")]
    assert kinds_of("class Basis:\n    def supported(self): pass") == [(2, "definition")]
    assert all(reason for reason in [*rules.PUBLIC.values(), *rules.QUOTING.values()])


def test_public_names_are_names_of_the_library():
    texts = [file.read_text(encoding="utf-8") for file in gate.files_of([gate.ROOT / "src"])]
    for public_name in rules.PUBLIC:
        first, *_, last = [public_name.split(".")[0], *public_name.split(".")]
        definition = re.compile(rf"^(?:class|def) {first}\b", re.MULTILINE)
        homes = [text for text in texts if definition.search(text)]
        assert any(re.search(rf"\b{last}\b", text) for text in homes), public_name


def test_marked_fillers_count_in_the_share_of_a_folder():
    """A marked exception is no finding, but a share of 1% fails whatever is marked."""
    few = check_python("example.py", "found = 1  # style: ok, reason\n" + "basis = 1\n" * 110)
    many = check_python("example.py", "found = 1  # style: ok, reason\n" + "basis = 1\n" * 90)
    assert gate.failures({"few": few}) == []
    assert ["1.1% of names" in message for message in gate.failures({"many": many})] == [True]
    assert len(gate.failures({"found": check_python("example.py", "found = 1\n")})) == 2


@pytest.mark.slow
def test_the_repository_has_no_findings():
    """Run `python -m tests.style FOLDER` for the findings of a folder."""
    reports = gate.check_all(gate.all_files())
    assert sum(report.assigned for report in reports.values()) > 10_000  # it reads the library
    assert gate.failures(reports) == []
