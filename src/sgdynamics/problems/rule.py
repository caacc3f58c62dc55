"""`Rule`: a user-defined update that need not be a gradient: perceptrons, GANs, bandits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.user_functions import function_identity, output_structure, validate_function
from sgdynamics.problems.activations import validate_kinks
from sgdynamics.problems.moves import Move
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.problem_pytree import records_arguments
from sgdynamics.problems.problem_records import SAMPLE_ARGUMENTS, describe_network, describe_sample
from sgdynamics.problems.problem_values import plain_values, validate_parameters
from sgdynamics.problems.user_losses import RuleLoss, extra_arguments
from sgdynamics.samples.arguments import validate_covariance
from sgdynamics.samples.spectra import Spectrum


class Rule(Problem):
    """A user-defined update: the move of the rows by one sample, which need not be a gradient.

    The rows R of all groups, stacked in their order, move by
    R <- R - (rate lr/D)(H X + A R + B S), with X the inputs of the sample and S the signals. ODE,
    SDE, exact chain and direct runs follow from it, as for any ``Problem``.

    Parameters
    ----------
    update : callable
        JAX function ``update(fields, signals, head, draws, overlaps)`` of one sample that returns a
        ``Move``. ``overlaps`` has the overlaps ``Q``, ``M`` and ``P`` of the full rows, and with
        ``reads_lengths`` also ``lengths``. ``overlaps.blocks`` has the ``Q``, ``M`` and ``P`` of
        each covariance block along a leading axis, with the ``eigenvalues`` and ``fractions`` of
        the blocks. An argument ``parameters`` is the dictionary of that name.
    groups : dict of str to int
        Number of rows of each group, by name.
    rates : dict of str to float, optional
        Factor of lr for the rows of a group. Defaults to 1.
    risk : callable, optional
        Risk of one sample, ``risk(fields, signals, head, draws[, overlaps][, parameters])``; a
        result has its expectation. Without it the risk is not defined (NaN).
    reads_lengths : bool, default False
        Whether the update reads ``overlaps.lengths``, X X^T/d of the sample's inputs
        (tokens x tokens).
    signals : int, default 1
        Number of fixed directions, 0 or more.
    gram : array, optional
        Gram matrix of the signals. Defaults to the identity. This argument and all of the following
        are those of ``Problem``.
    head : str, default 'fixed'
        "fixed" or "trained". A trained head moves by ``Move.head``.
    constraint : str, optional
        "sphere" keeps every row at norm 1. By default the rows are free.
    weight_decay : float or callable, default 0.0
        Coefficient al of weight decay, which also moves rows R by -(lr/D) al R.
    covariance : sequence of (eigenvalue, fraction of d) or Spectrum, optional
        Blocks of the inputs' covariance, or ``sgd.Spectrum``, ``sgd.power_law``, which fix d.
    clusters : sequence of (weight, coefficients, label), optional
        Inputs of a Gaussian mixture.
    parameters : dict, optional
        Parameters of the update, which may be functions of alpha.
    kinks : sequence of float, default ()
        Values of a field at which the update jumps, (0,) for a perceptron.
    tokens : int, optional
        Number of inputs per sample.
    token_correlation : array, optional
        Correlation of the inputs of one sample.
    means : array or callable, optional
        Coefficients of the inputs' means on the signals, or a function of the draws (and of
        ``parameters``).
    draws : dict, optional
        Named draws of a sample.
    expectation : Expectation, optional
        A user-defined expectation, in place of the one that the library chooses.

    Raises
    ------
    ValueError
        If an argument is invalid, or the update fails on one sample.

    Notes
    -----
    With F = R X^T and F* = S X^T of one sample and C the correlation of its inputs, in the time
    t = lr steps/d and for batches of B,

    .. math:: \\dot M = -E[H F^{*T}] - E[A] M - E[B] P

    .. math:: \\dot Q = -(Y + Y^T) + \\frac{lr}{B} E[H C H^T],

    .. math:: Y = E[H F^T] + E[A] Q + E[B] M^T.

    A loss that reads overlaps is the rule H = dl/dF, A = dl/dQ + transpose, B = dl/dM.

    Examples
    --------
    The perceptron, whose error at alpha = 5 is 0.167:

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> import sgdynamics as sgd
    >>> def perceptron(fields, signals, head, noise_draw, overlaps):
    ...     label = jnp.sign(signals[0])
    ...     return sgd.Move(-label * (fields * label < 0))
    >>> rule = sgd.Rule(perceptron, groups={"w": 1}, kinks=(0.0,))
    >>> start = sgd.start(rule, M=[[0.2]], Q=[[1.0]])
    >>> path = sgd.solve_ode(rule, sgd.OnePassSGD(lr=1.0), start, alpha=[0, 5.0])
    >>> cosine = path.M.values[0, -1, 0, 0] / np.sqrt(path.Q.values[0, -1, 0, 0])
    >>> print(round(float(np.arccos(cosine) / np.pi), 3))
    0.167
    """

    kind: ClassVar[str] = "Rule"

    @records_arguments
    def __init__(
        self,
        update: Callable[..., Move],
        groups: Mapping[str, int],
        *,
        rates: Mapping[str, float] | None = None,
        risk: Callable[..., Any] | None = None,
        reads_lengths: bool = False,
        signals: int = 1,
        gram: ArrayArgument | None = None,
        head: str = "fixed",
        constraint: str | None = None,
        weight_decay: float | Function = 0.0,
        covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
        clusters: Sequence[tuple[float, Sequence[float], float]] | None = None,
        parameters: dict[str, Any] | None = None,
        kinks: Sequence[float] = (),
        tokens: int | None = None,
        token_correlation: ArrayArgument | None = None,
        means: ArrayArgument | Function | None = None,
        draws: dict[str, Any] | None = None,
        expectation: Any = None,
    ) -> None:
        if not callable(update):
            raise checks.reject(
                "update",
                update,
                "give a JAX function update(fields, signals, head, draws, overlaps)",
            )
        self.update, self.risk, self.kinks = update, risk, validate_kinks(kinks)
        self.groups = _validate_groups(groups)
        self.reads_lengths = checks.flag("reads_lengths", reads_lengths)
        available = ("overlaps",) if parameters is None else ("overlaps", "user")
        extra = extra_arguments(update, "overlaps", available)
        risk_extra = () if risk is None else extra_arguments(risk, "overlaps", available)
        loss = RuleLoss(update, extra, risk, risk_extra, self.kinks, self.reads_lengths)
        self._set_common(
            loss,
            width=sum(self.groups.values()),
            signals=signals,
            gram=gram,
            head=head,
            constraint=constraint,
            weight_decay=weight_decay,
            covariance=validate_covariance(covariance),
            clusters=clusters,
            expectation=expectation,
            user=None if parameters is None else validate_parameters(parameters),
            **{name: self._arguments[name] for name in SAMPLE_ARGUMENTS},
        )
        self._parameters["rates"] = self._validate_rates(rates)
        moves_by_block = self._check_update(extra)
        if risk is not None:
            validate_function(
                "risk",
                risk,
                self.example_arguments(risk_extra),
                takes=self.argument_names(risk_extra),
                call="one sample",
                differentiated=False,
            )
        self.structure = replace(self.structure, loss=replace(loss, moves_by_block=moves_by_block))
        self._analyse_functions((update, extra), *([] if risk is None else [(risk, risk_extra)]))

    def _validate_rates(self, rates: Mapping[str, float] | None) -> np.ndarray:
        """Return the rate of every row."""
        if rates is not None and not isinstance(rates, Mapping):
            raise checks.reject("rates", rates, 'give numbers by group: {"V": 0.5}')
        by_group = dict(rates or {})
        checks.reject_unknown("rates", by_group, self.groups)
        values = [
            checks.number(f"rates[{name!r}]", by_group.get(name, 1.0), minimum=0.0)
            for name in self.groups
        ]
        return np.repeat(np.array(values), list(self.groups.values()))

    def _check_update(self, extra: tuple[str, ...]) -> bool:
        """Check the `Move` that the update returns; return whether it differs between blocks."""
        example, takes = self.example_arguments(extra), self.argument_names(extra)
        try:
            inspect.signature(self.update).bind(*example)
        except TypeError:
            raise checks.reject(
                "update", self.update, f"must take the arguments ({takes})."
            ) from None
        except ValueError:
            pass  # The function has no signature: the call below checks it.
        try:
            move = output_structure(lambda *arguments: self.update(*arguments), *example)
        except Exception as error:
            raise checks.reject(
                "update",
                self.update,
                f"calling it on one sample failed with: {checks.reason(error)}",
            ) from error
        if not isinstance(move, Move):
            raise checks.reject(
                "update",
                self.update,
                f"it returned a {type(move).__name__}: return sgd.Move(inputs=..., rows=..., ...)",
            )
        p, k = self.width, self.signals
        shapes = {
            "inputs": np.shape(example[0]),
            "rows": (p, p),
            "signals": (p, k),
            "head": (p,),
        }
        moves_by_block = False
        for name, expected in shapes.items():
            coefficients = getattr(move, name)
            if coefficients is None and name != "inputs":
                continue
            shape = getattr(coefficients, "shape", None)
            if name in ("rows", "signals") and shape == (self.structure.blocks, *expected):
                moves_by_block = True
            elif shape != expected:
                raise checks.reject(
                    "update", self.update, f"its Move has {name} of shape {shape}: give {expected}"
                )
        return moves_by_block

    def describe(self) -> dict[str, Any]:
        """Return the rule as plain values for the record of a result."""
        if self._describe_model is not None:
            return self._describe_model(self)
        return {
            "kind": self.kind,
            "update": function_identity(self.update),
            "groups": dict(self.groups),
            "rates": jax.tree.map(float, dict(zip(self.groups, self._rates(), strict=True))),
            "risk": None if self.risk is None else function_identity(self.risk),
            "reads_lengths": self.reads_lengths,
            "signals": self.signals,
            "kinks": list(self.kinks),
            "parameters": plain_values(self._parameters.get("user")),
            **describe_network(self, "gram"),
            **describe_sample(self),
            "rerunnable": False,
        }

    def _rates(self) -> list[np.ndarray]:
        """Return the rate of each group, which is that of its first row."""
        firsts = np.cumsum([0, *self.groups.values()])[:-1]
        return [np.asarray(self._parameters["rates"])[first] for first in firsts]


def _validate_groups(groups: Mapping[str, int] | None) -> dict[str, int]:
    """Return the number of rows of each group, by name."""
    if (
        not isinstance(groups, Mapping)
        or not groups
        or not all(isinstance(name, str) for name in groups)
    ):
        raise checks.reject("groups", groups, 'give the number of rows by group: {"W": 2, "V": 2}')
    return {name: checks.integer(f"groups[{name!r}]", count, 1) for name, count in groups.items()}
