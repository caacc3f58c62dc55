"""Compressed gradients: only a random set of coordinates is sent in a step."""

from __future__ import annotations

from sgdynamics.algorithms.updates.gradient_source import Gradient
from sgdynamics.algorithms.updates.law import Increments, Law, step_equation
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.base import checks
from sgdynamics.base.arrays import Scalar, State
from sgdynamics.base.controls import scalar_or_schedule


def _sparse_step(
    state: State, gradient: Gradient, lr: Scalar, D: Scalar, number: Scalar, *, share: Scalar
) -> Increments:
    G = gradient(state["weights"])
    return {"weights": -lr / D * gradient.select(G, share=share, rescaled=True)}


def _step_with_feedback(
    state: State,
    gradient: Gradient,
    lr: Scalar,
    D: Scalar,
    number: Scalar,
    *,
    share: Scalar | None = None,
    per_step: Scalar | None = None,
) -> Increments:
    change = -lr / D * gradient(state["weights"])
    sent = gradient.select(state["unsent"] + change, share=share, count=per_step)
    # The change is not added to the unsent rows before the difference, which would round it.
    return {"weights": sent, "unsent": change - sent}


# The mask S of a step, with a share of the coordinates or a number of them.
MASK = r"S \in \{0, 1\}^d:\quad %s \text{ random coordinates of } S \text{ are } 1"
MASK_OF_SHARE, MASK_OF_COUNT = MASK % "q d", MASK % r"\kappa"
FEEDBACK_EQUATIONS = (
    r"E \leftarrow E - \frac{\mathrm{lr}}{D} G",
    r"W \leftarrow W + S \circ E",
    r"E \leftarrow E - S \circ E",
)


@maker
def sparse(
    share: float | None = None, per_step: float | None = None, feedback: bool = True
) -> Update:
    """Compressed gradients (rand-k): each step sends a random set S of coordinates only.

    ::

        no feedback:  W_S <- W_S - (lr/D) G_S/share
        feedback:     E <- E - (lr/D) G,   W_S <- W_S + E_S,   E_S <- 0

    Parameters
    ----------
    share : float, optional
        Share q of the d coordinates of the input space that a step sends, 0 < q <= 1.
    per_step : float, optional
        Number of coordinates that a step sends, instead of share = per_step/d. It needs feedback.
    feedback : bool, default True
        Error feedback: whether the coordinates that are not sent accumulate until they are.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``, and for direct runs on a fixed data set.

    Raises
    ------
    ValueError
        If not exactly one of share and per_step is set, if it is out of range, or for ``per_step``
        without feedback.

    Notes
    -----
    A step draws S uniformly, and all units send the same coordinates. A number of coordinates that
    is not an integer is rounded at random, so that its mean is exact. A trained head is sent in
    every step, and weight decay of the problem is part of the gradient.

    For weights and signals that are spread over all coordinates the limits are: without feedback,
    SGD whose gradient noise is larger by 1/share; with feedback and a fixed share, plain SGD; with
    ``per_step``, where each coordinate waits for d/per_step steps, SGD whose weights W follow the
    sum of all gradients V = W + E at a rate: ``dW/dtau = per_step (V - W)`` coordinate by
    coordinate, tau = steps/d. ``per_step`` without feedback would make noise of order d. Direct
    runs draw random signals for each run; the update does not commute with rotations, so it has no
    exact chain. Source: Stich, Cordonnier and Jaggi 2018 (error feedback).

    Examples
    --------
    >>> sgd.updates.sparse(share=0.1, feedback=False)
    sparse(share=0.1, feedback=False)
    >>> sgd.largest_stable_lr(sgd.OnePassSGD(update=sgd.updates.sparse(per_step=2)))
    1.0
    """
    feedback = checks.flag("feedback", feedback)
    if (share is None) == (per_step is None):
        fix = "Set exactly one of them: share=0.1, or per_step=2.0 coordinates in each step."
        raise checks.reject("share and per_step", (share, per_step), fix)
    options = () if feedback else (("feedback", False),)
    if per_step is not None:
        if not feedback:
            fix = (
                "without feedback the noise of per_step coordinates grows with d. Use "
                "feedback=True, or share=."
            )
            raise checks.reject("feedback", feedback, fix)
        law = Law(
            "sparse",
            _step_with_feedback,
            rows=("unsent",),
            memory="slow",
            linear=True,
            decay_inside=True,
            coordinatewise=True,
            selects=True,
            averaging=("per_step",),
            equations=(MASK_OF_COUNT, *FEEDBACK_EQUATIONS),
        )
        return Update(law, {"per_step": scalar_or_schedule("per_step", per_step, above=0.0)})
    hyperparameters = {"share": scalar_or_schedule("share", share, above=0.0, maximum=1.0)}
    if feedback:
        law = Law(
            "sparse",
            _step_with_feedback,
            rows=("unsent",),
            memory="fast",
            linear=True,
            decay_inside=True,
            coordinatewise=True,
            selects=True,
            equations=(MASK_OF_SHARE, *FEEDBACK_EQUATIONS),
            equivalent_rate=r"\mathrm{lr}",
        )
        return Update(law, hyperparameters)
    law = Law(
        "sparse",
        _sparse_step,
        linear=True,
        decay_inside=True,
        coordinatewise=True,
        selects=True,
        equations=(MASK_OF_SHARE, step_equation(r"\frac{S \circ G}{q}")),
    )
    return Update(law, hyperparameters, options)
