"""Late times of a case: runs that the explicit method did not finish are continued by LSODA.

LSODA integrates one vector on the host. The vector has the upper triangles of symmetric matrices
only, so that its Jacobian has no antisymmetric directions, which would be neutral or unstable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sgdynamics.base.arrays import Numeric, Parameters, PyTree, RealArray, Scalar, State
from sgdynamics.base.progress import Meter, current_meter, warn_if_long
from sgdynamics.base.resources import check_memory
from sgdynamics.ode.case import (
    MARGIN,
    Case,
    Field,
    IntegrationResult,
    Watch,
    divergence_bound,
    from_units,
)
from sgdynamics.ode.stiff import StiffResult, integrate_lsoda

# Jacobians that LSODA computes at least, one or two per decade of time.
LEAST_JACOBIANS = 5
# Seconds of LSODA after which its remaining time is estimated.
SECONDS_BEFORE_ESTIMATE = 5.0
# Bytes per entry of LSODA's Jacobian: an allowance of three float64 matrices of its size.
JACOBIAN_BYTES = 24.0
# Estimated errors are multiplied by this factor: unscaled ones were up to four times too small.
ERROR_SAFETY = 2.0
# A run that ended within this relative distance of the last save point has reached it.
END_TOLERANCE = 1e-12


class ExplicitResult(NamedTuple):
    """Result of the explicit method for all replicates and runs of a case.

    Attributes
    ----------
    saved : dict
        States at the save points, infinite beyond the last time.
    last : dict
        Last states; empty if all runs have finished.
    time : array, (replicate, run)
        Times of the last states.
    exited : array of bool, (replicate, run)
        Whether the stopping criterion was met.
    exhausted : array of bool, (replicate, run)
        Whether the steps ran out.
    errors : dict or None
        Estimated errors at the save points. None where they are not estimated.
    """

    saved: State
    last: State
    time: Float[Numeric, "..."]
    exited: Bool[Numeric, "..."]
    exhausted: Bool[Numeric, "..."]
    errors: State | None = None


def finish_case(case: Case, explicit: ExplicitResult) -> IntegrationResult | ValueError:
    """Return the result of a case; runs that the explicit method did not finish use LSODA."""
    t = case.times
    states = {}
    for name, value in explicit.saved.items():
        # Sliced on the host, because every shape would be a program on the device.
        states[name] = np.array(np.asarray(value)[:, :, : len(t)])
        states[name][~np.isfinite(states[name])] = np.nan
    needs_lsoda = np.asarray(explicit.exhausted)
    time, exited = np.array(explicit.time), np.array(explicit.exited)
    ran_out = np.zeros(needs_lsoda.shape, dtype=bool)
    for position in zip(*np.nonzero(needs_lsoda), strict=True):
        replicate, run = position
        inputs = jax.tree.map(lambda leaf, index=replicate: leaf[index], case.replicates)
        state = {name: np.asarray(value[position]) for name, value in explicit.last.items()}
        t0 = float(time[position])
        is_late = t > t0
        level = 0.0 if case.levels is None else float(case.levels[run])
        try:
            end, values = _continue_run(case, inputs, state, t0, t[is_late], level)
        except ValueError as error:
            return error
        # With a criterion the only saved state is that of the end, which nobody reads.
        if case.watch is None:
            for name, value in values.items():
                states[name][replicate, run, is_late] = value
        time[position] = end.time
        exited[position] = end.ended == "event"
        ran_out[position] = end.ended == "exhausted"
    # A run that stopped before the end without meeting the criterion has diverged.
    diverged = ~exited & ~ran_out & (time < t[-1] * (1 - END_TOLERANCE))
    displaced = None
    # The errors of a run that LSODA continued are not known.
    if explicit.errors is not None and not needs_lsoda.any():
        shifted = {
            name: value + ERROR_SAFETY * np.asarray(explicit.errors[name])[:, :, : len(t)]
            for name, value in states.items()
        }
        displaced = from_units(case.shared, shifted)
    return IntegrationResult(
        from_units(case.shared, states),
        bool(needs_lsoda.any()),
        np.any(ran_out, axis=0),
        np.where(exited, time, np.nan),
        diverged,
        displaced,
    )


def _continue_run(
    case: Case, replicate: PyTree, state: State, t0: float, times: np.ndarray, level: float
) -> tuple[StiffResult, dict[str, np.ndarray]]:
    """Integrate one trajectory from `t0` by LSODA; return its end and its states at `times`."""
    form = Flat(case.field, tuple((name, value.shape) for name, value in state.items()))
    # Copied to the device once, not at each of thousands of calls.
    inputs = jax.tree.map(jnp.asarray, (replicate, case.shared))
    end = float(times[-1]) if len(times) else t0
    y = np.asarray(form.flatten(state))
    check_memory(
        "times",
        end,
        JACOBIAN_BYTES * len(y) ** 2,
        f"the Jacobian of {len(y)} overlaps",
        "late times need an implicit method. Use fewer covariance blocks, a smaller width, or "
        "shorter times.",
    )

    def rate(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_flat_rate(form, *inputs, t, y))

    # LSODA would shorten its steps for ever where the drift is NaN.
    if not np.all(np.isfinite(rate(t0, y))):
        raise ValueError(
            f"problem: its drift is not finite at t = {t0:.4g}. The loss, an activation or the "
            "target is NaN or infinite there; make it finite for every real field."
        )

    def distance_to_level(y: np.ndarray) -> float:
        assert case.watch is not None
        return float(_flat_watch(form, case.watch, inputs[1], y)) - level

    def is_bounded(t: float, y: np.ndarray) -> bool:
        return bool(np.sum(np.abs(y)) < divergence_bound(t))

    meter = current_meter()
    started, first_share = perf_counter(), fraction_done(t0, end)
    if meter is not None:
        _warn_of_jacobians(meter, lambda: rate(t0, y), len(y))

    def report(t: float) -> None:
        if meter is None or end <= 0:
            return
        share = fraction_done(t, end)
        meter.reach(share)
        seconds = perf_counter() - started
        if seconds > SECONDS_BEFORE_ESTIMATE and share > first_share:
            pace = seconds / (share - first_share)
            how = f"{seconds:.0f} s from t = {t0:.3g} to {t:.3g}, until {end:.3g}"
            warn_if_long(meter, pace * (1 - share), how)

    solution = integrate_lsoda(
        rate,
        y,
        t0,
        times,
        float(case.tolerance["rtol"]),
        float(case.tolerance["atol"]),
        loosest=1 / MARGIN,
        inside=is_bounded,
        watch=None if case.watch is None else distance_to_level,
        report=report,
    )
    values = _unflatten_all(form, solution.values.T)
    return solution, {name: np.asarray(value) for name, value in values.items()}


def _warn_of_jacobians(meter: Meter, evaluate: Callable[[], object], size: int) -> None:
    """Warn before the start where even a few Jacobians take long."""
    start_time = perf_counter()
    evaluate()
    seconds = perf_counter() - start_time
    evaluations = LEAST_JACOBIANS * size
    how = (
        f"{seconds:.2g} s per evaluation of the drift, {evaluations} evaluations or more for the "
        f"Jacobians of {size} overlaps at late times"
    )
    warn_if_long(meter, seconds * evaluations, how, "at least")


def fraction_done(t: RealArray, end: RealArray) -> float:
    """Return the fraction of the work done at time t.

    Steps grow with time, so that late times count by their logarithm.
    """
    return float(np.mean(np.log1p(t) / np.log1p(end)))


@dataclass(frozen=True)
class Flat:
    """A state as one vector: its variables in order, with upper triangles of symmetric matrices."""

    field: Field
    form: tuple[tuple[str, tuple[int, ...]], ...]

    def flatten(self, state: State) -> Float[Numeric, " n"]:
        """Return the vector of a state."""
        return jnp.concatenate(
            [self._pack(name, jnp.asarray(state[name])).reshape(-1) for name, _ in self.form]
        )

    def unflatten(self, y: Float[Array, " n"]) -> dict[str, Numeric]:
        """Return the state of a vector."""
        state, offset = {}, 0
        for name, shape in self.form:
            packed = jax.eval_shape(partial(self._pack, name), jax.ShapeDtypeStruct(shape, y.dtype))
            values = y[offset : offset + packed.size].reshape(packed.shape)
            offset += packed.size
            if name in self.field.symmetric:
                # A = U + U^T - diag(U) from the upper triangle U
                rows, columns = np.triu_indices(shape[-1])
                upper = jnp.zeros(shape, y.dtype).at[..., rows, columns].set(values)
                diagonal = upper * jnp.eye(shape[-1], dtype=y.dtype)
                values = upper + jnp.swapaxes(upper, -1, -2) - diagonal
            state[name] = values
        return state

    def _pack(self, name: str, value: Numeric) -> Float[Numeric, "... n"]:
        if name not in self.field.symmetric:
            return value
        rows, columns = np.triu_indices(value.shape[-1])
        return value[..., rows, columns]


@partial(jax.jit, static_argnums=0)
def _flat_rate(
    form: Flat, replicate: PyTree, shared: PyTree, t: Scalar, y: Float[Array, " n"]
) -> Float[Numeric, " n"]:
    return form.flatten(form.field(replicate, shared, t, form.unflatten(y)))


@partial(jax.jit, static_argnums=(0, 1))
def _flat_watch(
    form: Flat, watch: Watch, shared: Parameters, y: Float[Array, " n"]
) -> Float[Numeric, ""]:
    return watch.value(shared, form.unflatten(y))


@partial(jax.jit, static_argnums=0)
def _unflatten_all(form: Flat, values: Float[Array, "..."]) -> dict[str, Numeric]:
    return jax.vmap(form.unflatten)(values)


@partial(jax.jit, static_argnums=0)
def rates_at(
    form: Flat, replicates: PyTree, shared: PyTree, states: State
) -> Float[Numeric, "states replicates n"]:
    """Return the flat rate of all replicates (outer axis) and runs (inner axis) at t = 0."""

    def rate(replicate: PyTree, state: State) -> Float[Numeric, " n"]:
        return form.flatten(form.field(replicate, shared, 0.0, state))

    over_runs = jax.vmap(rate, in_axes=(None, 0))
    return jax.vmap(over_runs, in_axes=(0, None))(replicates, states)
