"""`OptimalProtocol`, the answer of `optimal_protocol`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.analysis.protocols.confirm import Confirmation, measure_gain
from sgdynamics.analysis.protocols.request import ProtocolRequest
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.problems.problem import Problem

# A control is drawn as being at a bound if it is nearer to it than this share of its range.
BOUND_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class OptimalProtocol:
    """The optimal protocol that ``sgd.optimal_protocol`` returns.

    The value of a control for alpha in [edges[i], edges[i + 1]) is ``protocol[name][i]``.

    Attributes
    ----------
    value : float
        Objective with the protocol: the final (excess) risk, its integral, or a function of the
        final state, plus the cost.
    extrapolated : float
        Value for infinitely many pieces, extrapolated from ``value`` and ``value_of_half``, whose
        errors are proportional to 1/pieces^2. NaN for a single piece.
    value_of_half : float
        Objective of the best protocol with half as many pieces.
    constant : dict
        Best constant of each control by name, and their objective under the key "risk".
    gains : dict
        Factor by which each control alone reduces the objective, with the other controls at their
        best constants.
    protocol : dict of ndarray
        Values of each control by name, one per piece.
    edges : ndarray
        Edges of the pieces in alpha, from 0 to the end.
    residual : float
        Deviation from Pontryagin's condition; see the notes.
    at_bounds : dict of ndarray
        Indices of the pieces at a bound, by name of the control.
    bounds : dict
        Bounds that were used, by name of the control.
    problem : Problem
        The problem with the protocol in it, for ``solve_ode`` and ``simulate``.
    algorithm : OnePassSGD
        The algorithm with the protocol in it.
    risks : ndarray
        (Excess) risk at each edge.
    constant_risks : ndarray
        (Excess) risk at each edge with the best constants.
    history : ndarray
        Objective after each iteration, starting from the best constants.
    converged : bool
        Whether the search ended before its limit of iterations.
    error_integrator : float
        Relative error of the objective, estimated by halving the number of Runge-Kutta steps.
    error_quadrature : float
        Relative error of the expectations: the larger of the estimated error of the risk at the
        start and at the end, and, where expectations are sampled, the standard error of the
        objective over their replicates.
    request : ProtocolRequest
        The problem, the algorithm and the objective as they were passed.

    Notes
    -----
    With the Hamiltonian H, dJ/du_i is the integral of dH/du over piece i. ``residual`` is the
    largest ``|pieces dlog J/dz_i|``. Here z = log u for a control that is searched in logarithms
    (its lowest value is above 0), and otherwise z = (u - lowest)/(highest - lowest). Pieces at a
    bound do not count if descent would leave the bound. For a control with a budget the Lagrange
    multiplier is subtracted, the mean over the pieces between the bounds. The residual is the
    relative decrease of J, to first order, if a control were changed by a factor e, or by its
    range, at all times.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> arguments = {"alpha": 5.0, "controls": {"lr": (0, 2)}, "pieces": 4, "progress": False}
    >>> best = sgd.optimal_protocol(problem, sgd.OnePassSGD(), start, **arguments)
    >>> best.protocol["lr"].shape, best.gain > 1
    ((4,), True)
    """

    value: float
    extrapolated: float
    value_of_half: float
    constant: dict[str, float]
    gains: dict[str, float]
    protocol: dict[str, np.ndarray]
    edges: np.ndarray
    residual: float
    at_bounds: dict[str, np.ndarray]
    bounds: dict[str, tuple[float, float]]
    problem: Problem | Dynamics
    algorithm: OnePassSGD
    risks: np.ndarray
    constant_risks: np.ndarray
    history: np.ndarray
    converged: bool
    error_integrator: float
    error_quadrature: float
    request: ProtocolRequest

    @property
    def gain(self) -> float:
        """Ratio of the objective with the best constants to that with the protocol."""
        return self.constant["risk"] / self.value

    @property
    def alpha(self) -> float:
        """The end in alpha = samples/d."""
        return float(self.edges[-1])

    @property
    def switches(self) -> dict[str, np.ndarray]:
        """Values of alpha at which each control leaves or reaches a bound.

        A single piece between opposite bounds is a switch inside of the piece, at the alpha that
        has the same mean.
        """
        return {
            name: find_switches(values, self.bounds[name], self.edges)
            for name, values in self.protocol.items()
        }

    def confirm(
        self,
        *,
        dimension: int | None = None,
        runs: int = 100,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Confirmation:
        """Measure the gain of SGD at dimension d, in simulations with ``sgd.simulate``.

        The runs with the protocol and those with the best constants have the same random numbers.

        Parameters
        ----------
        dimension : int, optional
            Dimension d; defaults to that of the covariance if it is a ``sgd.Spectrum``.
        runs : int, default 100
            Number of runs with each, a multiple of the number of runs of the start.
        seed : int, default 0
            Seed of the random number generator.
        progress : bool, optional
            Whether to show a progress bar. By default only on a terminal.

        Returns
        -------
        Confirmation
            ``gain``, ``value`` and ``constant``, means over runs, and their standard errors
            ``gain_error``, ``value_error`` and ``constant_error``.
        """
        constants = {
            name: np.full(len(values), self.constant[name])
            for name, values in self.protocol.items()
        }
        return measure_gain(
            self.request, self.edges, self.protocol, constants, dimension, runs, seed, progress
        )

    def __repr__(self) -> str:
        curves = ", ".join(
            f"{name} from {values[0]:.4g} to {values[-1]:.4g}"
            for name, values in self.protocol.items()
        )
        constants = ", ".join(
            f"{name} = {value:.4g}" for name, value in self.constant.items() if name != "risk"
        )
        return (
            f"OptimalProtocol({self.value:.5g} at alpha = {self.alpha:g}, {self.gain:.4g} times "
            f"below the best constants, {constants}; {len(self.edges) - 1} pieces, {curves})"
        )


def find_switches(values: np.ndarray, bounds: tuple[float, float], edges: np.ndarray) -> np.ndarray:
    """The values of alpha at which a control leaves or reaches a bound."""
    low, high = bounds
    tolerance = BOUND_TOLERANCE * (high - low)
    sides = np.where(values <= low + tolerance, -1, np.where(values >= high - tolerance, 1, 0))
    # first pieces of the stretches of equal sides
    firsts = np.flatnonzero(np.diff(sides, prepend=sides[0] + 9))
    switches = []
    for stretch, piece in enumerate(firsts[1:], 1):
        before, after = sides[piece - 1], sides[piece]
        next_first = firsts[stretch + 1] if stretch + 1 < len(firsts) else len(sides)
        is_single = after == 0 and next_first == piece + 1 < len(sides)
        if is_single and sides[next_first] == -before:
            # The piece contains a switch between opposite bounds: its value is their average.
            share = (values[piece] - low) / (high - low)
            position = share if before == 1 else 1 - share
            switches.append(edges[piece] + position * (edges[piece + 1] - edges[piece]))
        elif not (before == 0 and switches and edges[piece - 1] < switches[-1] < edges[piece]):
            # The end of a piece with a switch inside is not a switch itself.
            switches.append(edges[piece])
    return np.array(switches)
