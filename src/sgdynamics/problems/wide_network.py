"""`WideNetwork`: infinitely wide networks that learn features on a given data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.equations import HasEquations
from sgdynamics.problems.activations import Activation, student_activation

MOST_LAYERS = 30
MOST_SAMPLES = 100  # with more, a finite network is as good


@dataclass(frozen=True)
class WideNetwork(HasEquations):
    """An infinitely wide network that learns features, on a given data set.

    ::

        h_1 = W_1 x/sqrt(D),   h_{l+1} = W_l s(h_l)/sqrt(N),   f = w.s(h_L)/(gamma0 N)

    The width N is infinite. All weights start as independent standard normal variables, and f at
    the start is subtracted. The loss is the mean of (f - y)^2/2 over the data set.

    Parameters
    ----------
    inputs : array_like (P, D)
        The training inputs, at most 100.
    labels : array_like (P,)
        The labels of the training inputs.
    hidden_layers : int, default 2
        Number L of hidden layers.
    activation : str, Activation or callable, default "tanh"
        The activation s of all hidden layers.
    gamma0 : float, default 1.0
        Richness. Small values are lazy (the kernels do not move), large ones learn features.
    test_inputs : array_like (tests, D), optional
        Further inputs, at which the trained network is evaluated. By default there are none.
    test_labels : array_like (tests,), optional
        The labels of the test inputs, for the test risk.

    Raises
    ------
    ValueError
        If an argument is out of range, or if there are more than 100 training inputs: a finite
        network is then as good.

    Notes
    -----
    A step of gradient descent multiplies the gradient with ``lr gamma0^2 N``, the maximal update
    parametrisation. A step then changes f by order lr at any width and any gamma0. ``solve_dmft``
    solves the limit N -> infinity with sampled neurons in one sweep over the steps. Every neuron
    starts from random weights, so that there is no ``start``. Units and limit are those of Bordelon
    and Pehlevan, 2022.

    Examples
    --------
    >>> inputs, labels = np.eye(4), [1.0, 1.0, -1.0, -1.0]
    >>> problem = sgd.WideNetwork(inputs, labels, hidden_layers=1, gamma0=2.0)
    >>> algorithm = sgd.GradientDescent(lr=0.5)
    >>> result = sgd.solve_dmft(problem, algorithm, steps=[0, 5], paths=1024, progress=False)
    >>> result["outputs"].dims, float(result["train_risk"][0, 0])
    (('run', 'time', 'sample'), 0.5)
    """

    inputs: Any
    labels: Any
    hidden_layers: int = 2
    activation: Any = "tanh"
    gamma0: float = 1.0
    test_inputs: Any = None
    test_labels: Any = None
    kind: ClassVar[str] = "WideNetwork"

    def __post_init__(self) -> None:
        inputs = _matrix("inputs", self.inputs)
        if len(inputs) > MOST_SAMPLES:
            fix = (
                f"at most {MOST_SAMPLES} training inputs are supported, because the cost grows "
                "with their number, and a network of a few thousand neurons is as good with more. "
                "Train a finite network, or use fewer inputs."
            )
            raise checks.reject("inputs", inputs.shape, fix)
        if not np.any(inputs):
            raise checks.reject("inputs", inputs.shape, "all inputs are 0. Use other inputs.")
        values: dict[str, Any] = {
            "inputs": _as_tuples(inputs),
            "labels": _labels("labels", self.labels, len(inputs)),
            "hidden_layers": checks.integer("hidden_layers", self.hidden_layers, 1, MOST_LAYERS),
            "activation": student_activation(self.activation),
            "gamma0": checks.number("gamma0", self.gamma0, above=0.0),
        }
        if self.test_inputs is not None:
            tests = _matrix("test_inputs", self.test_inputs)
            if tests.shape[1] != inputs.shape[1]:
                fix = f"the training inputs have {inputs.shape[1]} components. Use as many."
                raise checks.reject("test_inputs", tests.shape, fix)
            values["test_inputs"] = _as_tuples(tests)
            if self.test_labels is not None:
                values["test_labels"] = _labels("test_labels", self.test_labels, len(tests))
        elif self.test_labels is not None:
            fix = "these are the labels of test_inputs. Set both, or omit test_labels."
            raise checks.reject("test_labels", self.test_labels, fix)
        # Plain immutable values, so that problems compare equal.
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this problem in the table of supported combinations."""
        return ("wide network",)

    @property
    def samples(self) -> int:
        """Number P of training inputs."""
        return len(self.inputs)

    @property
    def test_samples(self) -> int:
        """Number of test inputs."""
        return 0 if self.test_inputs is None else len(self.test_inputs)

    @property
    def input_dimension(self) -> int:
        """Number D of components of an input."""
        return len(self.inputs[0])

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        return {"gamma0": pytrees.to_float64(self.gamma0), "labels": np.asarray(self.labels)}

    def all_inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs as arrays.

        Returns
        -------
        inputs : ndarray
            The training inputs, (P, D).
        test_inputs : ndarray
            The test inputs, (tests, D).
        """
        shape = (self.test_samples, self.input_dimension)
        tests = np.zeros(shape) if self.test_inputs is None else np.asarray(self.test_inputs)
        return np.asarray(self.inputs), tests

    def replace(self, **changes: object) -> WideNetwork:
        """Return a problem with some of the arguments changed, checked as in the constructor.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        WideNetwork
            A new problem; this one does not change.
        """
        return checks.replace_fields(self, changes)

    def describe(self) -> dict[str, Any]:
        """Return the problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments; "rerunnable" is False for a user's activation.
        """
        activation: Activation = self.activation
        described = activation.describe()
        record = {
            "kind": self.kind,
            "inputs": [list(row) for row in self.inputs],
            "labels": list(self.labels),
            "hidden_layers": self.hidden_layers,
            "activation": described,
            "gamma0": self.gamma0,
        }
        if self.test_inputs is not None:
            record["test_inputs"] = [list(row) for row in self.test_inputs]
        if self.test_labels is not None:
            record["test_labels"] = list(self.test_labels)
        if isinstance(described, dict) and not described.get("rerunnable", True):
            record["rerunnable"] = False
        return record


def _matrix(name: str, stated: object) -> np.ndarray:
    """A finite matrix with at least one row and one column."""
    fix = "give a matrix of numbers with one row per sample."
    values = checks.real_array(name, stated, fix)
    if values.ndim != 2 or 0 in values.shape:
        raise checks.reject(name, values.shape, fix)
    if not np.all(np.isfinite(values)):
        raise checks.reject(name, stated, "all numbers must be finite. Remove other samples.")
    return np.asarray(values, np.float64)


def _as_tuples(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


def _labels(name: str, stated: object, count: int) -> tuple[float, ...]:
    """One finite number per sample."""
    values = checks.real_array(name, stated, "give one number per sample.")
    if values.shape != (count,):
        fix = f"there are {count} inputs. Give one label for each."
        raise checks.reject(name, values.shape, fix)
    if not np.all(np.isfinite(values)):
        raise checks.reject(name, stated, "all labels must be finite. Remove other samples.")
    return tuple(np.asarray(values, np.float64).tolist())
