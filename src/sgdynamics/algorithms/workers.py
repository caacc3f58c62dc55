"""`Workers`: local SGD and DiLoCo, several workers whose weights are averaged in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base import checks

MOST_WORKERS = 4096


@dataclass(frozen=True, eq=False)
class Workers:
    """Several workers that train copies of a network on their own samples, in rounds.

    A round starts from common rows W. Each worker makes steps of ``algorithm`` until it has used
    ``every`` d samples, and then the rows are averaged. With the mean W_m of the workers' rows,

    ::

        g = W - W_m,   b <- outer_momentum b + g,   W <- W - outer_lr (g + outer_momentum b)

    which is local SGD with the default values, and DiLoCo with Nesterov momentum.

    Parameters
    ----------
    algorithm : OnePassSGD
        Training algorithm of each worker: plain SGD with a constant rate and batch.
    workers : int, default 4
        Number of workers.
    every : float, default 0.5
        Length of a round in samples/d of one worker.
    outer_lr : float, default 1.0
        Learning rate of the outer step.
    outer_momentum : float, default 0.0
        Momentum of the outer step.
    problems : sequence of Problem, optional
        Problem of each worker, of the same network, inputs and signals. By default all workers have
        the problem of the call, which also defines the risk.

    Raises
    ------
    ValueError
        If a value is out of range.

    Notes
    -----
    It takes the place of the algorithm in ``solve_ode``, ``solve_sde`` and ``simulate``. alpha and
    steps count the samples and steps of one worker. Without ``problems`` the workers are equal, and
    ``solve_ode`` follows two of them.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    >>> start = sgd.start(problem, M=[[0.1]], Q=[[0.5]])
    >>> algorithm = sgd.Workers(sgd.OnePassSGD(lr=1.0), workers=4, every=0.5)
    >>> result = sgd.solve_ode(problem, algorithm, start, alpha=[4.0, 8.0])
    >>> result.excess_risk.values.round(6).tolist()
    [[0.014182, 0.004094]]
    """

    algorithm: OnePassSGD
    workers: int = 4
    every: float = 0.5  # style: ok, public name of the length of a round
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    problems: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        inner = self.algorithm
        is_plain = isinstance(inner, OnePassSGD) and inner.stepping is None and inner.counts
        if not is_plain or inner.scheduled or inner.flow:
            fix = "workers make plain steps of a constant rate. Use sgd.OnePassSGD(lr=, batch=)."
            raise checks.reject("algorithm", inner, fix)
        values = {
            "workers": checks.integer("workers", self.workers, 1, MOST_WORKERS),
            "every": checks.number("every", self.every, above=0.0),
            "outer_lr": checks.number("outer_lr", self.outer_lr, above=0.0),
            "outer_momentum": checks.number("outer_momentum", self.outer_momentum, 0.0),
        }
        if values["outer_momentum"] >= 1:
            raise checks.reject("outer_momentum", self.outer_momentum, "give a value below 1")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.problems is not None:
            problems = tuple(self.problems) if isinstance(self.problems, Sequence) else ()
            if len(problems) != self.workers:
                fix = f"give one problem for each of the {self.workers} workers"
                raise checks.reject("problems", self.problems, fix)
            object.__setattr__(self, "problems", problems)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the algorithm in the support table."""
        return ("workers",)

    @property
    def averages(self) -> bool:
        """Whether the outer step is the mean of the workers' rows."""
        return self.outer_lr == 1.0 and self.outer_momentum == 0.0

    @property
    def short_rounds(self) -> OnePassSGD:
        """The limit of short rounds: one worker with a batch of the samples of all workers."""
        return self.algorithm.replace(batch=self.workers * self.algorithm.batch)

    def replace(self, **changes: object) -> Workers:
        """Return a copy with some arguments changed.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        Workers
            A new algorithm; this one is not changed.

        Raises
        ------
        ValueError
            If an argument does not exist or its value is invalid.
        """
        return checks.replace_fields(self, changes)

    def describe(self) -> dict[str, Any]:
        """Return the algorithm as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments.
        """
        inner = self.algorithm.describe()
        problems = [problem.describe() for problem in self.problems or ()]
        rerunnable = all(record.pop("rerunnable", True) for record in (inner, *problems))
        record: dict[str, Any] = {
            "kind": "Workers",
            "algorithm": inner,
            "workers": self.workers,
            "every": self.every,
            "outer_lr": self.outer_lr,
            "outer_momentum": self.outer_momentum,
        }
        record |= {"problems": problems} if problems else {}
        return record if rerunnable else {**record, "rerunnable": False}
