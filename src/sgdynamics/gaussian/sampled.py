"""Expectations of any per-sample loss, by averages over scrambled Sobol points, made continuous in the overlaps where it has kinks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.gaussian.expectation import Expectation, Moments, Overlaps, Rule, scaled
from sgdynamics.gaussian.nodes import gauss_legendre, lower_root, sobol_normals, solve_forward, solve_lower
from sgdynamics.problems.problem import Structure

ARC_NODES = 5
LINE_NODES, LINE_REACH = 8, 6.5
MOST_MIRRORED = 6  # students: there are 2^p signs


@dataclass(frozen=True)
class Sampled(Expectation):
    """Any loss at all: averages over points, H from E[h z^T] with fields = L z; of a mixture, cluster by cluster."""

    structure: Structure

    @property
    def drift_sampled(self) -> bool:
        return True

    def sampled(self, flow: bool) -> bool:
        return True

    def nodes(self, rule: Rule, flow: bool) -> dict[str, np.ndarray]:
        # the drift is sampled too, not only the noise term: it needs more points
        return {"points": field_points(self.structure, rule, more=2)}

    def risk_nodes(self, rule: Rule, *, quick: bool = True) -> dict[str, np.ndarray]:
        log2 = rule.log2_points + (-2 if self.structure.clusters else 2)
        return {"plain": sobol_normals(self.structure.fields + 1, log2, rule.replicates, whiten=True)}

    def search_nodes(self, rule: Rule, flow: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirrored(self.structure, self.nodes(rule, flow)), None

    def moments(
        self, rule: Rule, nodes: dict[str, Any], parameters: Any, overlaps: Overlaps, head: Any, *, finite: bool = False, flow: bool = False
    ) -> Moments:
        directions = scaled(parameters, overlaps.blocks) if finite else None
        given = (self.structure, nodes["points"], parameters, overlaps.covariance, head, directions)
        if not self.structure.clusters:
            return _sampled_cluster(*given, None)[0]
        weights, coefficients = parameters["cluster_weights"], parameters["cluster_coefficients"]
        clusters = (overlaps.means(coefficients), coefficients, parameters["cluster_labels"])
        each, first = jax.vmap(lambda *cluster: _sampled_cluster(*given, cluster))(*clusters)
        total = jax.tree.map(lambda value: jnp.tensordot(weights, value, axes=1), each)
        return total._replace(shift=jnp.einsum("c,ci,cr->ir", weights, first, coefficients))

    def risk(self, rule: Rule, nodes: dict[str, Any], parameters: Any, overlaps: Overlaps, head: Any) -> Any:
        """A loss is continuous, so plain points do also where it has kinks."""
        structure, points, k = self.structure, nodes["plain"], self.structure.signals
        order = np.r_[structure.width : structure.fields, 0 : structure.width]
        values = points[:, : structure.fields] @ lower_root(overlaps.covariance[order][:, order]).T

        def average(mean: Any, draws: Any) -> Any:
            fields = values if mean is None else values + mean[order]
            return jnp.mean(jax.vmap(lambda x, draw: structure.loss(x[k:], x[:k], head, draw, parameters))(fields, draws))

        if not structure.clusters:
            return average(None, points[:, -1])
        labels = jnp.broadcast_to(parameters["cluster_labels"][:, None], (structure.clusters, points.shape[0]))
        return parameters["cluster_weights"] @ jax.vmap(average)(overlaps.means(parameters["cluster_coefficients"]), labels)

    def accuracy(self, rule: Rule, nodes: dict[str, Any], parameters: Any, overlaps: Overlaps, head: Any) -> Any:
        p = self.structure.width
        students = nodes["plain"][:, :p] @ lower_root(overlaps.covariance[:p, :p]).T
        means = overlaps.means(parameters["cluster_coefficients"])
        outputs = self.structure.loss.student(students + means[:, None, :p]) @ head
        right = jnp.sign(outputs) * (2 * parameters["cluster_labels"] - 1)[:, None]
        return parameters["cluster_weights"] @ jnp.mean(0.5 + 0.5 * right, axis=1)


def field_points(structure: Structure, rule: Rule, more: int) -> np.ndarray:
    """Sobol points for the fields and a draw, with kinks in pairs (`sample_fields`), 2^more times as many as the rule says."""
    if structure.kinks:
        return sobol_normals(2 * structure.fields + 1, rule.log2_circles + more, rule.replicates, whiten=False)
    return sobol_normals(structure.fields + 1, rule.log2_points + more, rule.replicates, whiten=more > 0)


def mirrored(structure: Structure, nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sobol points that have every sign of the students' coordinates.

    What is odd in a coordinate then averages to 0 exactly, so that a sampled drift is smooth up to the edge of the physical region,
    where a coordinate of the root of Omega is a square root of the overlaps.
    """
    p, k = structure.width, structure.signals
    if "points" not in nodes or p > MOST_MIRRORED:
        return nodes
    replicates, count, size = nodes["points"].shape
    points = np.array(sobol_normals(size, max(int(np.log2(count)) - p, 6), replicates, whiten=False))
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=p)))
    every = np.repeat(points[:, None], len(signs), axis=1)
    for first in range(k, size - 1, structure.fields):  # with kinks the points are pairs
        every[..., first : first + p] *= signs[:, None, :]
    every = every.reshape(replicates, -1, size)
    return {**nodes, "points": every if structure.kinks else every / np.sqrt(np.mean(every**2, axis=1, keepdims=True))}


class Sample(NamedTuple):
    """Weighted points of the Gaussian: whitened coordinates (n, fields), what they make of students and signals, weights."""

    root: Any  # of Omega with the signals first
    z: Any
    students: Any
    signals: Any
    noise: Any
    weights: Any


def sample_fields(structure: Structure, points: Any, omega: Any, mean: Any = None) -> Sample:
    """Fields at Sobol points, with the signals first in the root: then a kink of the label stays where it is as the rows move.

    A kink of the student does move, and an average over points would jump each time it passes one. There the points come in pairs, each
    of which spans a circle or a line that is integrated exactly between the places where a field meets a kink: the average is then
    continuous in the overlaps, as an integrator needs.
    """
    k, p, fields = structure.signals, structure.width, structure.fields
    order = np.r_[p:fields, 0:p]
    root = lower_root(omega[order][:, order])
    if not structure.kinks:
        z, noise = points[:, :fields], points[:, fields]
        weights = jnp.full(points.shape[0], 1.0 / points.shape[0], points.dtype)
    else:
        pair = points[:, :fields], points[:, fields : 2 * fields]
        centred = not structure.clusters and not any(structure.kinks)
        if centred:
            z, weights = _on_circles(structure, *pair, root[k:])
        else:
            z, weights = _on_lines(structure, *pair, root[k:], jnp.zeros(p) if mean is None else mean[:p])
        noise = jnp.repeat(points[:, -1], z.shape[1])
        z, weights = z.reshape(-1, fields), weights.reshape(-1) / points.shape[0]
    values = z @ root.T
    if mean is not None:
        values = values + mean[order]
    return Sample(root, z, values[:, k:], values[:, :k], noise, weights)


def _on_circles(structure: Structure, one: Any, other: Any, students: Any) -> tuple[Any, Any]:
    """Points (n, nodes, fields) and weights on the circles z cos(phi) + z' sin(phi), cut where a field is 0: always at two angles."""
    along, across = one @ students.T, other @ students.T
    angle = jnp.arctan2(across, along)
    breaks = [jnp.zeros((one.shape[0], 1)), jnp.full((one.shape[0], 1), 2 * np.pi)]
    breaks += [jnp.mod(angle + turn, 2 * np.pi) for turn in (np.pi / 2, -np.pi / 2)]
    phi, weights = _pieces(jnp.concatenate(breaks, axis=1), ARC_NODES)
    z = jnp.cos(phi)[..., None] * one[:, None] + jnp.sin(phi)[..., None] * other[:, None]
    return z, weights / (2 * np.pi)


def _on_lines(structure: Structure, one: Any, other: Any, students: Any, mean: Any) -> tuple[Any, Any]:
    """The same on lines, for kinks away from the fields' mean: there a circle may touch a kink, where its average has an infinite slope."""
    direction = one / jnp.sqrt(jnp.sum(one**2, axis=1, keepdims=True))
    base = other - jnp.sum(other * direction, axis=1, keepdims=True) * direction
    slope, level = direction @ students.T, base @ students.T + mean
    breaks = [jnp.full((one.shape[0], 1), place) for place in (-LINE_REACH, 0.0, LINE_REACH)]
    for kink in structure.kinks:
        breaks.append(jnp.clip((kink - level) / jnp.where(slope == 0, 1e-300, slope), -LINE_REACH, LINE_REACH))
    t, weights = _pieces(jnp.concatenate(breaks, axis=1), LINE_NODES)
    density = jnp.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    return base[:, None] + t[..., None] * direction[:, None], weights * density


def _pieces(breaks: Any, count: int) -> tuple[Any, Any]:
    """Gauss-Legendre nodes between sorted breaks, (n, pieces times count)."""
    edges = jnp.sort(breaks, axis=1)
    node, weight = gauss_legendre(count)
    lengths = jnp.diff(edges, axis=1)[..., None]
    return (edges[:, :-1, None] + lengths * node).reshape(len(edges), -1), (lengths * weight).reshape(len(edges), -1)


def norm_weights(sample: Sample, directions: Any) -> Any:
    """z^T S_b z - Tr S_b, S_b = L^-1 direction_b L^-T: the weight that turns E[F] into E[F (|x_b|^2/eigenvalue_b - d_b)]."""
    k = sample.signals.shape[1]
    fields = sample.z.shape[1]
    order = np.r_[fields - k : fields, 0 : fields - k]

    def one(direction: Any) -> Any:
        S = solve_forward(sample.root, solve_forward(sample.root, direction[order][:, order]).T)
        return jnp.einsum("nc,cd,nd->n", sample.z, S, sample.z) - jnp.trace(S)

    return jax.vmap(one, out_axes=1)(directions)


def _sampled_cluster(
    structure: Structure, points: Any, parameters: Any, omega: Any, head: Any, directions: Any, cluster: Any
) -> tuple[Moments, Any]:
    """The same for one cluster (mean fields, coefficients of its mean on the signals, label) or centred data (None), and E[h]."""
    sample = sample_fields(structure, points, omega, None if cluster is None else cluster[0])
    draws = sample.noise if cluster is None else jnp.broadcast_to(cluster[2], sample.noise.shape)

    def one(students: Any, signals: Any, draw: Any) -> tuple[Any, tuple[Any, Any]]:
        return jax.value_and_grad(structure.loss, argnums=(0, 2))(students, signals, head, draw, parameters)

    values, (h, head_gradient) = jax.vmap(one)(sample.students, sample.signals, draws)
    weighted = sample.weights[:, None] * h
    signals_first = solve_lower(sample.root, weighted.T @ sample.z)
    stein = jnp.concatenate([signals_first[:, structure.signals :], signals_first[:, : structure.signals]], axis=1)
    norms = None
    if directions is not None:
        swing = scaled(parameters, norm_weights(sample, directions), axis=1)
        if cluster is not None:
            swing = swing + _mean_norm_weights(structure, sample, directions, parameters, cluster[1])
        norms = jnp.einsum("nb,ni,nj->bij", swing, weighted, h)
    found = Moments(stein, weighted.T @ h, norms, sample.weights @ head_gradient, sample.weights @ values)
    return found, jnp.sum(weighted, axis=0)


def _mean_norm_weights(structure: Structure, sample: Sample, directions: Any, parameters: Any, coefficients: Any) -> Any:
    """E[|x_b|^2 | fields] less what centred data have: |mean_b|^2 + 2 mean_b . E[x_b - mean_b | fields]."""
    order = np.r_[structure.width : structure.fields, 0 : structure.width]

    def one(direction: Any, gram: Any) -> Any:
        along = solve_forward(sample.root, (direction[order][:, structure.width :] @ coefficients)[:, None])[:, 0]
        return coefficients @ gram @ coefficients + 2 * sample.z @ along

    return jax.vmap(one, out_axes=1)(directions, jnp.broadcast_to(parameters["gram"], (structure.blocks, *parameters["gram"].shape[-2:])))
