"""Stability of single samples of a fixed data set, and a warning about unstable ones."""

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

# Expected number of unstable samples, in all data sets of a call, above which a warning is given
UNSTABLE_SAMPLES = 0.5
SQUARE = (0.0, 0.0, 1.0)  # coefficients of the activation x^2


def stability_limit(problem: Problem, algorithm: FixedData) -> float | None:
    """The largest residual a (f - y) at which the gradient of a sample does not destabilise it.

    The gradient of a sample moves its own field by

        -(lr |x|^2/(b n)) dloss/dlambda = -(2 lr tr/(b alpha)) a (a lambda^2 - y) lambda,

    with the batch fraction b (1 if the gradient is not rescaled by it), alpha = n/d and tr =
    |x|^2/d. This changes the sign of the field and enlarges it, further with every step, if

        a (a lambda^2 - y) > b alpha/(lr tr).

    The limit covers one unit f = a lambda^2 with the squared loss and any teacher, constraint and
    covariance, and neglects the gradients of other samples; None for other problems. In the units
    of Mignacco, Urbani, Zdeborova (2021), eta = 2 lr/alpha and v = (h^2 - h0^2)^2/4, it reads h^2
    - h0^2 > 2 b/eta. At fixed lr and d -> infinity some sample exceeds any limit: the limit d ->
    infinity is only metastable.
    """
    is_covered = (
        isinstance(problem, TeacherStudent)
        and problem.width == 1
        and problem.head == "fixed"
        and problem.loss is squared
        and problem.activation.coefficients == SQUARE
    )
    if not is_covered:
        return None
    # b alpha, with the batch fraction if the gradient is rescaled by it
    samples_per_rate = algorithm.divisor * algorithm.samples_per_dimension
    return samples_per_rate / (largest_rate(algorithm) * float(trace(problem.parameters)))


def unstable_share(problem: Problem, algorithm: FixedData, start: Start) -> np.ndarray | None:
    """For each run, the probability P(h^2 - h0^2 > limit) that a sample is unstable at the start.

    In a frame in which both fields are independent, h^2 - h0^2 = u z1^2 - v z2^2, so that the
    probability is E_z2 erfc(sqrt((limit + v z2^2)/(2 u))). This covers phase retrieval without
    label noise: one unit of head 1 and one teacher unit, both with the activation x^2; None for
    other problems.
    """
    limit = stability_limit(problem, algorithm)
    if limit is None or not isinstance(problem, TeacherStudent):
        return None
    is_phase_retrieval = (
        problem.teacher_width == 1 and problem.teacher_activation.coefficients == SQUARE
    )
    has_noise = is_scheduled(problem.noise) or problem.noise > 0
    # The formula for the distribution of h^2 - h0^2 needs both heads to be 1.
    has_other_heads = problem.teacher_head[0] != 1 or np.any(start.a != 1)
    if not is_phase_retrieval or has_noise or has_other_heads:
        return None
    q, m, q0 = (
        field_covariance(problem.parameters, overlaps)[..., 0, 0]
        for overlaps in (start.Q_blocks, start.M_blocks, problem.gram)
    )
    return np.array(
        [_probability(*pair, float(q0), limit) for pair in zip(q.tolist(), m.tolist(), strict=True)]
    )


@lru_cache(maxsize=1024)  # many runs have the same start
def _probability(q: float, m: float, q0: float, limit: float) -> float:
    """P(h^2 - h0^2 > limit) for fields of covariance [[q, m], [m, q0]]."""
    from scipy import integrate  # imported here: runs with fresh samples do not need it

    # u and -v are the eigenvalues of diag(1, -1) times the covariance.
    root = np.sqrt(max((q + q0) ** 2 - 4 * m * m, 0.0))
    u, v = (root + q - q0) / 2, (root - q + q0) / 2
    if u <= 0:
        return 0.0

    def integrand(z: float) -> float:
        return float(special.erfc(np.sqrt((limit + v * z * z) / (2 * u))) * np.exp(-z * z / 2))

    return float(integrate.quad(integrand, 0, np.inf)[0]) * np.sqrt(2 / np.pi)


def warn_unstable(problem: Problem, algorithm: FixedData, start: Start, samples: int) -> None:
    """Warn about samples that are expected to start beyond the stability limit."""
    shares = unstable_share(problem, algorithm, start)
    if shares is None:
        return
    expected = samples * float(shares.sum())
    if expected > UNSTABLE_SAMPLES:
        limit = stability_limit(problem, algorithm)
        warn(
            f"About {expected:.2g} of the {samples} samples of {start.runs} runs start beyond the "
            f"stability limit h^2 - h0^2 > {limit:.4g} of a single sample (batch fraction * "
            "samples_per_dimension/lr), and their runs may diverge. Use a smaller lr or a larger "
            "batch."
        )
