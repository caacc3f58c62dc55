"""Expectations of several students in one problem, from the expectations of each of them.

A student with its sources of labels is a problem of its own, whose overlaps are a block of those of
all rows. By Stein's lemma the coefficients H of its gradient, E[h x] = sum_c H_c w_c, give the
drift of its overlaps with every other row. Students with inputs of their own have independent
gradients. Students with the same inputs need E[h_k h_l^T]: for networks it is the polar form of the
gradient noise, which is quadratic in the residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Numeric
from sgdynamics.expectations.contexts import context_nodes, finest, join_nodes
from sgdynamics.expectations.interface import Moments, Overlaps, Quadrature
from sgdynamics.expectations.solver_interface import Evaluation, SolverExpectation
from sgdynamics.problems.problem import Structure
from sgdynamics.problems.student_losses import Lesson, Task
from sgdynamics.samples import input_covariance


@dataclass(frozen=True)
class StudentSums(SolverExpectation):
    """The moments of all students of a problem whose gradients are independent."""

    structure: Structure
    expectations: tuple[SolverExpectation, ...]  # of all tasks, lesson by lesson

    def _selection(self, lesson: Lesson, task: Task) -> np.ndarray:
        """Return the matrix that maps all rows and signals to the fields of one task."""
        P, K = self.structure.width, self.structure.signals
        columns = np.eye(P + K)
        own = np.pad(lesson.selection(P), ((0, 0), (0, K)))
        read = [own, columns[list(task.sources)]]
        return np.concatenate([*read, columns[P:]] if task.reads_signals else read)

    def _evaluations(
        self, at: Evaluation
    ) -> Iterator[tuple[int, Lesson, Task, Any, SolverExpectation, Evaluation]]:
        """All tasks, with the probability that a sample belongs to them and their arguments."""
        position, shares = 0, None
        if "draws" in at.parameters:
            shares = at.parameters["draws"].get("task", {}).get("probabilities")
        for index, lesson in enumerate(self.structure.loss.lessons):
            for number, task in enumerate(lesson.tasks):
                matrix = self._selection(lesson, task)
                blocks = matrix @ at.overlaps.blocks @ matrix.T
                covariance = matrix @ at.overlaps.covariance @ matrix.T
                own = task.parameters(at.parameters["lessons"][index][number], at.head)
                evaluation = Evaluation(
                    at.quadrature,
                    context_nodes(at.nodes, position),
                    {**own, "eigenvalues": input_covariance.eigenvalues(at.parameters)},
                    Overlaps(blocks, covariance),
                    lesson.selection(self.structure.width) @ at.head,
                )
                share = 1.0 if len(lesson.tasks) == 1 or shares is None else shares[number]
                yield index, lesson, task, share, self.expectations[position], evaluation
                position += 1

    def evaluate_moments(
        self, at: Evaluation, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        P, K = self.structure.width, self.structure.signals
        blocks, lessons = len(at.overlaps.blocks), self.structure.loss.lessons
        stein: Any = jnp.zeros((P, P + K))
        noise: Any = jnp.zeros((P, P))
        norms: Any = jnp.zeros((blocks, P, P))
        head_gradient: Any = jnp.zeros(P)
        risk: Any = jnp.zeros(())
        for _, lesson, task, share, expectation, own in self._evaluations(at):
            moments = expectation.evaluate_moments(own, finite=finite, flow=flow)
            rows, matrix = lesson.selection(P), self._selection(lesson, task)
            stein = stein + share * rows.T @ moments.stein @ matrix
            noise = noise + share * rows.T @ moments.noise @ rows
            if finite and moments.norms is not None:
                norms = norms + share * jnp.einsum("ip,bij,jq->bpq", rows, moments.norms, rows)
            if lesson.trains_head:
                head_gradient = head_gradient + share * rows.T @ moments.head_gradient
            risk = risk + share * moments.risk / len(lessons)
        if not finite:
            return Moments(stein, noise, None, head_gradient, risk)
        # Independent inputs: the mean of a product of gradients is the product of their means.
        coefficients = input_covariance.times_eigenvalues(at.parameters, stein)
        products = coefficients @ at.overlaps.blocks @ jnp.swapaxes(coefficients, -1, -2)
        return Moments(stein, noise, norms + self._between() * products, head_gradient, risk)

    def _between(self) -> np.ndarray:
        """Return 1 for rows of two different students that learn, and 0 for all others."""
        student = np.full(self.structure.width, -1)
        for index, lesson in enumerate(self.structure.loss.lessons):
            student[[row for unit in lesson.rows for row in unit]] = index
        learns = student >= 0
        different = student[:, None] != student[None]
        return (different & learns[:, None] & learns[None]).astype(float)

    def evaluate_risk(self, at: Evaluation) -> Float[Numeric, ""]:
        risks = [
            share * expectation.evaluate_risk(own)
            for _, _, _, share, expectation, own in self._evaluations(at)
        ]
        return sum(risks, jnp.zeros(())) / len(self.structure.loss.lessons)

    def quadrature(self, largest: float) -> Quadrature:
        return finest([expectation.quadrature(largest) for expectation in self.expectations])

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        proposals = [expectation.finer(quadrature, largest) for expectation in self.expectations]
        finer = [proposal for proposal in proposals if proposal is not None]
        return finest(finer) if finer else None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        return join_nodes(
            [expectation.nodes(quadrature, flow) for expectation in self.expectations]
        )

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        return join_nodes(
            [expectation.risk_nodes(quadrature, quick=quick) for expectation in self.expectations]
        )

    def estimate_error(self, at: Evaluation) -> Float[Numeric, ""]:
        errors = [
            expectation.estimate_error(own)
            for *_, expectation, own in self._evaluations(at)
            if "plain" not in own.nodes
        ]
        return jnp.max(jnp.stack([jnp.zeros(()), *errors]))

    def sampled(self, flow: bool) -> bool:
        return any(expectation.sampled(flow) for expectation in self.expectations)

    @property
    def drift_sampled(self) -> bool:
        return any(expectation.drift_sampled for expectation in self.expectations)
