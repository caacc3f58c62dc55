"""`DeepLinear`: deep linear networks of proportional width, trained on a linear teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Parameters
from sgdynamics.base.equations import HasEquations
from sgdynamics.samples import input_covariance
from sgdynamics.samples.arguments import Covariance, validate_covariance
from sgdynamics.samples.spectra import Spectrum

MOST_LAYERS = 100
PARAMETRISATIONS = ("mup", "ntk", "standard")


@dataclass(frozen=True)
class DeepLinear(HasEquations):
    """A deep linear network whose width is proportional to the dimension.

    ::

        f(x) = w.W_{L-1} ... W_1 x/g,     y = w*.x + sqrt(noise) z,     loss = (f - y)^2/2

    The inputs are Gaussian, W_1 is N x d, all other layers are N x N and w has N entries.

    Parameters
    ----------
    depth : int, default 3
        Number L of layers, 2 or more.
    width_per_dimension : float, default 1.0
        Width N of the hidden layers over the dimension d.
    gamma0 : float, default 1.0
        Richness: the output is divided by a gain g proportional to it. Small values are lazy
        (the predictor moves and the layers do not), large ones learn features.
    parametrisation : str, default "mup"
        Dependence of the gain and of the learning rates on the width (see Notes): "mup", "ntk" or
        "standard".
    start_scale : float, default 1.0
        Scale s of the initial weights: the entries of W_1 have the variance s^2/d, all others
        s^2/N.
    noise : float, default 0.0
        Variance of the label noise.
    weight_decay : float, default 0.0
        Coefficient al of (al/2) times the sum of all squared weights, which is added to the loss.
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, or ``sgd.Spectrum``,
        ``sgd.power_law``, which fix d. Defaults to the identity.
    teacher : array_like (blocks,), optional
        Norm of the teacher w* in each covariance block. Defaults to the target of a spectrum, or to
        a unit vector that is spread over the blocks as a random direction.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    With nu = N/d, the gains and the rates of the layers, relative to that of the algorithm, are

    ============ ================= ========= ====================
    name         gain g            of W_1    of all other layers
    ============ ================= ========= ====================
    "mup"        gamma0 sqrt(nu)   g^2       g^2 d/N
    "ntk"        gamma0            g^2       g^2 d/N
    "standard"   gamma0            g^2       g^2
    ============ ================= ========= ====================

    A step moves a layer, relative to its start, by lr gamma0 in "mup" and by lr gamma0/sqrt(nu) in
    "ntk", whose wide networks are lazy. Every run starts from random weights, so that solvers take
    no ``start``. The maximal update parametrisation is that of Yang and Hu, 2021; gamma0 is that
    of Bordelon and Pehlevan, 2022.

    Examples
    --------
    >>> problem = sgd.DeepLinear(depth=3, width_per_dimension=2.0, noise=0.25)
    >>> algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    >>> limit = sgd.solve_dmft(problem, algorithm, steps=[0, 10], progress=False)
    >>> limit["excess_risk"].shape
    (1, 2)
    """

    depth: int = 3
    width_per_dimension: float = 1.0
    gamma0: float = 1.0
    parametrisation: str = "mup"
    start_scale: float = 1.0
    noise: float = 0.0
    weight_decay: float = 0.0
    covariance: Any = None
    teacher: Any = None
    kind: ClassVar[str] = "DeepLinear"

    def __post_init__(self) -> None:
        depth = checks.integer("depth", self.depth, 2, MOST_LAYERS)
        object.__setattr__(self, "depth", depth)
        checks.choice("parametrisation", self.parametrisation, PARAMETRISATIONS)
        for name in ("width_per_dimension", "gamma0", "start_scale"):
            object.__setattr__(self, name, checks.number(name, getattr(self, name), above=0.0))
        for name in ("noise", "weight_decay"):
            object.__setattr__(self, name, checks.number(name, getattr(self, name), 0.0))
        covariance = validate_covariance(self.covariance)
        object.__setattr__(self, "_covariance", covariance)
        if covariance.spectrum is not None and covariance.spectrum.infinite:
            fix = "the width is proportional to the dimension. Use a spectrum of finite dimension."
            raise checks.reject("covariance", self.covariance, fix)
        norms = _teacher_norms(self.teacher, covariance)
        object.__setattr__(self, "_norms", norms)
        # Plain immutable values, so that problems compare equal.
        if covariance.spectrum is not None:
            object.__setattr__(self, "covariance", covariance.spectrum)
        elif self.covariance is not None:
            columns = (covariance.eigenvalues.tolist(), covariance.fractions.tolist())
            object.__setattr__(self, "covariance", tuple(zip(*columns, strict=True)))
        if self.teacher is not None:
            object.__setattr__(self, "teacher", tuple(norms.tolist()))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this problem in the table of supported combinations."""
        return ("deep linear",)

    @property
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the inputs, if the covariance is one: it fixes the dimension."""
        return self._covariance.spectrum  # type: ignore[attr-defined]

    @property
    def fractions(self) -> np.ndarray:
        """Shares of the coordinates in the covariance blocks."""
        covariance: Covariance = self._covariance  # type: ignore[attr-defined]
        return np.asarray(covariance.fractions, np.float64)

    @property
    def blocks(self) -> int:
        """Number of covariance blocks."""
        return len(input_covariance.eigenvalues(self.parameters))

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        names = ("width_per_dimension", "gamma0", "start_scale", "noise", "weight_decay")
        scalars = {name: pytrees.to_float64(getattr(self, name)) for name in names}
        covariance: Covariance = self._covariance  # type: ignore[attr-defined]
        return scalars | {
            "eigenvalues": np.asarray(covariance.eigenvalues, np.float64),
            "fractions": self.fractions,
            "teacher": self._norms,  # type: ignore[attr-defined]
        }

    def replace(self, **changes: object) -> DeepLinear:
        """Return a problem with some of the arguments changed, checked as in the constructor.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        DeepLinear
            A new problem; this one does not change.
        """
        return checks.replace_fields(self, changes)

    def block_dimensions(self, dimension: int) -> np.ndarray:
        """Return the sizes of the covariance blocks at dimension d, by largest remainder.

        Parameters
        ----------
        dimension : int
            The dimension d.

        Returns
        -------
        ndarray
            One integer per block; they add up to d.
        """
        if self.spectrum is not None:
            return self.spectrum.multiplicities
        return input_covariance.block_sizes(self.fractions, dimension)

    def gain_and_rates(self, width_per_dimension: float) -> tuple[float, np.ndarray]:
        """Return the gain g and the relative rates of the layers at a ratio N/d.

        Parameters
        ----------
        width_per_dimension : float
            The ratio N/d, which at finite d differs from that of the problem by rounding.

        Returns
        -------
        gain : float
            The divisor g of the output.
        rates : ndarray
            The rate of each layer, from W_1 to w, over lr g^2.
        """
        nu = width_per_dimension
        gain = self.gamma0 * np.sqrt(nu) if self.parametrisation == "mup" else self.gamma0
        later = 1.0 if self.parametrisation == "standard" else 1.0 / nu
        return float(gain), np.array([1.0] + [later] * (self.depth - 1))

    def describe(self) -> dict[str, Any]:
        """Return the problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments.
        """
        covariance: Any = self.covariance
        if self.spectrum is not None:
            covariance = self.spectrum.describe()
        elif covariance is not None:
            covariance = [list(pair) for pair in covariance]
        teacher = None if self.teacher is None else list(self.teacher)
        return {
            "kind": self.kind,
            "depth": self.depth,
            "width_per_dimension": self.width_per_dimension,
            "gamma0": self.gamma0,
            "parametrisation": self.parametrisation,
            "start_scale": self.start_scale,
            "noise": self.noise,
            "weight_decay": self.weight_decay,
            "covariance": covariance,
            "teacher": teacher,
        }


def _teacher_norms(
    stated: ArrayArgument | Sequence[float] | None, covariance: Covariance
) -> np.ndarray:
    """The norm of the teacher in each block of the covariance."""
    blocks = len(covariance.eigenvalues)
    if stated is None:
        spectrum = covariance.spectrum
        if spectrum is None or spectrum.target is None:
            return np.sqrt(np.asarray(covariance.fractions, np.float64))
        if spectrum.target.shape[1] != 1:
            fix = "a deep linear network has one output. Use a spectrum with one target."
            raise checks.reject("covariance", spectrum, fix)
        return np.sqrt(spectrum.target[:, 0, 0])
    norms = checks.array("teacher", stated, (blocks,), "one norm per covariance block")
    if np.any(norms < 0):
        raise checks.reject("teacher", stated, "norms are not negative. Use numbers of 0 or more.")
    return norms
