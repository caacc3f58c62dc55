"""`Stage`, and the plan of a sequence of stages: which students each stage reads and keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.students import TRUTH

# Save points of a stage, in samples over dimension or by the name of the unit
SavePoints = ArrayArgument | Mapping[str, ArrayArgument]
MIXINGS = ("weighted", "drawn")
PREVIOUS = "previous"
STARTS = ("continue", "fresh")


@dataclass(frozen=True)
class Stage:
    """One stage of training: a problem, an algorithm, a length, labels and a start.

    Parameters
    ----------
    problem : Problem
        The network that learns, its loss, and the problem whose labels are the truth.
    algorithm : OnePassSGD
        The training algorithm.
    alpha : float, array_like or dict
        Length of the stage in samples/d, or its save points, counted from its beginning. In other
        units {"times": ...} or {"steps": ...}.
    labels : str or dict, default "teacher"
        Source of the labels: "teacher" is the problem itself, "previous" the student of the stage
        before, and a name that of an earlier stage. A dictionary contains the share of each source,
        such as ``{"teacher": 0.6, "previous": 0.4}``; shares add up to 1.
    mixing : str, default "weighted"
        Mixture of several sources. "weighted": each label is the weighted mean of labels of all
        sources; "drawn": each sample draws its source with these probabilities.
    label_noise : float, optional
        Variance of the Gaussian noise on the outputs of earlier students. Defaults to the label
        noise of the problem, so that generated labels are as noisy as real ones.
    start : str or Start, default "continue"
        "continue": from the student of the stage before; a name: from that of an earlier stage;
        "fresh": from the start of the first stage, in directions that are independent of earlier
        students; or overlaps with the signals, ``sgd.start(...)``, in fresh directions too.
    name : str, optional
        Name of the stage and of its student. Defaults to "stage 0", "stage 1", ...

    Raises
    ------
    ValueError
        If shares are not positive or do not add up to 1, or another argument is invalid.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> stage = sgd.Stage(problem, sgd.OnePassSGD(lr=1.0), alpha=6.0, labels="previous")
    >>> stage.shares
    {'previous': 1.0}
    """

    problem: Problem
    algorithm: OnePassSGD
    alpha: SavePoints
    labels: str | Mapping[str, float] = TRUTH
    mixing: str = "weighted"
    label_noise: float | None = None
    start: Start | str | None = "continue"
    name: str | None = None
    shares: dict[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.choice("mixing", self.mixing, MIXINGS)
        if self.label_noise is not None:
            checks.number("label_noise", self.label_noise, 0.0)
        if self.name is not None and (not isinstance(self.name, str) or self.name in RESERVED):
            fix = f"give a text other than {', '.join(RESERVED)}"
            raise checks.reject("name", self.name, fix)
        if not isinstance(self.start, (str, Start)) and self.start is not None:
            fix = 'give "continue", "fresh", the name of a stage, or a start of sgd.start'
            raise checks.reject("start", self.start, fix)
        object.__setattr__(self, "shares", _read_shares(self.labels))


RESERVED = (TRUTH, PREVIOUS, *STARTS, "")


def _read_shares(labels: object) -> dict[str, float]:
    """Return the share of each source of labels."""
    fix = (
        'give "teacher", "previous", the name of an earlier stage, or shares that add up to 1, '
        'such as {"teacher": 0.6, "previous": 0.4}'
    )
    if isinstance(labels, str) and labels:
        return {labels: 1.0}
    if not isinstance(labels, Mapping) or not labels:
        raise checks.reject("labels", labels, fix)
    shares = {}
    for name, share in labels.items():
        if not isinstance(name, str):
            raise checks.reject("labels", labels, fix)
        shares[name] = checks.number(f"labels[{name!r}]", share, 0.0)
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise checks.reject("labels", labels, fix)
    return {name: share for name, share in shares.items() if share > 0}


@dataclass(frozen=True, eq=False)
class PlannedStage:
    """A stage with the names of the students that it reads and keeps.

    Attributes
    ----------
    stage : Stage
        The stage.
    name : str
        Its name.
    shares : dict of str to float
        Shares of the sources of labels, by names of stages.
    start : str or Start
        "fresh", a start, or the name of the stage whose student continues.
    earlier : tuple of str
        Earlier students that this stage or a later one reads.
    """

    stage: Stage
    name: str
    shares: dict[str, float]
    start: Start | str
    earlier: tuple[str, ...] = ()


def read_plan(stages: object) -> list[PlannedStage]:
    """Validate the stages, and resolve the names of the students that they read."""
    is_text = isinstance(stages, (str, bytes, Mapping))
    if is_text or not isinstance(stages, Sequence) or not stages:
        raise checks.reject("stages", stages, "give a list of sgd.Stage(problem, algorithm, alpha)")
    plan: list[PlannedStage] = []
    names: list[str] = []
    for index, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise checks.reject("stages", stages, "give a list of sgd.Stage(...)")
        name = stage.name or f"stage {index}"
        if name in names:
            raise checks.reject("name", name, "two stages have this name. Give another one.")

        def resolve(source: str, argument: str, names: tuple[str, ...] = tuple(names)) -> str:
            """Return the name of the stage behind a source."""
            source = names[-1] if source == PREVIOUS and names else source
            if source not in names and (argument, source) != ("labels", TRUTH):
                listed = ", ".join(names) or "none"
                raise checks.reject(argument, source, f"there is no such earlier stage ({listed})")
            return source

        shares: dict[str, float] = {}
        for source, share in stage.shares.items():
            resolved = resolve(source, "labels")
            shares[resolved] = shares.get(resolved, 0.0) + share
        start = "fresh" if stage.start is None else stage.start
        if isinstance(start, str) and start != "fresh":
            start = "fresh" if not names and start == "continue" else start
            start = names[-1] if start == "continue" else start
            start = start if start == "fresh" else resolve(start, "start")
        plan.append(PlannedStage(stage, name, shares, start))
        names.append(name)
    return [_add_earlier(plan, index) for index in range(len(plan))]


def _add_earlier(plan: list[PlannedStage], index: int) -> PlannedStage:
    """Return a stage with the earlier students that it keeps."""
    own, earlier = plan[index], [stage.name for stage in plan[:index]]
    needed = set(own.shares) - {TRUTH}
    for later in plan[index + 1 :]:
        needed |= set(later.shares)
        needed |= {later.start} if isinstance(later.start, str) else set()
    earlier = tuple(name for name in earlier if name in needed)
    return PlannedStage(own.stage, own.name, own.shares, own.start, earlier)
