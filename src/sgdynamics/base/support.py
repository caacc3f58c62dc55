"""What is supported: which question is answered for which kind of problem and algorithm. Everyone refuses through this one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sgdynamics.base import checks

# what a problem or an algorithm says of itself (`kinds`), and how a reader knows it
KINDS: dict[str, str] = {
    "fields": "a problem of fields (TeacherStudent, MultiIndex, Problem)",
    "mixture": "a Gaussian mixture, or inputs with means",
    "snr = inf": "a ReLU mixture at snr = infinity, whose drift jumps (and which is a mixture)",
    "several inputs": "samples of several inputs, or with own draws",
    "rule": "a loss that reads overlaps, or a Rule",
    "dropout": "dropout of hidden units (keep, gain)",
    "contexts": "sgd.contexts: several problems of which a sample draws one",
    "other inputs": "noise on the student's inputs, or contexts with covariances of their own",
    "spiked tensor": "SpikedTensor",
    "own dynamics": "a subclass of Dynamics",
    "temperature": "one-pass SGD at a temperature",
    "other batch": "one-pass SGD with a batch that is no whole number, or a function of alpha",
    "other update": "one-pass SGD with an update that commutes with rotations (momentum, clipped, Muon, ...)",
    "coordinatewise update": "one-pass SGD with an update of each coordinate by itself (sign, Adam, AdaGrad, RMSprop)",
    "fixed data": "an algorithm on a fixed data set",
    "epochs": "EpochSGD (which is on a fixed data set)",
}
_JUMPS = "without noise the drift jumps where a unit is orthogonal to a cluster, and {what}"
_FIELDS = "this question is answered for problems with Gaussian inputs, not for {what}"
_PLAIN = (
    "this is made for plain SGD, update=None; other updates are for sgd.solve_ode, sgd.simulate, sgd.exit_time and sgd.certify, of "
    "problems that are stated by fields"
)
_DATA = "this is for a fixed data set, on which steps are plain: give sgd.GradientDescent(...) or another such algorithm"
_EPOCHS = "this is about a data set that is used again and again: give sgd.EpochSGD(...)"
_FRESH = "this is for fresh samples: give sgd.OnePassSGD(...)"
_MAP = (
    "this map is of networks that learn from centred Gaussian inputs, with limits in lr/p, d and p"
)
_PULLS = "losses of overlaps and own rules are for fresh samples, sgd.OnePassSGD(...): on a data set only losses of the fields are"
_LINEAR = "exact means without stepping are those of linear students, sgd.TeacherStudent(activation='linear', ...)"
_MIXED = "dropout, noise on inputs and contexts are for one pass: sgd.solve_ode, sgd.simulate, sgd.exit_time, sgd.optimal_protocol"
_WHOLE = (
    "a step takes a whole number of samples: give batch=4, say, and other batches in other phases of sgd.phases; any number, and functions "
    "of alpha, are for sgd.solve_ode, sgd.solve_sde and sgd.optimal_protocol"
)
_WIDE = "wide networks are solved for TeacherStudent and MultiIndex with loss='squared'"
_SPIKED, _OWN = (
    _FIELDS.format(what="spiked tensors"),
    _FIELDS.format(what="a dynamics of one's own"),
)
_REGULAR = {"dropout": _MIXED, "contexts": _MIXED, "other inputs": _MIXED}
_OTHER_STEPS = {"other update": _PLAIN, "coordinatewise update": _PLAIN}
_UPDATES = {"temperature": _PLAIN, **_OTHER_STEPS}
_THEORY = {"other batch": _WHOLE, **_UPDATES, "fixed data": _FRESH}

_ON_DATA: Mapping[str, str | None] = {
    **_REGULAR,
    "temperature": _DATA,
    "other batch": _DATA,
    "other update": _DATA,
    "coordinatewise update": _DATA,
    "rule": _PULLS,
    "spiked tensor": "fresh tensors have no data set: use solve_ode, solve_sde or simulate",
    "own dynamics": "only fields on a data set have this limit: use solve_ode and simulate",
}

# what is refused for one kind is for another, unless the table says so itself
PART_OF = {"snr = inf": "mixture", "epochs": "fixed data"}
# question -> kind -> why not, and what to do instead; what is not here is answered, and so is None
REFUSED: dict[str, Mapping[str, str | None]] = {
    "solve_ode": {
        "fixed data": "this is for fresh samples: for a fixed data set take sgd.solve_dmft"
    },
    "solve_large_batch": {
        "temperature": "in large batches this takes updates that read a batch once, as a whole, and add no noise of their own: simulate it",
        "other batch": "batches are samples_per_dimension d samples here: leave batch out",
        "coordinatewise update": "in large batches each coordinate has a mean of its own: only updates that commute with rotations close",
        "fixed data": _FRESH,
        "snr = inf": _JUMPS.format(what="the map jumps too: give a finite snr"),
        "spiked tensor": _SPIKED,
        "own dynamics": _OWN,
    },
    "solve_sde": {
        **_OTHER_STEPS,
        "fixed data": _FRESH,
        "snr = inf": _JUMPS.format(
            what="an SDE has no meaning there: use solve_ode (d -> infinity), simulate (exact at any d), or a finite snr"
        ),
        "own dynamics": "the noise of one's own dynamics is not known to the library: use solve_ode and simulate",
    },
    "solve_mean_field": {
        **_THEORY,
        **_REGULAR,
        "mixture": _WIDE,
        "several inputs": _WIDE,
        "rule": _WIDE,
        "spiked tensor": _WIDE,
        "own dynamics": _WIDE,
    },
    "solve_dmft": _ON_DATA,
    "worth_of_repeats": {
        **_REGULAR,
        "temperature": _EPOCHS,
        "other batch": _EPOCHS,
        "other update": _EPOCHS,
        "coordinatewise update": _EPOCHS,
        "fixed data": _EPOCHS,
        "epochs": None,
        "rule": _PULLS,
        "spiked tensor": _SPIKED,
        "own dynamics": _OWN,
    },
    "solve_linear": {
        **_THEORY,
        **_REGULAR,
        "mixture": _LINEAR,
        "several inputs": _LINEAR,
        "rule": _LINEAR,
        "spiked tensor": _LINEAR,
        "own dynamics": _LINEAR,
    },
    "simulate": {"other batch": _WHOLE},
    "exit_time by the ODE": {
        "other batch": _WHOLE,
        "fixed data": 'the ODE is for fresh samples: on a fixed data set take method="dmft" or method="direct"',
        "snr = inf": _JUMPS.format(
            what='the ODE slides: take method="exact", or save a trajectory and take sgd.exit_time_of(...)'
        ),
    },
    "exit_time by runs": {"other batch": _WHOLE},
    "exit_time by DMFT": _ON_DATA,
    "fixed_points": {
        **_THEORY,
        **_REGULAR,
        "snr = inf": _JUMPS.format(what="it has no roots there: give a finite snr"),
        "own dynamics": _OWN,
    },
    "hessian_spectrum": {
        **_REGULAR,
        "mixture": "the Hessian is built for centred inputs, not for a mixture; use fixed_points for stability",
        "several inputs": "the Hessian is built for samples of one input; use fixed_points for stability",
        "rule": "the Hessian is built for losses of the fields; use fixed_points for stability",
        "spiked tensor": _SPIKED,
        "own dynamics": _OWN,
    },
    "increment_covariance": {**_THEORY, **_REGULAR, "spiked tensor": _SPIKED, "own dynamics": _OWN},
    "regime": {
        **_THEORY,
        **_REGULAR,
        "mixture": f"{_MAP}; a mixture has no 1/p, and its noise scales with the snr: see sgd.effective_scaling",
        "several inputs": f"{_MAP}; these samples have several inputs",
        "rule": f"{_MAP}; this moves rows along one another",
        "spiked tensor": f"{_MAP}; a spiked tensor has no width: see sgd.effective_scaling",
        "own dynamics": _MAP,
    },
    "optimal_schedule": {
        "snr = inf": _JUMPS.format(what="it has no gradient: give a finite snr"),
        "spiked tensor": _SPIKED,
        "own dynamics": _OWN,
    },
    "optimal_protocol": {
        "fixed data": _FRESH,
        "snr = inf": _JUMPS.format(what="it has no gradient: give a finite snr"),
        "spiked tensor": "spiked tensors need a constant learning rate, and have no numbers that depend on alpha",
    },
    "expect": {**_REGULAR, "spiked tensor": _SPIKED, "own dynamics": _OWN},
    "certify": {
        "other batch": _WHOLE,
        "epochs": "direct runs of epochs have no other scheme beside them: hold sgd.simulate against sgd.solve_dmft by sgd.compare",
        "spiked tensor": _SPIKED,
        "own dynamics": _OWN,
    },
    "functional": {"spiked tensor": _SPIKED, "own dynamics": _OWN},
    "sweep": {},
}
# label noise of infinite variance under the squared loss
INFINITE_VARIANCE = (
    "its variance is infinite, so that steps of the squared loss have no mean square and this theory does not exist. Use "
    "sgd.updates.sign(), sgd.updates.clipped(...) or sgd.updates.normalised() with sgd.solve_ode, a loss with a bounded slope, or "
    "sgd.simulate"
)
_INFINITE_FOURTH = (
    "its fourth moment is infinite, so that the squares of residuals, by which rows grow, fluctuate without a variance. Use "
    "sgd.solve_ode or sgd.simulate, or more than 4 degrees of freedom"
)
_OF_SQUARES = ("solve_sde", "increment_covariance")
_WITHOUT_VARIANCE = ("simulate", "exit_time by runs", "expect", "sweep", "functional")
_OF_BOUNDED_STEPS = ("solve_ode", "exit_time by the ODE", "certify")
WITHOUT_ALGORITHM = (
    "hessian_spectrum",
    "optimal_schedule",
    "expect",
    "functional",
)  # they ask for none
# where it is the algorithm that does not fit, the error names that argument
_ARGUMENT = {
    "temperature": "temperature",
    "other batch": "batch",
    "other update": "update",
    "coordinatewise update": "update",
    "fixed data": "algorithm",
    "epochs": "algorithm",
}


def why_not(question: str, kind: str) -> str | None:
    """Why a question is not answered for a kind; None where it is."""
    refused = REFUSED[question]
    return refused.get(kind, refused.get(PART_OF.get(kind, "")))


def require(question: str, problem: object, algorithm: object = None) -> None:
    """Refuse what is no problem, and what this question is not answered for."""
    kinds = getattr(problem, "kinds", None)
    if kinds is None or isinstance(problem, type):
        raise checks.reject(
            "problem",
            problem,
            "give sgd.TeacherStudent(...), sgd.GaussianMixture(...), or another problem",
        )
    require_variance(question, problem, algorithm)
    ways = getattr(algorithm, "kinds", ())
    on_data = {"fixed data", "epochs"} & set(ways)
    for kind in (*kinds, *ways):
        reason = why_not(question, kind)
        if kind == "rule" and on_data:
            reason = _PULLS  # whatever the question
        if kind in _REGULAR and on_data:
            reason = _MIXED
        if kind in _UPDATES and "fields" not in kinds:
            reason = _PLAIN  # of problems that have no fields, whatever the question
        if reason is not None:
            argument = _ARGUMENT.get(kind, "problem")
            value = {"problem": problem, "algorithm": algorithm}.get(
                argument, getattr(algorithm, argument, None)
            )
            raise checks.reject(argument, value, reason)


def require_variance(question: str, problem: Any, algorithm: object) -> None:
    """Refuse theory of steps that are not bounded where label noise has infinite variance."""
    moments = getattr(problem, "finite_noise_moments", math.inf)
    if question in _OF_SQUARES and moments <= 4 and problem.structure.has_excess:
        raise checks.reject("noise", problem.arguments["noise"], _INFINITE_FOURTH)
    if not getattr(problem, "infinite_risk", False) or question in _WITHOUT_VARIANCE:
        return
    law = getattr(algorithm, "law", None)
    bounded = law is not None and law.jumps and (bool(law.bends) or not law.rereads)
    if bounded and question in _OF_BOUNDED_STEPS:
        return
    raise checks.reject("noise", problem.arguments["noise"], INFINITE_VARIANCE)


def supported() -> str:
    """The table of what is supported, as Markdown.

    Returns
    -------
    str
        Questions in rows, kinds of problems and algorithms in columns, and below it why not.

    Examples
    --------
    >>> print(sgd.supported().splitlines()[0][:22])
    | | fields | mixture |
    """
    reasons: list[str] = []
    lines = ["| | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    for question in REFUSED:
        cells = []
        for kind in KINDS:
            reason = why_not(question, kind)
            if reason is None:
                cells.append("-" if kind in _ARGUMENT and question in WITHOUT_ALGORITHM else "yes")
                continue
            reasons += [] if reason in reasons else [reason]
            cells.append(f"no ({reasons.index(reason) + 1})")
        lines.append(f"| `{question}` | " + " | ".join(cells) + " |")
    return "\n".join(
        [*lines, "", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    )
