"""Solutions of the ODE with the accuracy that a picture needs, which is faster than the default."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics import Problem, Start, functional
from sgdynamics.base.precision import float64


@partial(jax.jit, static_argnames=("structure", "quadrature", "risk"))
def _path(
    structure: Any,
    quadrature: Any,
    parameters: Any,
    state: Any,
    times: Any,
    lr: Any,
    rtol: Any,
    risk: bool,
) -> Any:
    result = functional.solve(
        structure,
        parameters,
        state,
        times,
        lr=lr,
        quadrature=quadrature,
        mode="forward",
        rtol=rtol,
        atol=rtol / 10,
    )
    if not risk:
        return result
    return {
        **result,
        "risk": jax.lax.map(
            lambda at_time: functional.risk(structure, parameters, at_time, quadrature=quadrature),
            result,
        ),
    }


@float64
def path(
    problem: Problem,
    initial_state: Start,
    times: Any,
    lr: float,
    *,
    rtol: float = 1e-6,
    risk: bool = True,
) -> dict[str, np.ndarray]:
    """Solve the ODE for M, Q and the risk at these times.

    A change of the parameters of the problem does not recompile.
    """
    quadrature = functional.quadrature(problem, initial_state)
    save_times = np.asarray(times, dtype=np.float64)
    result = _path(
        problem.structure,
        quadrature,
        problem.parameters,
        functional.state(initial_state),
        save_times,
        lr,
        rtol,
        risk,
    )
    # sum over the blocks, the first axis after time
    overlaps = {name: np.asarray(result[name]).sum(axis=1) for name in ("M", "Q")}
    return {**overlaps, **({"risk": np.asarray(result["risk"])} if risk else {})}


@partial(jax.jit, static_argnames=("structure", "quadrature"))
def _growth(structure: Any, quadrature: Any, parameters: Any, state: Any) -> Any:
    def drift_of_M(M: Any) -> Any:
        return functional.drift(
            structure, parameters, {**state, "M": M}, quadrature=quadrature, flow=True
        )["M"]

    return jax.jacfwd(drift_of_M)(jnp.zeros_like(state["M"]))


@float64
def growth(problem: Problem, initial_state: Start) -> np.ndarray:
    """Compute the Jacobian of the drift of M at M = 0, of shape (signals, signals).

    The width is one, Q is that of the start, and the dynamics is gradient flow.
    """
    K = initial_state.M.shape[-1]
    result = _growth(
        problem.structure,
        functional.quadrature(problem, initial_state),
        problem.parameters,
        functional.state(initial_state),
    )
    return np.asarray(result).reshape(K, K)
