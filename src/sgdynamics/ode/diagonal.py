"""One-pass SGD of diagonal networks for d -> infinity: the law of one variable per teacher weight.

With c = |u^2 - v^2| and u v = a = (c/2) sinh(theta), all coordinates of a covariance block with the
eigenvalue l share one c, and those with the teacher weight b have independent theta. With r =
lr/batch and the mean squared residual R, per unit of t (2605.17177; blocks and decay added here)::

    d theta = -2 l (a - b) dt + 2 sqrt(r l R) dB,     d ln c = -(r l R + 2 al) dt
    R = noise + sum_b f_b l_b E[(a - b)^2]

The law of theta is carried by a monotone map from a standard normal z, theta = T(z, t). A flow with
the velocity of the probability current moves it::

    dT/dt = -2 l (a(T) - b) + 2 r l R (z/T_z + T_zz/T_z^2)

because the density is phi(z)/T_z. The potential of theta is convex, so that the law stays
log-concave and T smooth, and a law that becomes narrow as R -> 0 stays resolved: a Gaussian law is
a straight line. T is stored on a grid of z, and z derivatives are differences of fourth order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgdynamics.base.arrays import Parameters
from sgdynamics.samples import input_covariance

NODES, COARSE_NODES = 41, 25  # of the grid of z
LARGEST_NORMAL = 5.5  # end of the grid; the probability beyond is 4e-8
NARROW = 1e-6  # initial slope of the map, in units of the scale of theta
BLOW_UP = 1e9  # R over its initial value beyond which a solution has diverged

RateOfTime = Callable[[float], float]


@dataclass(frozen=True)
class LawSolution:
    """Means over the law at the save points, with a leading axis of times; NaN after `last`.

    Attributes
    ----------
    values : dict of ndarray
        The variables of the result.
    last : int
        Index of the last finite save point.
    evaluations : int
        Number of evaluations of the right-hand side.
    """

    values: dict[str, np.ndarray]
    last: int
    evaluations: int


class TransportedLaw:
    """The right-hand side of the equations on a grid.

    Parameters
    ----------
    parameters : dict
        Parameters of the problem.
    nodes : int
        Number of grid points of z.
    rate : callable
        r = lr/batch as a function of the integration variable.
    speed : callable
        dt over the integration variable: 1, or r where that is samples/d.
    """

    def __init__(
        self, parameters: Parameters, nodes: int, rate: RateOfTime, speed: RateOfTime
    ) -> None:
        self.z = np.linspace(-LARGEST_NORMAL, LARGEST_NORMAL, nodes)
        self.step = self.z[1] - self.z[0]
        weights = np.exp(-(self.z**2) / 2)
        self.weights = weights / weights.sum()
        self.rate, self.speed = rate, speed
        # The coordinates of a state: nodes, blocks, teacher weights.
        self.teacher = parameters["teacher"]
        self.shares = parameters["shares"]
        self.eigenvalues = input_covariance.eigenvalues(parameters)
        self.fractions = input_covariance.fractions(parameters)
        self.noise, self.decay = float(parameters["noise"]), float(parameters["weight_decay"])
        self.start = parameters["start"]
        self.shape = (nodes, len(self.eigenvalues), len(self.teacher))

    def initial(self) -> np.ndarray:
        """The state at time 0: theta, then ln c of each block."""
        u, v = self.start
        log_c = np.log(abs(u - v)) + np.log(abs(u + v))
        theta = np.arcsinh(2 * u * v / np.exp(log_c))
        grid = theta + self.theta_scale * NARROW * self.z
        values = np.broadcast_to(grid[:, None, None], self.shape)
        return np.concatenate([values.reshape(-1), np.full(self.shape[1], log_c)])

    @property
    def theta_scale(self) -> float:
        """A scale of theta: predictors of order 1 have theta of order 2/c for large c."""
        u, v = self.start
        return min(1.0, 2 / abs(u * u - v * v))

    def weights_of(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """theta, the predictor weights a on the grid, and ln c."""
        theta = state[: -self.shape[1]].reshape(self.shape)
        log_c = state[-self.shape[1] :]
        # c may be too small for a float while a is of order 1.
        magnitude = np.abs(theta)
        growing = np.exp(np.minimum(log_c[:, None] + magnitude, 600.0)) / 4
        return theta, np.sign(theta) * growing * -np.expm1(-2 * magnitude), log_c

    def squared_error(self, a: np.ndarray) -> float:
        """E[(a - b)^2] weighted by the eigenvalues."""
        errors = np.tensordot(self.weights, (a - self.teacher) ** 2, 1) @ self.shares
        return float((self.fractions * self.eigenvalues) @ errors)

    def __call__(self, time: float, state: np.ndarray) -> np.ndarray:
        theta, a, _ = self.weights_of(state)
        first, second = self._derivatives(theta)
        rate, speed = self.rate(time), self.speed(time)
        diffusion = rate * (self.noise + self.squared_error(a)) * self.eigenvalues
        score = self.z[:, None, None] / first + second / first**2
        drift = -2 * self.eigenvalues[:, None] * (a - self.teacher)
        velocity = drift + 2 * diffusion[:, None] * score
        of_log_c = -(diffusion + 2 * self.decay)
        return speed * np.concatenate([velocity.reshape(-1), of_log_c])

    def _derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """T_z and T_zz; two points beyond each end continue the map as a parabola."""
        low = [3 * theta[0] - 3 * theta[1] + theta[2], 6 * theta[0] - 8 * theta[1] + 3 * theta[2]]
        high = [
            3 * theta[-1] - 3 * theta[-2] + theta[-3],
            6 * theta[-1] - 8 * theta[-2] + 3 * theta[-3],
        ]
        padded = np.concatenate([[low[1], low[0]], theta, high])
        far, near = padded[4:] - padded[:-4], padded[3:-1] - padded[1:-3]
        first = (8 * near - far) / (12 * self.step)
        sums = 16 * (padded[3:-1] + padded[1:-3]) - (padded[4:] + padded[:-4])
        return first, (sums - 30 * theta) / (12 * self.step**2)

    def means(self, state: np.ndarray) -> dict[str, np.ndarray]:
        """The variables of a result."""
        _, a, log_c = self.weights_of(state)
        by_weight = "z,b,zbk->k"
        mean = np.einsum(by_weight, self.weights, self.fractions, a)
        square = np.einsum(by_weight, self.weights, self.fractions, a**2)
        size = np.einsum(by_weight, self.weights, self.fractions, np.abs(a))
        values = {
            "excess_risk": np.array(0.5 * self.squared_error(a)),
            "overlap": self.shares @ (self.teacher * mean),
            "squared_norm": self.shares @ square,
            "l1_norm": self.shares @ size,
            "imbalance": self.fractions @ np.exp(log_c),
            "weight_mean": mean,
            "weight_square": square,
        }
        return {name: np.asarray(value) for name, value in values.items()}


def solve_law(law: TransportedLaw, times: np.ndarray, accuracy: float) -> LawSolution:
    """Integrate the law to the save points, in the variable of its rates."""
    from scipy.integrate import solve_ivp  # here: it is slow to import, and networks do without

    state, per_row = law.initial(), law.shape[1] * law.shape[2]
    limit = BLOW_UP * max(1.0, law.noise + law.squared_error(law.weights_of(state)[1]))

    def blows_up(_time: float, state: np.ndarray) -> float:
        error = law.squared_error(law.weights_of(state)[1])
        return limit - error if np.isfinite(error) else -1.0

    blows_up.terminal = True  # type: ignore[attr-defined]
    means = [law.means(state)] if times[0] == 0 else []
    remaining = times[times > 0]
    evaluations = 0
    if len(remaining):
        # Nodes two rows apart are coupled. The coupling of all by R and c is not stiff, so that the
        # Newton iteration does without its derivatives.
        band = 2 * per_row
        with np.errstate(all="ignore"):
            solution = solve_ivp(
                law,
                (0.0, float(remaining[-1])),
                state,
                method="LSODA",
                t_eval=remaining,
                events=blows_up,
                rtol=max(accuracy, 1e-12),
                atol=max(accuracy, 1e-12) * law.theta_scale,
                lband=band,
                uband=band,
            )
        evaluations = int(solution.nfev)
        # Without a single save point `solution.y` is an empty list.
        columns = np.asarray(solution.y).T if len(solution.t) else []
        means += [law.means(column) for column in columns]
    last = len(means) - 1
    missing = {name: np.full_like(value, np.nan) for name, value in law.means(state).items()}
    means += [missing] * (len(times) - len(means))
    values = {name: np.stack([entry[name] for entry in means]) for name in missing}
    return LawSolution(values, max(last, 0), evaluations)
