"""`Dynamics`: the class that users subclass to define a dynamics of their own.

The solvers never call it directly: `dynamics.user.UserDynamics` wraps it by composition, so that
a subclass may use any attribute names besides those defined here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import numpy as np

from sgdynamics.base.arrays import RandomKey
from sgdynamics.base.controls import describe_schedule, is_scheduled
from sgdynamics.base.equations import HasEquations
from sgdynamics.base.user_functions import function_identity


class Dynamics(HasEquations):
    """A user-defined dynamics: named arrays, their mean step, one step at finite d, a risk.

    Subclass it and pass an instance as the problem. Define the methods that the solvers you call
    need: ``rate`` for ``solve_ode``, ``step`` for ``simulate``, ``rate`` and ``noise`` for
    ``solve_sde``, ``risk`` for a risk in the results.

    Attributes
    ----------
    variables : dict
        name -> (meaning, names of its axes), such as ``{"m": ("overlap", ())}``. A state is a
        dictionary of these arrays.
    parameters : dict
        Numerical parameters, as an attribute or a property. JAX traces them, so that changing one
        compiles nothing; shapes and functions belong in other attributes.

    Notes
    -----
    The argument ``values`` of all methods is a dictionary of JAX values: "problem" (the
    parameters), "algorithm" (lr, head_rate), "batch", "dimension" (d, infinite in the limit) and
    "alpha". Parameters that are functions of alpha are evaluated at that alpha. An initial
    condition is a dictionary of arrays, with or without a leading axis of runs.

    Examples
    --------
    >>> class Decay(sgd.Dynamics):
    ...     variables = {"m": ("overlap", ())}
    ...     parameters = {"rate": 2.0}
    ...     def rate(self, values, state):
    ...         return {"m": -values["problem"]["rate"] * state["m"]}
    >>> result = sgd.solve_ode(Decay(), sgd.OnePassSGD(lr=0.1), {"m": 1.0}, times=[0.5, 1.0])
    >>> result["m"].values.round(4).tolist()
    [[0.3679, 0.1353]]
    """

    kinds: ClassVar[tuple[str, ...]] = ("own dynamics",)  # its column in the support table
    variables: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def rate(self, values: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Time derivative of one state, t = lr steps/d: the mean increment of a step over lr/d.

        It must be a JAX function of both arguments.

        Parameters
        ----------
        values : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.

        Returns
        -------
        dict
            The derivatives, with the shapes of the state.
        """
        raise NotImplementedError

    def step(self, values: dict[str, Any], state: dict[str, Any], key: RandomKey) -> dict[str, Any]:
        """State after one step at dimension d.

        It must be a JAX function of all arguments.

        Parameters
        ----------
        values : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.
        key : jax key
            Key of the random numbers of this step.

        Returns
        -------
        dict
            The next state.
        """
        raise NotImplementedError

    def risk(self, values: dict[str, Any], state: dict[str, Any]) -> Any:
        """Population risk of one state.

        It must be a JAX function of both arguments.

        Parameters
        ----------
        values : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.

        Returns
        -------
        array
            The risk, a scalar.
        """
        raise NotImplementedError

    def noise(self, values: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Noise of one state: the SDE is ds = rate dt + noise dW (Ito), in t = lr steps/d.

        The covariance of one step's increment is (lr/d) noise noise^T, to leading order.
        It must be a JAX function of both arguments.

        Parameters
        ----------
        values : dict
            "problem", "algorithm", "batch", "dimension" and "alpha".
        state : dict
            The variables of one run.

        Returns
        -------
        dict
            Coefficients of the independent Brownian motions: for each variable an array of its
            shape with one more axis at the end.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Plain values for the record of a result.

        Returns
        -------
        dict
            "kind", "parameters", the identity of the class, and "rerunnable", which is False
            because the class cannot be rebuilt from these values.
        """
        parameters = jax.tree.map(
            lambda leaf: (
                describe_schedule(leaf)[0] if is_scheduled(leaf) else np.asarray(leaf).tolist()
            ),
            self.parameters,
            is_leaf=is_scheduled,
        )
        return {
            "kind": type(self).__name__,
            "parameters": parameters,
            **function_identity(type(self)),
            "rerunnable": False,
        }

    def replace(self, **changes: Any) -> Self:
        """Copy of this dynamics with other values of its fields; it must be a dataclass.

        Parameters
        ----------
        **changes
            New values by the name of the field.

        Returns
        -------
        Dynamics
            A new object; this one is unchanged.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def defines(dynamics: Dynamics, method: str) -> bool:
    """Whether a user's dynamics defines an optional method.

    A field of the same name, such as a number `noise`, is not a method.
    """
    attribute = getattr(type(dynamics), method)
    return callable(attribute) and attribute is not getattr(Dynamics, method)
