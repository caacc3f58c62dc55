"""The stability of a single sample of a fixed data set: where its own pull flips and enlarges its field, and a warning beforehand."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import special

from sgdynamics.algorithms.fixed_data import FixedData, largest_rate
from sgdynamics.base.controls import is_scheduled
from sgdynamics.base.progress import warn
from sgdynamics.problems.losses import squared
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.samples.input_covariance import field_covariance, trace

MANY_UNSTABLE = 0.5  # samples beyond the stability limit, expected in all the data sets of a call, from which on it warns


def stability_limit(problem: Problem, algorithm: FixedData) -> float | None:
    """The largest residual a (f - y) of a sample whose own pull is stable; None for problems that this does not cover.

    A sample's pull moves its own field by -(lr |x|^2/(b n)) dloss/dlambda = -(2 lr tr/(b alpha)) a (a lambda^2 - y) lambda, with the batch
    fraction b (where the gradient is rescaled by it, else 1), alpha = n/d and tr = |x|^2/d. That flips and enlarges the field, further with
    every step, once

        a (a lambda^2 - y) > b alpha/(lr tr).

    Covers one unit f = a lambda^2 with the squared loss, any teacher, constraint and covariance; other samples' pulls are left out. In the
    units of Mignacco, Urbani, Zdeborova (2021), eta = 2 lr/alpha and v = (h^2 - h0^2)^2/4, it reads h^2 - h0^2 > 2 b/eta. At fixed lr and
    d -> infinity some sample is beyond any limit: the limit d -> infinity is only metastable.
    """
    covered = (
        isinstance(problem, TeacherStudent)
        and problem.width == 1
        and problem.head == "fixed"
        and problem.loss is squared
        and problem.activation.coefficients == (0.0, 0.0, 1.0)
    )
    if not covered:
        return None
    return (
        algorithm.divisor
        * algorithm.samples_per_dimension
        / (largest_rate(algorithm) * float(trace(problem.parameters)))
    )


def unstable_share(problem: Problem, algorithm: FixedData, begin: Start) -> np.ndarray | None:
    """For each run of a start the probability that a sample is beyond `stability_limit` there, P(h^2 - h0^2 > limit).

    In a frame where both fields are independent, h^2 - h0^2 = u z1^2 - v z2^2, so it is E_z2 erfc(sqrt((limit + v z2^2)/(2 u))).
    Covers phase retrieval without label noise: one unit of head 1 and one teacher unit, both squared; None for other problems.
    """
    limit = stability_limit(problem, algorithm)
    if limit is None or not isinstance(problem, TeacherStudent):
        return None
    squares = problem.teacher_width == 1 and problem.teacher_activation.coefficients == (
        0.0,
        0.0,
        1.0,
    )
    if (
        not squares
        or is_scheduled(problem.noise)
        or problem.noise > 0
        or problem.teacher_head[0] != 1
        or np.any(begin.a != 1)
    ):
        return None
    q, m, q0 = (
        field_covariance(problem.parameters, part)[..., 0, 0]
        for part in (begin.Q_blocks, begin.M_blocks, problem.gram)
    )
    return np.array(
        [_beyond(*pair, float(q0), limit) for pair in zip(q.tolist(), m.tolist(), strict=True)]
    )


@lru_cache(maxsize=1024)  # many runs start alike
def _beyond(q: float, m: float, q0: float, limit: float) -> float:
    from scipy import integrate  # here: runs with fresh samples do without

    # eigenvalues of diag(1, -1) times the covariance [[q, m], [m, q0]]
    root = np.sqrt(max((q + q0) ** 2 - 4 * m * m, 0.0))
    u, v = (root + q - q0) / 2, (root - q + q0) / 2
    if u <= 0:
        return 0.0

    def density(z: float) -> float:
        return float(special.erfc(np.sqrt((limit + v * z * z) / (2 * u))) * np.exp(-z * z / 2))

    return float(integrate.quad(density, 0, np.inf)[0]) * np.sqrt(2 / np.pi)


def warn_unstable(problem: Problem, algorithm: FixedData, begin: Start, samples: int) -> None:
    """Say how many samples start beyond the limit, where any are expected to."""
    shares = unstable_share(problem, algorithm, begin)
    if shares is None:
        return
    expected = samples * float(shares.sum())
    if expected > MANY_UNSTABLE:
        limit = stability_limit(problem, algorithm)
        warn(
            f"about {expected:.2g} of the {samples} samples of {begin.runs} runs start beyond the stability limit h^2 - h0^2 > {limit:.4g} "
            "of a single sample (batch fraction * samples_per_dimension/lr): their runs may blow up; take a smaller lr or a larger batch"
        )
