"""The lists of the style checker: dialect phrases, filler names, openings, and exceptions.

A list is short on purpose. An entry belongs here if it occurs often, hides the meaning from a
reader, and is found by a pattern with few false alarms. Single exceptions are marked where they
occur, by `# style: ok, reason`; the tables of exceptions below are for names that are public.
"""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Largest share of filler names among assigned names in a clean folder, marked exceptions included.
MAX_FILLER_SHARE = 0.01

# (pattern, what to write in its place). Patterns are in lower case and match capitals too; they
# start and end at word boundaries. A space matches any white space, also a line break inside of a
# comment or between joined string literals. They are applied to docstrings, comments, messages
# (string literals with a space) and Markdown pages, not to code.
PHRASES: list[tuple[str, str]] = [
    (r"unless (?:it is |they are )?given", '"by default ..." or "Defaults to ..."'),
    (r"so (?:many|much)(?! (?:as|that)\b)", '"this many", "that much", or the number'),
    (
        r"(?:is another|are others)(?<!there is another)"
        r"(?=[.,;:)]| (?:one|at|than|where|in|for|here)\b)",
        '"differs"',
    ),
    (
        r"what (?:is|are|was|were) (?:known|kept|told|asked|held|given|there|none|no)",
        "the name of the thing: the basis, the stored gradients, the warning, the arguments",
    ),
    (r"beside", '"with", "next to", "compared with", "in addition to"'),
    (
        r"(?:go|goes|went|gone) on(?=[.,;:)!?\"']|\s*$| (?:after|alone|also|and|as|at|bit|by|for"
        r"|from|in|later|to|until|where|while|with|without)\b)",
        '"continues"',
    ),
    (
        r"refuse[sd]?",
        '"raises ValueError", "is not supported"; of a function: "Raise ValueError if ..."',
    ),
    (r"(?:is|are|was|were) not there", '"does not exist", "is missing"'),
    (r"samples/d is nothing", '"is undefined", "is negligible"'),
    (r"(?:hold|holds|held|holding)(?: [\w.`*()]+){0,4} against", '"compare with"'),
    (r"the begin", '"the start", "the initial condition"'),
    (
        r"(?:attributes?|`+(?:form|rank|error\w*|engine|method)`+) (?:tells?|says?)",
        '"contains", "is", "reports"',
    ),
    (
        r"(?:bytes|number|numbers|samples|seconds|multiplications|operations|evaluations|draws"
        r"|reads|steps|paths|directions|gb|mb|one (?:package|file|function|class|page|row|column"
        r"|figure|value|line|program|name|entry|test)) an? (?:run|step|save point|sample|path"
        r"|row|pair|epoch|block|direction|coordinate|dimension|node|figure|file|document|family"
        r"|case|thread|unit|problem|state|field|time|cell)(?! (?:is|are|has|had|have|takes"
        r"|needs|makes|gives|moves|reads|uses|draws|keeps|can|may|must|would|will|that|which"
        r"|gets|used|size|at a time)\b)(?!-)",
        '"per run", "per step", "for each block"',
    ),
    (r"doors?", 'no metaphor of houses: "solver function", "entry point"'),
    (r"the house", 'no metaphor of houses: "the package layout", "the project"'),
    (
        r"rooms? (?:above|below|imports?|of the (?:engine|house|library|package))",
        'no metaphor of houses: "package", "folder"',
    ),
]

# Names that do not say what the thing is. They count wherever a name is assigned: assignments,
# loop and comprehension targets, parameters, fields, `as` targets; leading and trailing
# underscores, digits and capitals are ignored.
FILLERS: frozenset[str] = word_set(
    """
    found given asked seen noticed held kept told said known told_apart placed planned settled
    opened closed made one every each part parts place places numbers beside along again more rest
    there here what begin door
    """
)

# Words that add nothing to a filler: a name all of whose words are fillers or these is a filler
# too (`every_one`, `found_all`, `next_part`, `asked_for`), while `rest_mass`, `one_pass`
# and questions (`is_closed`) are not.
GLUE: frozenset[str] = word_set(
    """
    a all an and any as at back both by far few first for from in it its last many most new next
    no not now of off old on only or other others out over own prior second so some than that the
    then these this those to two up with
    """
)

# Functions are verbs or the noun of what they return; a participle is neither. Regular participles
# are found by their ending, -ed; these are the irregular ones.
IRREGULAR_PARTICIPLES: frozenset[str] = word_set(
    """
    begun bent blown broken chosen drawn driven forgotten frozen grown hidden laid lost met
    sent shown spent sunk swept taken thrown told written
    """
)

# Verbs and nouns that end in -ed without being participles.
NOT_PARTICIPLES: frozenset[str] = word_set(
    """
    bed breed embed exceed feed heed need proceed red reseed seed shed speed succeed
    """
)

# A function that starts with one of these has neither a verb nor a noun in front
# (`of_blocks`, `by_program`, `or_raise`).
PREPOSITION_PREFIXES: tuple[str, ...] = ("of_", "by_", "or_")

# The description of a parameter, field or returned value is a noun phrase. It does not start with
# one of these words. "Whether to ...", "If True, ..." and "One of ..." are fine.
DESCRIPTION_OPENINGS: tuple[str, ...] = (
    "After",
    "As",
    "At",
    "Before",
    "Beside",
    "Beyond",
    "By",
    "For",
    "From",
    "How",
    "If so",
    "In",
    "Of",
    "On",
    "So",
    "Than",
    "That",
    "Then",
    "There",
    "To",
    "Until",
    "Up to",
    "What",
    "When",
    "Where",
    "Which",
    "Whose",
    "With",
    "Without",
)

# The first sentence of a docstring says what a function does or what a thing is. It does not start
# with one of these words. "Whether ..." is fine for a predicate.
SUMMARY_OPENINGS: tuple[str, ...] = ("How", "Of", "That", "What", "When", "Where", "Which", "Whose")

# Public names, which users write in their own code: the dotted name inside of the module, with the
# reason. Once a name is renamed in public, its entry goes; a test finds entries without a use.
PUBLIC: dict[str, str] = {
    "Dynamics.rate.numbers": "documented argument of the user's own dynamics",
    "Dynamics.step.numbers": "documented argument of the user's own dynamics",
    "Dynamics.risk.numbers": "documented argument of the user's own dynamics",
    "EpochSGD.cells.given": "documented argument of sgd.EpochSGD.cells",
    "Expectation.closed": "property of the user's own expectations",
    "FixedPoint.found": "documented field of sgd.FixedPoint",
    "LinearModes.along": "documented field of sgd.scaling.LinearModes",
    "Plateau.closed": "documented field of sgd.Plateau",
    "RandomFeatures.given": "documented method of sgd.scaling.RandomFeatures",
    "Start.beside": "documented field of sgd.Start",
    "Update.numbers": "the field behind sgd.updates.own(numbers=)",
    "clipped": "sgd.updates.clipped",
    "delayed": "sgd.updates.delayed",
    "normalised": "sgd.updates.normalised",
    "own.numbers": "documented argument of sgd.updates.own",
    "phases.parts": "documented argument of sgd.phases",
    "supported": "sgd.supported() prints the table of what is supported",
}

# Files whose text quotes dialect on purpose; their names are checked as elsewhere.
QUOTING: dict[str, str] = {
    "tests/style/rules.py": "the lists themselves",
    "tests/style/test_style.py": "planted examples",
}
