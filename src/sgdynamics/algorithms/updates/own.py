"""Updates that a user states as a step, and the trials that the step has to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.algorithms.updates.law import Increments, Law, hyperparameter_symbol
from sgdynamics.algorithms.updates.sample_memory import try_rule
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, RealArray, Scalar
from sgdynamics.base.controls import scalar_or_schedule, values_at
from sgdynamics.base.equations import function_formula, function_symbol, parameter_symbol
from sgdynamics.base.precision import float64

MEMORIES = ("none", "slow", "fast")
# The D at which a step is tested for being linear in the gradient, and sizes of the gradient there.
TRIAL_DIMENSION = 1e12
TRIAL_SIZES = (0.03, 1.0, 30.0)


def own(
    step: Callable[..., Any],
    rows: Iterable[str] = (),
    scalars: Iterable[str] = (),
    memory: str = "none",
    *,
    rereads: bool = True,
    numbers: Mapping[str, float] | None = None,
    on_sample: Callable[..., Any] | None = None,
    samples: Iterable[str] = (),
    means: Iterable[str] = (),
) -> Update:
    """Define an update by its increments, for the exact chain, direct runs and the ODE.

    With ``on_sample`` the update acts on single samples of a fixed data set, for direct runs, the
    exact law and DMFT.

    Parameters
    ----------
    step : callable
        ``step(state, gradient, lr, D, number)`` returns increments, a dictionary with the same
        names and shapes as ``state``. ``state["weights"]`` is (p, columns), in any orthonormal
        frame of the input space; if the head is trained, it is one more column. Every set of
        ``rows`` has the same shape, and each of the ``scalars`` is a number.
        ``gradient(rows, shift=0)`` is dloss/dW of the batch at rows + shift. A plain step is
        ``-lr / D * gradient(state["weights"])`` with D = d; ``number`` counts the steps.
    rows : iterable of str, default ()
        Names of additional sets of rows in the state, initially 0.
    scalars : iterable of str, default ()
        Names of scalars in the state, initially 0.
    memory : str, default "none"
        Length of its memory: "none", "slow" (O(D) steps) or "fast" (O(1) steps). The ODE supports
        "fast" only if the step is linear.
    rereads : bool, default True
        Whether the step may evaluate the gradient several times. False, for a step that evaluates
        it once, saves work if the batch is larger than the width.
    numbers : dict, optional
        Hyperparameters by name, which the step receives as keyword arguments. They are traced:
        changing their values does not recompile.
    on_sample : callable, optional
        ``on_sample(sample, **numbers)`` returns ``g, memory`` or ``g, memory, means``, where g
        replaces the weighted dloss/dfields of the sample in the gradient X^T g/n. The sample has
        the attributes ``fields`` (p,), ``slope`` (function of the fields that returns
        dloss/dfields), ``selected`` (whether it is in the batch), ``weight`` (1/b in the batch and
        0 outside, so that plain steps have g = weight slope(fields)), ``memory`` (its stored
        values), ``scalars`` (those of the update) and ``number``.
    samples : iterable of str, default ()
        Names of the values stored for every sample, with the shape of the fields, initially 0.
    means : iterable of str, default ()
        Names of numbers that ``on_sample`` returns; the step reads their means over all n samples
        as ``gradient.means``, after it has called ``gradient``.

    Returns
    -------
    Update
        Update for ``sgd.OnePassSGD(update=...)``.

    Raises
    ------
    ValueError
        If names repeat, if the increments have other names or shapes than the state, or if the step
        does not commute with rotations of the columns. The step is called once to find out, and
        ``on_sample`` likewise.

    Notes
    -----
    The increment of the weights has two additions: weight decay is added to it, and its head column
    is multiplied by head_rate. On the sphere the rows are normalised afterwards. The step has to
    commute with rotations of the columns, except that of the head.

    The ODE evaluates the step at D = 1e14. There ``gradient(rows, shift)`` keeps rows and shift
    apart, so that a shift of order 1/D is not rounded away: pass small displacements as the shift.
    The increments along rows and signals must be of order 1/D. Otherwise the update has no limit in
    these units, and ``solve_ode`` raises ValueError.

    Examples
    --------
    >>> def halved(state, gradient, lr, D, number):
    ...     return {"weights": -lr / (2 * D) * gradient(state["weights"])}
    >>> sgd.updates.own(halved, rereads=False).kind
    'own'
    """
    collections = {"rows": rows, "scalars": scalars, "samples": samples, "means": means}
    for argument, names in collections.items():
        is_collection = isinstance(names, (tuple, list, set, frozenset, dict))
        if not is_collection and not hasattr(names, "__next__"):
            raise checks.reject(argument, names, 'Pass names, such as ("velocity",).')
    row_names, scalar_names = tuple(rows), tuple(scalars)
    state_names = ("weights", *row_names, *scalar_names)
    is_valid = all(isinstance(name, str) for name in state_names)
    if not is_valid or len(set(state_names)) < len(state_names):
        raise checks.reject(
            "rows and scalars",
            {"rows": row_names, "scalars": scalar_names},
            'names must be strings and differ. Use rows=("velocity",), scalars=("norm",), for '
            "example.",
        )
    sample_names, mean_names = _sample_names(on_sample, tuple(samples), tuple(means))
    checks.choice("memory", memory, MEMORIES)
    if numbers is not None and not isinstance(numbers, Mapping):
        raise checks.reject("numbers", numbers, 'Pass numbers by name, such as {"beta": 0.9}.')
    hyperparameters = {
        name: scalar_or_schedule(name, value, -np.inf) for name, value in (numbers or {}).items()
    }
    linear = _try_step(step, row_names, scalar_names, hyperparameters, mean_names)
    law = Law(
        "own",
        step,
        rows=row_names,
        scalars=scalar_names,
        rereads=checks.flag("rereads", rereads),
        memory=memory,
        linear=linear,
        scales=False,
        on_sample=on_sample,
        samples=sample_names,
        means=mean_names,
        trains_head=on_sample is None,
        equations=(
            *_rule_equations(on_sample, sample_names, tuple(hyperparameters)),
            *_own_equations(step, row_names, scalar_names, tuple(hyperparameters)),
        ),
    )
    if on_sample is not None:
        try_rule(law, values_at(hyperparameters, 0.0))
    return Update(law, hyperparameters)


def _sample_names(
    on_sample: Callable[..., Any] | None, samples: tuple[str, ...], means: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Validate the names of values of single samples and of means, and return them."""
    for argument, names in (("samples", samples), ("means", means)):
        if names and on_sample is None:
            raise checks.reject(argument, names, "only used together with on_sample. Set both.")
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise checks.reject(argument, names, 'Use different names, such as ("table",).')
    if on_sample is not None and not callable(on_sample):
        raise checks.reject("on_sample", on_sample, "Pass a function of a sample.")
    return samples, means


def _own_equations(
    step: Callable[..., Any],
    rows: tuple[str, ...],
    scalars: tuple[str, ...],
    hyperparameters: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the step as LaTeX: its formula if it states one, otherwise its name."""
    formula = function_formula(step)
    if formula is not None:
        return tuple(formula.split("\n"))
    state = ["W", *(parameter_symbol(name) for name in (*rows, *scalars))]
    arguments = [*state, r"\mathrm{lr}", "D", *(hyperparameter_symbol(n) for n in hyperparameters)]
    increments = ", ".join(rf"\Delta {symbol}" for symbol in state)
    symbol = function_symbol(step, "step")
    changed = rf"\left({increments}\right) = {symbol}\left({', '.join(arguments)}; G\right)"
    return (changed, r"W \leftarrow W + \Delta W")


def _rule_equations(
    on_sample: Callable[..., Any] | None,
    samples: tuple[str, ...],
    hyperparameters: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the rule of single samples as LaTeX, by its name; nothing if there is none."""
    if on_sample is None:
        return ()
    stored = [rf"{parameter_symbol(name)}_\mu" for name in samples]
    symbols = [hyperparameter_symbol(name) for name in hyperparameters]
    arguments = ", ".join([r"\lambda_\mu", r"h_\mu", r"s_\mu", *stored, *symbols])
    outcome = ", ".join([r"g_\mu", *stored])
    rule = function_symbol(on_sample, "rule")
    return (rf"\left({outcome}\right) \leftarrow {rule}\left({arguments}\right)",)


@dataclass
class _TrialGradient:
    """A gradient for a trial, which counts how often it is evaluated.

    A step that needs `noise`, `squares` or `sign` fails, because these are not for user's steps.
    """

    function: Callable[[Numeric], Numeric]
    samples: int
    means: Mapping[str, Scalar] = field(default_factory=dict)
    evaluations: int = field(default=0, init=False)
    noise = squares = sign = None

    def __call__(
        self, rows: Float[Numeric, "p columns"], shift: RealArray = 0.0
    ) -> Float[Numeric, "p columns"]:
        self.evaluations += 1
        return self.function(rows + shift)

    def per_sample(
        self, rows: Float[Numeric, "p columns"], shift: RealArray = 0.0
    ) -> Float[Numeric, "samples p columns"]:
        self.evaluations += 2  # a step that sees single samples is not linear in their mean
        return jnp.broadcast_to(self.function(rows + shift), (self.samples, *rows.shape))

    def project_shift(
        self, rows: Float[Numeric, "p columns"], shift: Float[Numeric, "p columns"]
    ) -> Float[Numeric, "p columns"]:
        return shift


@float64
def _try_step(
    step: Callable[..., Increments],
    rows: tuple[str, ...],
    scalars: tuple[str, ...],
    hyperparameters: dict[str, Any],
    means: tuple[str, ...] = (),
) -> bool:
    """Raise ValueError for an invalid step, and return whether it is linear in the gradient.

    A step is invalid if it fails, if it returns other names or shapes than its state, or if it does
    not commute with rotations of the columns. The trial gradient is that of a loss
    sum_i log cosh(w_i . x), whose gradient rotates with the inputs x and the rows.
    """
    fix = (
        "Define step(state, gradient, lr, D, number) that returns increments with the names and "
        "shapes of the state."
    )
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.standard_normal((5, 5)))[0]
    inputs = generator.standard_normal((3, 5))
    state = {name: generator.standard_normal((2, 5)) for name in ("weights", *rows)}
    state |= {name: np.float64(1.3) for name in scalars}
    traced = {name: jnp.asarray(value) for name, value in values_at(hyperparameters, 0.0).items()}

    def increments(rotation: np.ndarray) -> Increments:
        """The increments at a rotated state and rotated inputs."""
        X = inputs @ rotation
        values = dict.fromkeys(means, 0.7)
        gradient = _TrialGradient(lambda rows: jnp.tanh(rows @ X.T) @ X / 3, 3, values)
        turned = {
            name: value if value.ndim == 0 else value @ rotation for name, value in state.items()
        }
        return step(
            jax.tree.map(jnp.asarray, turned),
            gradient,
            jnp.asarray(0.1),
            jnp.asarray(5.0),
            jnp.asarray(3),
            **traced,
        )

    with jax.ensure_compile_time_eval():
        try:
            plain, turned = increments(np.eye(5)), increments(rotation)
        except Exception as error:
            reason = f"calling it failed with: {checks.reason(error)}. {fix}"
            raise checks.reject("step", step, reason) from error
        shapes = jax.tree.map(np.shape, state)
        if not isinstance(plain, dict) or jax.tree.map(np.shape, plain) != shapes:
            raise checks.reject("step", step, fix)
        for name, increment in plain.items():
            expected = increment if np.ndim(increment) == 0 else increment @ rotation
            if not np.allclose(turned[name], expected, rtol=1e-6, atol=1e-9):
                raise checks.reject(
                    "step",
                    step,
                    f"its increment of {name} does not commute with rotations of the columns, so "
                    "that the overlaps do not obey closed equations. Use only operations that do.",
                )
        return _is_linear(step, ("weights", *rows), scalars, traced, means)


def _is_linear(
    step: Callable[..., Increments],
    rows: tuple[str, ...],
    scalars: tuple[str, ...],
    hyperparameters: dict[str, Any],
    means: tuple[str, ...] = (),
) -> bool:
    """Whether at large D the ODE of a step needs only the mean and the noise of the gradient.

    This holds if the step evaluates the gradient once, if the increments of the rows are affine in
    it, and if those of the scalars are affine in its components along rows and signals and at most
    quadratic in the other components. Finite differences of the step along a line of gradients,
    mean + x spread, test this. The gradient has several sizes, because a step may be bent at one of
    them, as clipping is.
    """
    generator, D, inside, new = np.random.default_rng(1), TRIAL_DIMENSION, 6, 4
    # The first columns are those of rows and signals. In the new directions, which the state does
    # not have, a gradient is larger by sqrt(D).
    state = {
        name: np.pad(generator.standard_normal((2, inside)), ((0, 0), (0, new))) for name in rows
    }
    state |= {name: np.float64(1.3) for name in scalars}
    size = np.concatenate([np.ones(inside), np.full(new, np.sqrt(D))])
    mean, spread = generator.standard_normal((2, 2, inside + new)) * size
    inside_spread = spread * (np.arange(inside + new) < inside)

    def increments(G: np.ndarray) -> dict[str, np.ndarray]:
        """The increments for this gradient; empty if the step evaluates it more than once."""
        gradient = _TrialGradient(lambda rows: jnp.asarray(G), 1, dict.fromkeys(means, 0.7))
        step_increments = step(
            jax.tree.map(jnp.asarray, state),
            gradient,
            jnp.asarray(0.7),
            jnp.asarray(D),
            jnp.asarray(0.3 * D),
            **hyperparameters,
        )
        if gradient.evaluations != 1:
            return {}
        return {name: np.asarray(increment) for name, increment in step_increments.items()}

    def is_small(difference: np.ndarray, increment: np.ndarray) -> bool:
        return bool(np.abs(difference).max() <= 1e-3 * np.abs(increment).max())

    for scale in TRIAL_SIZES:
        plus, minus, middle, far = (increments(scale * (mean + x * spread)) for x in (1, -1, 0, 2))
        up, down = (increments(scale * (mean + x * inside_spread)) for x in (1, -1))
        if not plus:
            return False
        for name in rows:
            second = plus[name] + minus[name] - 2 * middle[name]
            for columns in (slice(None, inside), slice(inside, None)):
                if not is_small(second[:, columns], plus[name][:, columns]):
                    return False
        for name in scalars:
            largest = np.stack([far[name], plus[name], minus[name], middle[name]])
            third = far[name] - 3 * plus[name] + 3 * middle[name] - minus[name]
            second_inside = up[name] + down[name] - 2 * middle[name]
            if not is_small(third, largest) or not is_small(second_inside, largest):
                return False
    return True
