"""`AMP`: approximate message passing on a fixed data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sgdynamics.algorithms.fixed_data import ALGORITHMS, FixedData
from sgdynamics.base import checks, pytrees

ESTIMATORS = ("bayes", "erm")
STARTS = ("zero", "overlaps")


@pytrees.register_parameters("samples_per_dimension")
@checks.argument_hints({"lr": "Message passing has no learning rate. Omit it."})
@dataclass(frozen=True)
class AMP(FixedData):
    """Approximate message passing on a fixed data set, for labels that depend on one signal.

    ::

        om = X w - g_old V,                g = g(y, om, V),      L = sum_i g_i^2/d or -sum_i g_i'/d
        w <- (c + L)^-1 (X^T g/d + L w),   V = (c + L)^-1

    for inputs with unit variance; several eigenvalues have one equation for w each.

    Parameters
    ----------
    samples_per_dimension : float, default 3.0
        Size n of the data set divided by the dimension d.
    estimator : str, default "bayes"
        "bayes": g = (E[z | y, om] - om)/V of the law of the labels; w is the posterior mean, and
        the best that any known fast algorithm reaches. "erm": g = (prox(om) - om)/V of the loss of
        the problem; w converges to the minimiser of ``sgd.erm`` with the problem's weight decay.
    start : str, default "zero"
        "zero": w = 0, which learns where the mean of a label depends on the signal; the argument
        ``start`` of the solver is then None. "overlaps": the argument ``start`` of the solver.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    One step counts as t = 1. Use it with ``sgd.simulate`` and with ``sgd.solve_dmft``, which then
    solves the state evolution, step by step. Sources: Donoho, Maleki and Montanari (2009), Rangan
    (2011), Javanmard and Montanari (2013), Barbier et al. (2019).

    Examples
    --------
    >>> algorithm = sgd.AMP(2.0)
    >>> algorithm.samples(500), algorithm.estimator
    (1000, 'bayes')
    """

    lr: Any = field(default=1.0, init=False, repr=False)
    samples_per_dimension: float = 3.0
    head_rate: Any = field(default=1.0, init=False, repr=False)
    update: None = field(default=None, init=False, repr=False)
    estimator: str = "bayes"
    start: str = "zero"

    kind_on_data: ClassVar[str] = "message passing"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("estimator", self.estimator, ESTIMATORS)
        checks.choice("start", self.start, STARTS)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "samples_per_dimension": float(self.samples_per_dimension),
            "estimator": self.estimator,
            "start": self.start,
        }


ALGORITHMS[AMP.__name__] = AMP
