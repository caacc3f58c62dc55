"""`ClosedForms`: the closed Gaussian expectations of a family of activations, and their registry.

Notation of all families: u and v are centred Gaussian with variances q1, q2 and covariance c, and

    K = E[f(u) g(v)],   A = E[f''(u) g(v)],   B = E[f'(u) g'(v)].

By Price's theorem (IRE Trans. Inf. Theory 4 (1958) 69), A = 2 dK/dq1 and B = dK/dc.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.problems.activations import Activation

Matrix = Float[Numeric, "m n"]  # one entry for each pair (q1[i], q2[j], c[i, j])
PairMoments = tuple[Matrix, Matrix, Matrix]  # K, A, B
ConditionalMeans = tuple[Matrix, Matrix, Matrix]  # E[s], E[s'], E[s'']

# (Omega, c, p) -> N_ij = E[s'(lambda_i) s'(lambda_j) (sum_b c_b g_b(lambda_b))^2]
NoiseTerm = Callable[
    [Float[Numeric, "fields fields"], Float[Numeric, " fields"], int], Float[Numeric, "p p"]
]

# Derivatives (i, j) of f and g that multiply I, w w^T, w v^T + v w^T and v v^T in E[f'' g x x^T]
# (first row) and in E[f' g' x x^T] (second row), u = w.x and v = v.x: see `expectations.curvature`.
HESSIAN_ORDERS = (((2, 0), (4, 0), (3, 1), (2, 2)), ((1, 1), (3, 1), (2, 2), (1, 3)))


class ClosedForms(ABC):
    """Closed expectations of a family of activations, for all pairs of its members.

    To add an activation with closed forms, write one file in `expectations/closed_forms` that
    subclasses this and calls `register`. Only `covers` and `pair_moments` are required: what a
    family does not have is computed by series, quadrature or sampling.
    """

    # whether `expectations.mixtures` and `expectations.indicators` integrate networks of this
    # activation on Gaussian clusters
    has_logistic_moments = False
    # largest width of a network whose closed noise costs less than an average over samples
    widest_noise: float = float("inf")

    @abstractmethod
    def covers(self, activation: Activation) -> bool:
        """Whether an activation belongs to the family."""

    @abstractmethod
    def pair_moments(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> PairMoments:
        """K, A and B of all pairs. `first` is a student activation and therefore continuous."""

    def pair_value(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> Matrix:
        """K of all pairs; both may be teachers, which may jump."""
        return self.pair_moments(first, second, q1, q2, c)[0]

    def derivative_table(
        self,
        first: Activation,
        second: Activation,
        q1: Float[Numeric, " m"],
        q2: Float[Numeric, " n"],
        c: Matrix,
    ) -> Float[Numeric, "2 4 m n"] | None:
        """E[f^(i)(u) g^(j)(v)] for the orders (i, j) of `HESSIAN_ORDERS`."""
        return None

    def noise_term(self, student: Activation, teacher: Activation) -> NoiseTerm | None:
        """The gradient noise N(Omega, c, p), a sum of expectations of four fields."""
        return None

    def conditional_means(
        self, activation: Activation, mean: Matrix, scale: Matrix
    ) -> ConditionalMeans | None:
        """E[s], E[s'], E[s''] of mean + scale xi, with the point masses of s''."""
        return None


_FAMILIES: list[ClosedForms] = []


def register(family: ClosedForms) -> None:
    """Add a family; families must not share an activation."""
    _FAMILIES.append(family)


def closed_forms_of(activation: Activation) -> ClosedForms | None:
    """The family of an activation, or None if it has no closed forms."""
    return next((family for family in _FAMILIES if family.covers(activation)), None)


def shared_closed_forms(first: Activation, second: Activation) -> ClosedForms | None:
    """The family that contains both activations, or None."""
    family = closed_forms_of(first)
    return family if family is not None and family.covers(second) else None


def has_logistic_moments(activation: Activation) -> bool:
    """Whether networks of this activation are integrated on Gaussian clusters."""
    family = closed_forms_of(activation)
    return family is not None and family.has_logistic_moments


def closed_noise_term(student: Activation, teacher: Activation, width: int = 1) -> NoiseTerm | None:
    """The closed gradient noise of a network of this width, or None where it must be sampled."""
    family = shared_closed_forms(student, teacher)
    if family is None or width > family.widest_noise:
        return None
    return family.noise_term(student, teacher)
