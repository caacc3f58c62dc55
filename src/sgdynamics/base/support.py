"""The support table: which question is supported for which kind of problem and algorithm."""

from __future__ import annotations

import math
from typing import Any

from sgdynamics.base import checks, registry

# The kinds that a problem or an algorithm declares in its attribute `kinds`, and what they mean.
KINDS: dict[str, str] = {
    "fields": "a problem stated by its fields (TeacherStudent, MultiIndex, Problem)",
    "mixture": "a Gaussian mixture, or inputs with means",
    "snr = inf": "a ReLU mixture at snr = infinity, whose drift is discontinuous (also a mixture)",
    "several inputs": "samples of several inputs, or with named draws",
    "rule": "a loss that reads overlaps, or a Rule",
    "dropout": "dropout of hidden units (keep, gain)",
    "contexts": "sgd.contexts: each sample belongs to one of several problems",
    "students": "students that learn together or from each other (sgd.ensemble, sgd.stages)",
    "top": "a Problem with a trained network on top of the rows (top=...)",
    "other inputs": "noise on the student's inputs, or contexts with different covariances",
    "spiked tensor": "SpikedTensor",
    "own dynamics": "a subclass of Dynamics",
    "deep linear": "DeepLinear",
    "wide network": "WideNetwork",
    "diagonal": "DiagonalNetwork",
    "static head": 'one-pass SGD with head_rate="static"',
    "temperature": "one-pass SGD at a temperature",
    "other batch": "one-pass SGD with a non-integer or scheduled batch size",
    "other update": (
        "one-pass SGD with an update that commutes with rotations (momentum, clipped, Muon, ...)"
    ),
    "coordinatewise update": (
        "one-pass SGD with an update of each coordinate (sign, Adam, AdaGrad, RMSprop, sparse)"
    ),
    "delayed update": "one-pass SGD with delayed gradients (sgd.updates.delayed)",
    "workers": "Workers: local SGD, DiLoCo",
    "fixed data": "an algorithm on a fixed data set",
    "update on data": (
        "an algorithm on a fixed data set with an update that commutes with rotations"
    ),
    "coordinatewise update on data": (
        "an algorithm on a fixed data set with an update of each coordinate"
    ),
    "epochs": "EpochSGD (also an algorithm on a fixed data set)",
    "message passing": "AMP (also an algorithm on a fixed data set)",
}
# A kind inherits the reasons of the more general kind, unless the entry overrides them.
GENERAL_KIND = {
    "snr = inf": "mixture",
    "epochs": "fixed data",
    "message passing": "fixed data",
    "update on data": "fixed data",
    "coordinatewise update on data": "fixed data",
}
# The argument that an error names, where the algorithm is the cause; otherwise `problem`.
ARGUMENT = {
    "static head": "head_rate",
    "temperature": "temperature",
    "other batch": "batch",
    "other update": "update",
    "coordinatewise update": "update",
    "delayed update": "update",
    "workers": "algorithm",
    "fixed data": "algorithm",
    "epochs": "algorithm",
    "message passing": "algorithm",
    "update on data": "update",
    "coordinatewise update on data": "update",
}

# Reasons and remedies that several questions share.
PLAIN_SGD = (
    "only plain SGD (update=None, no temperature) is supported here. Other updates need a problem "
    "stated by its fields, and sgd.solve_ode, sgd.simulate, sgd.exit_time or sgd.certify."
)
INTEGER_BATCH = (
    "the batch size must be an integer here. Use batch=4, for example, and sgd.phases to change it "
    "during training. Non-integer and scheduled batch sizes are supported by sgd.solve_ode, "
    "sgd.solve_sde and sgd.optimal_protocol."
)
NO_WORKERS = (
    "several workers are supported by sgd.solve_ode, sgd.solve_sde, sgd.simulate, sgd.exit_time "
    "and sgd.sweep only. Use sgd.OnePassSGD(...); for short rounds workers.short_rounds is the "
    "same."
)
NO_STUDENTS = (
    "several students are supported by sgd.solve_ode, sgd.solve_sde and sgd.simulate only. Use a "
    "problem of one network."
)
NO_DELAY = (
    "delayed gradients are supported by sgd.solve_ode, sgd.simulate and sgd.exit_time by runs "
    "only. Omit update."
)
FRESH_SAMPLES = "only fresh samples are supported here. Use sgd.OnePassSGD(...)."
NO_MESSAGE_PASSING = (
    "message passing is supported by sgd.simulate and sgd.solve_dmft. Use sgd.GradientDescent(...) "
    "or another algorithm on a data set."
)
COORDINATES_ON_DATA = (
    "an update of each coordinate does not commute with rotations, and the theory of a fixed data "
    "set is a theory of rotated coordinates. Use direct runs, sgd.simulate(method='direct'), or an "
    "update that commutes with rotations."
)
NO_UPDATE_HERE = (
    "updates on a fixed data set are not supported here. Omit update, or use sgd.simulate or "
    "sgd.solve_dmft."
)
NO_OVERLAPS_ON_DATA = (
    "on a fixed data set the loss may read the fields, and the overlaps Q and M of all rows under "
    "sgd.GradientDescent and other algorithms without epochs. Use sgd.OnePassSGD(...) for a Rule "
    "and for overlaps by block."
)
ONE_PASS_REGULARISERS = (
    "dropout, input noise and contexts are not supported here. Use one-pass SGD and sgd.solve_ode, "
    "sgd.solve_sde, sgd.simulate, sgd.exit_time or sgd.optimal_protocol."
)
NO_SPIKED_TENSOR = (
    "a spiked tensor has no Gaussian inputs, which are needed here. Use sgd.solve_ode, "
    "sgd.solve_sde, sgd.simulate, sgd.exit_time or sgd.fixed_points."
)
NO_OWN_DYNAMICS = (
    "a problem with Gaussian inputs is needed here, not a Dynamics. Use sgd.solve_ode, "
    "sgd.solve_sde, sgd.simulate, sgd.exit_time or sgd.optimal_protocol."
)
NO_STATIC_HEAD = (
    'head_rate="static" is a limit of the ODE. Use sgd.solve_ode or sgd.exit_time, or a finite '
    "head_rate."
)
NO_DEEP_LINEAR = (
    "a deep linear network has no overlaps of rows, which are needed here. Use sgd.solve_dmft, "
    "sgd.solve_large_batch, sgd.simulate or sgd.sweep."
)
NO_WIDE_NETWORK = (
    "an infinitely wide network on a given data set has no Gaussian inputs and no overlaps, which "
    "are needed here. Use sgd.solve_dmft or sgd.sweep."
)
NO_DIAGONAL = (
    "the weights of a diagonal network do not close on overlaps of rows, which are needed here. "
    "Use sgd.solve_ode, sgd.solve_dmft, sgd.simulate or sgd.sweep."
)
# Kinds that questions do not support, except for those that say so (None).
RARELY_SUPPORTED = {
    "deep linear": NO_DEEP_LINEAR,
    "wide network": NO_WIDE_NETWORK,
    "diagonal": NO_DIAGONAL,
    "students": NO_STUDENTS,
    "workers": NO_WORKERS,
    "static head": NO_STATIC_HEAD,
    "delayed update": NO_DELAY,
}
UPDATES_ON_DATA = ("update on data", "coordinatewise update on data")
# Algorithms that no question supports for a kind of problem, and those (None) that each question
# supports which supports the problem.
COMBINATIONS: dict[str, dict[str, str | None]] = {
    "deep linear": {
        "temperature": (
            "thermal noise is not supported for deep linear networks. Use temperature=0."
        ),
        "other batch": (
            "the batch size of a deep linear network must be an integer. Use batch=4, for example."
        ),
        # The dynamics names the updates that are not supported.
        **dict.fromkeys(("other update", "update on data")),
        **dict.fromkeys(
            ("coordinatewise update", "delayed update", "coordinatewise update on data"),
            "updates of each coordinate depend on the axes of the layers, and deep linear networks "
            "are solved in rotated frames. Use update=None, sgd.updates.momentum(...) or "
            "sgd.updates.nesterov(...).",
        ),
        "epochs": (
            "epochs are not supported for deep linear networks. Use sgd.GradientDescent(...) or "
            "sgd.MultiPassSGD(...)."
        ),
    },
    "wide network": {
        **dict.fromkeys(
            ("epochs", "message passing"),
            "wide networks are trained with sgd.GradientDescent(...) or sgd.MultiPassSGD(...). Use "
            "one of these.",
        ),
        "coordinatewise update on data": (
            "an update of each weight is not linear in the gradient, which is needed here. Use "
            "update=None, sgd.updates.momentum(...) or sgd.updates.nesterov(...)."
        ),
    },
    "diagonal": {
        **dict.fromkeys(
            (
                "temperature",
                "other update",
                "coordinatewise update",
                "delayed update",
                *UPDATES_ON_DATA,
            ),
            "diagonal networks are trained by plain steps. Use update=None and no temperature.",
        ),
        **dict.fromkeys(
            ("epochs", "message passing"),
            "diagonal networks support sgd.GradientDescent(...) and sgd.MultiPassSGD(...) on a "
            "data set.",
        ),
    },
}
INFINITE_VARIANCE = (
    "its variance is infinite, so steps of the squared loss have no second moment and this theory "
    "does not apply. Use sgd.updates.sign(), sgd.updates.clipped(...) or sgd.updates.normalised() "
    "with sgd.solve_ode, a loss with a bounded slope, or sgd.simulate."
)
_INFINITE_FOURTH_MOMENT = (
    "its fourth moment is infinite, so the squared residuals, which make rows grow, have no "
    "variance. Use sgd.solve_ode or sgd.simulate, or more than 4 degrees of freedom."
)

# Groups of kinds that are usually unsupported together.
REGULARISERS = dict.fromkeys(("dropout", "contexts", "other inputs"), ONE_PASS_REGULARISERS)
OTHER_UPDATES = dict.fromkeys(("other update", "coordinatewise update"), PLAIN_SGD)
OTHER_STEPS = {"temperature": PLAIN_SGD, **OTHER_UPDATES}
PLAIN_ONE_PASS = {"other batch": INTEGER_BATCH, **OTHER_STEPS, "fixed data": FRESH_SAMPLES}


def discontinuous_drift(consequence: str) -> str:
    """The reason why a question does not support snr = infinity."""
    cause = "at snr = infinity the drift is discontinuous where a unit is orthogonal to a cluster"
    return f"{cause}, {consequence}"


def why_not(question: str, kind: str) -> str | None:
    """The reason why a question does not support a kind, or None if it does."""
    unsupported = registry.find(question).unsupported
    if kind in RARELY_SUPPORTED:
        return unsupported.get(kind, RARELY_SUPPORTED[kind])
    return unsupported.get(kind, unsupported.get(GENERAL_KIND.get(kind, "")))


def require(question: str, problem: object, algorithm: object = None) -> None:
    """Raise ValueError unless a question supports this problem and this algorithm."""
    problem_kinds = getattr(problem, "kinds", None)
    if problem_kinds is None or isinstance(problem, type):
        raise checks.reject(
            "problem",
            problem,
            "this is not a problem. Use sgd.TeacherStudent(...), sgd.GaussianMixture(...), or "
            "another problem.",
        )
    _require_moments(question, problem, algorithm)
    algorithm_kinds = getattr(algorithm, "kinds", ())
    on_data = bool({"fixed data", "epochs", "message passing"} & set(algorithm_kinds))
    for kind in (*problem_kinds, *algorithm_kinds):
        reason = why_not(question, kind)
        # Some combinations of a problem and an algorithm are unsupported by every question.
        if kind == "rule" and on_data:
            reason = _reason_of_overlaps(reason, problem, algorithm_kinds)
        if kind in REGULARISERS and on_data:
            reason = ONE_PASS_REGULARISERS
        if kind in (*OTHER_STEPS, "delayed update") and "fields" not in problem_kinds:
            reason = PLAIN_SGD
        for problem_kind in problem_kinds:
            reason = COMBINATIONS.get(problem_kind, {}).get(kind, reason)
        if reason is not None:
            argument = ARGUMENT.get(kind, "problem")
            values = {"problem": problem, "algorithm": algorithm}
            value = values.get(argument, getattr(algorithm, argument, None))
            raise checks.reject(argument, value, reason)


def _reason_of_overlaps(
    reason: str | None, problem: Any, algorithm_kinds: tuple[str, ...]
) -> str | None:
    """Return why a question does not support a loss that reads overlaps on a data set, or None.

    The table has the reason for rules. A loss that reads Q and M of all rows is supported where
    only rules are not.
    """
    loss = problem.structure.loss
    others = {"epochs", "message passing", "coordinatewise update on data"}
    reads_more = loss.reads_blocks or loss.reads_lengths or not loss.is_gradient
    if reads_more or others & set(algorithm_kinds):
        return NO_OVERLAPS_ON_DATA
    return None if reason == NO_OVERLAPS_ON_DATA else reason


def require_many_rows(question: str, problem: object, algorithm: object) -> None:
    """Raise ValueError if a question does not support several students or workers."""
    for argument, value in (("problem", problem), ("algorithm", algorithm)):
        for kind in getattr(value, "kinds", ()):
            reason = why_not(question, kind) if kind in ("students", "workers") else None
            if reason is not None:
                raise checks.reject(argument, value, reason)


def _require_moments(question: str, problem: Any, algorithm: object) -> None:
    """Raise ValueError if the label noise lacks a moment that the theory needs.

    Under the squared loss a step is proportional to the residual, so a theory of the mean step
    needs the variance of the noise, and a theory of its fluctuations needs the fourth moment.
    Updates whose steps are bounded (sign, clipped, normalised) need neither.
    """
    needed = registry.find(question).label_noise
    moments = getattr(problem, "finite_noise_moments", math.inf)
    if needed == "fourth moment" and moments <= 4 and problem.structure.has_excess:
        raise checks.reject("noise", problem.arguments["noise"], _INFINITE_FOURTH_MOMENT)
    if not getattr(problem, "infinite_risk", False) or needed == "any":
        return
    law = getattr(algorithm, "law", None)
    has_bounded_steps = law is not None and law.jumps and (bool(law.bends) or not law.rereads)
    if has_bounded_steps and needed == "finite variance or bounded steps":
        return
    raise checks.reject("noise", problem.arguments["noise"], INFINITE_VARIANCE)


def supported() -> str:
    """Return the table of supported problems and algorithms as Markdown.

    Returns
    -------
    str
        Questions in rows, kinds of problems and algorithms in columns. Numbers refer to the
        reasons below the table.

    Examples
    --------
    >>> print(sgd.supported().splitlines()[0][:22])
    | | fields | mixture |
    """
    reasons: list[str] = []
    lines = ["| | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    for name, question in registry.questions().items():
        cells = []
        for kind in KINDS:
            reason = why_not(name, kind)
            if reason is None:
                applies = question.takes_algorithm or kind not in ARGUMENT
                cells.append("yes" if applies else "-")
                continue
            if reason not in reasons:
                reasons.append(reason)
            cells.append(f"no ({reasons.index(reason) + 1})")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])
