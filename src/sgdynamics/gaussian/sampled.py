"""Expectations of any per-sample loss, by averages over scrambled Sobol points, made continuous in the overlaps where it has kinks.

A sample of L inputs with the correlation C (`samples.Sample`) has the fields F = mean + root Y, Y = Z C^1/2, Omega = root root^T, Z of
independent normals (fields x L). With h (p x L) the gradient in the students' fields and c (L x K) the inputs' means on the signals,

    H = E[h Y^T] root^-1,   E[h C h^T],   shift = E[h c],
    norms_b = E[h U_b h^T],   U_b = l_b (Y^T S_b Y - Tr S_b C) + c P_b c^T + X_b + X_b^T,   X_b = c (l_b Omega_b)_signals root^-T Y,

S_b = root^-1 l_b Omega_b root^-T: U_b + l_b d_b C is the mean of the inputs' scalar products in block b, given the fields. Draws of few
values are summed over, all others have a coordinate of the points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.arrays import Nodes, Numbers, Numeric
from sgdynamics.gaussian.expectation import Expectation, Moments, Overlaps, Rule
from sgdynamics.gaussian.nodes import gauss_legendre, lower_root, sobol_normals, solve_forward, solve_lower
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import spectrum

ARC_NODES = 5
LONG_ARC_NODES = 16  # where circles are few, and cut at the zeros of the signals too
MOST_SLOPES = 512  # second derivatives of a loss that are taken at each point
LINE_NODES, LINE_REACH = 8, 6.5
MOST_MIRRORED = 6  # students: there are 2^p signs


@dataclass(frozen=True)
class Sampled(Expectation):
    """Any loss at all: averages over points, the discrete draws case by case."""

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
        normals, draws = columns(self.structure)
        every_case = self.structure.sample.free < self.structure.sample.draw_normals  # each point serves them all
        return {"plain": sobol_normals(normals + draws, rule.log2_points + (-2 if every_case else 2), rule.replicates, whiten=True)}

    def search_nodes(self, rule: Rule, flow: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        return mirrored(self.structure, self.nodes(rule, flow)), None

    def _over_cases(self, parameters: Numbers, one: Callable[..., Any]) -> Any:
        """The sum over all values of the draws that have few, each with its probability."""
        weights, cases = self.structure.sample.cases(parameters)
        if not cases:
            return one({})
        return jax.tree.map(lambda value: jnp.tensordot(jnp.asarray(weights), value, axes=1), jax.vmap(one)(cases))

    def moments(
        self,
        rule: Rule,
        nodes: Nodes,
        parameters: Numbers,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
        *,
        finite: bool = False,
        flow: bool = False,
    ) -> Moments:
        structure, sample, k = self.structure, self.structure.sample, self.structure.signals
        moves = jax.vmap(structure.loss.move, (0, 0, None, 0, None))
        reading = reading_overlaps(structure, parameters, overlaps)

        by_slope = structure.loss.smooth and structure.width * structure.fields * sample.inputs_a_sample**2 <= MOST_SLOPES

        def one(case: dict[str, Any]) -> Moments:
            found = sample_fields(structure, nodes["points"], overlaps, parameters, case, given_weights=nodes.get("weights"))
            fields = (sample.by_sample(found.students), sample.by_sample(found.signals))
            values, move = moves(*fields, head, found.given, reading)
            h, head_gradient = sample.by_input(move.inputs), move.head
            weighted = sample.each_input(found.weights)[:, None] * h
            if by_slope:
                stein = slopes(structure, parameters, fields, head, found, reading)
            else:
                first = solve_lower(found.root, weighted.T @ found.z)
                stein = jnp.concatenate([first[:, k:], first[:, :k]], axis=1)
            mixed = sample.mixed_inputs(parameters, h.T)
            noise = (sample.each_input(found.weights) * mixed) @ mixed.T
            norms = None
            if finite:
                by_token = h.reshape(-1, sample.inputs_a_sample, structure.width)
                swing = found.weights[:, None, None, None] * norm_weights(structure, parameters, overlaps, found)
                norms = jnp.einsum("nbtu,nti,nuj->bij", swing, by_token, by_token)
            shift = None if found.means is None else weighted.T @ found.means
            pull = None
            if structure.loss.pulls:
                each = jnp.concatenate([move.rows, move.signals], axis=-1)
                pull = jnp.tensordot(found.weights, each, axes=1)
                if norms is not None:
                    norms = norms + pulled_norms(structure, parameters, overlaps, found, weighted, each)
            return Moments(stein, noise, norms, found.weights @ head_gradient, found.weights @ values, shift, pull)

        return self._over_cases(parameters, one)

    def risk(self, rule: Rule, nodes: Nodes, parameters: Numbers, overlaps: Overlaps, head: Float[Numeric, " p"]) -> Float[Numeric, ""]:
        """A loss is continuous, so plain points do also where it has kinks."""
        structure, sample = self.structure, self.structure.sample
        reading = reading_overlaps(structure, parameters, overlaps)

        def one(case: dict[str, Any]) -> Float[Numeric, "..."]:
            weights = nodes.get("weights")
            found = sample_fields(structure, nodes["plain"], overlaps, parameters, case, plain=True, given_weights=weights)
            fields = (sample.by_sample(found.students), sample.by_sample(found.signals))
            values = jax.vmap(structure.loss, (0, 0, None, 0, None))(*fields, head, found.given, reading)
            return jnp.mean(values, axis=0) if weights is None else jnp.tensordot(found.weights, values, axes=1)

        return self._over_cases(parameters, one)

    def accuracy(self, rule: Rule, nodes: Nodes, parameters: Numbers, overlaps: Overlaps, head: Float[Numeric, " p"]) -> Float[Numeric, ""]:
        p = self.structure.width
        students = nodes["plain"][:, :p] @ lower_root(overlaps.covariance[:p, :p]).T
        means = overlaps.means(parameters["cluster_coefficients"])
        outputs = self.structure.loss.student(students + means[:, None, :p]) @ head
        right = jnp.sign(outputs) * (2 * parameters["cluster_labels"] - 1)[:, None]
        return parameters["cluster_weights"] @ jnp.mean(0.5 + 0.5 * right, axis=1)


def slopes(
    structure: Structure,
    parameters: Numbers,
    fields: tuple[Float[Numeric, "..."], Float[Numeric, "..."]],
    head: Float[Numeric, " p"],
    points: Points,
    reading: Numbers,
) -> Float[Numeric, "p fields"]:
    """G_ic = sum_lm C_lm E[dh_il/dF_cm] of a smooth loss, (p, fields): by Stein's lemma what E[h Y^T] root^-1 is, with less spread."""
    sample, p = structure.sample, structure.width

    def gradient(students: Float[Numeric, "..."], signals: Float[Numeric, "..."], given: Any) -> Float[Numeric, "p tokens"]:
        return structure.loss.move(students, signals, head, given, reading)[1].inputs.reshape(p, -1)

    each = jax.vmap(jax.jacfwd(gradient, argnums=(0, 1)))(*fields, points.given)
    correlation = parameters["token_correlation"] if sample.correlated else jnp.eye(sample.inputs_a_sample)

    def summed(slope: Float[Numeric, "..."]) -> Float[Numeric, "p columns"]:
        slope = slope.reshape(*slope.shape[:4], -1)  # (n, p, tokens, fields, tokens)
        return jnp.einsum("n,nilcm,lm->ic", points.weights, slope, correlation)

    return jnp.concatenate([summed(part) for part in each], axis=1)


def reading_overlaps(structure: Structure, parameters: Numbers, overlaps: Overlaps) -> Any:
    """The numbers with the overlaps among them, where the loss reads them; lengths X X^T/d are those of d = infinity."""
    p = structure.width
    lengths = None
    if structure.loss.reads_lengths:
        sample = structure.sample
        correlation = parameters["token_correlation"] if sample.correlated else jnp.eye(sample.inputs_a_sample)
        lengths = spectrum.trace(parameters) * correlation
    return structure.loss.reading(parameters, overlaps.blocks[:, :p, :p], overlaps.blocks[:, :p, p:], lengths)


def pulled_norms(
    structure: Structure, parameters: Numbers, overlaps: Overlaps, points: Points, weighted: Float[Numeric, "..."], pulls: Any
) -> Any:
    """What the coefficients D = [A | B] of a sample add to the mean of its increment's square, (blocks, p, p): with F_b the part of the
    fields in block b, E[h F_b^T D^T + transpose + D Omega_b D^T]."""
    p, fields = structure.width, structure.fields
    tokens, order = structure.sample.inputs_a_sample, np.r_[p:fields, 0:p]
    back = np.argsort(order)

    def one(blocks: Float[Numeric, "..."], scaled: Float[Numeric, "..."]) -> Any:
        # the mean of the fields' part in the block, given all of it
        part = points.z @ solve_forward(points.root, scaled[order][:, order])[:, back]
        if points.means is not None:
            part = part + points.means @ blocks[p:]
        along = jnp.einsum("nti,ntf->nif", weighted.reshape(-1, tokens, p), part.reshape(-1, tokens, fields))
        cross = jnp.einsum("nif,njf->ij", along, pulls)
        return cross + cross.T + jnp.einsum("n,nic,cd,njd->ij", points.weights, pulls, blocks, pulls)

    return jax.vmap(one)(overlaps.blocks, spectrum.scaled(parameters, overlaps.blocks))


def columns(structure: Structure) -> tuple[int, int]:
    """How many coordinates of a point are normals of the fields (token by token, the signals first), and how many of draws.

    There is always one of draws, also where all are summed over.
    """
    return structure.sample.inputs_a_sample * structure.fields, max(structure.sample.free, 1)


def field_points(structure: Structure, rule: Rule, more: int) -> np.ndarray:
    """Sobol points for the fields and draws, with kinks in pairs (`sample_fields`), 2^more times as many as the rule says."""
    normals, draws = columns(structure)
    if structure.kinks:
        return sobol_normals(2 * normals + draws, rule.log2_circles + more, rule.replicates, whiten=False)
    return sobol_normals(normals + draws, rule.log2_points + more, rule.replicates, whiten=more > 0)


def mirrored(structure: Structure, nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sobol points that have every sign of the students' coordinates, of all tokens together.

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
    for first in range(k, size - columns(structure)[1], structure.fields):  # with kinks the points are pairs
        every[..., first : first + p] *= signs[:, None, :]
    every = every.reshape(replicates, -1, size)
    return {**nodes, "points": every if structure.kinks else every / np.sqrt(np.mean(every**2, axis=1, keepdims=True))}


class Points(NamedTuple):
    """Weighted samples (n,) of L inputs each, one input a row: Y = Z C^1/2 (n L, fields), what it makes of students and signals, means."""

    root: Any  # of Omega with the signals first
    z: Any
    students: Any
    signals: Any
    means: Any  # on the signals (n L, K), or None
    given: Any  # the loss's fourth argument
    weights: Any


def sample_fields(
    structure: Structure,
    points: Float[Numeric, "m n"],
    overlaps: Overlaps,
    parameters: Numbers,
    case: dict[str, Any] | None = None,
    *,
    plain: bool = False,
    given_weights: Float[Numeric, " m"] | None = None,
) -> Points:
    """Fields at Sobol points, with the signals first in the root: then a kink of the label stays where it is as the rows move.

    A kink of the student does move, and an average over points would jump each time it passes one. There the points come in pairs, each
    of which spans a circle or a line that is integrated exactly between the places where a field meets a kink: the average is then
    continuous in the overlaps, as an integrator needs. `plain` points are not in pairs. All weigh the same unless weights are given.
    """
    sample, k, fields = structure.sample, structure.signals, structure.fields
    tokens, (size, free) = sample.inputs_a_sample, columns(structure)
    order = np.r_[structure.width : fields, 0 : structure.width]
    root = lower_root(overlaps.covariance[order][:, order])
    count = points.shape[0]
    case = {name: jnp.broadcast_to(value, (count, *np.shape(value))) for name, value in (case or {}).items()}
    draws = sample.drawn(parameters, points[:, -free:], case)
    means = sample.mean_coefficients(parameters, draws)
    if means is not None:
        means = jnp.broadcast_to(means.reshape(-1, tokens, k), (count, tokens, k))
    given = sample.given(draws)

    def students_of(z: Float[Numeric, "n fields"]) -> Float[Numeric, "n p"]:
        return (sample.mixed(parameters, z.reshape(-1, tokens, fields), -2) @ root[k:].T).reshape(len(z), -1)

    if plain or not structure.kinks:
        z, weights = points[:, :size], jnp.full(count, 1.0 / count, points.dtype) if given_weights is None else given_weights
    else:
        pair = points[:, :size], points[:, size : 2 * size]
        if means is None and not any(structure.kinks):
            every = students_of if given_weights is None else lambda z: z @ root.T
            z, weights = _on_circles(*pair, every, ARC_NODES if given_weights is None else LONG_ARC_NODES)
        else:
            level = 0.0 if means is None else overlaps.means(means)[..., : structure.width].reshape(count, -1)
            z, weights = _on_lines(structure.kinks, *pair, students_of, level)
        means, given = jax.tree.map(lambda one: jnp.repeat(one, z.shape[1], axis=0), (means, given))
        share = 1 / count if given_weights is None else given_weights[:, None]
        z, weights = z.reshape(-1, size), (weights * share).reshape(-1)
    z = sample.mixed(parameters, z.reshape(-1, tokens, fields), -2).reshape(-1, fields)
    values = z @ root.T
    if means is not None:
        means = means.reshape(-1, k)
        values = values + overlaps.means(means)[:, order]
    return Points(root, z, values[:, k:], values[:, :k], means, given, weights)


def _on_circles(
    one: Float[Numeric, "n fields"], other: Float[Numeric, "n fields"], fields_of: Callable[..., Any], count: int
) -> tuple[Float[Numeric, "n m fields"], Float[Numeric, "n m"]]:
    """Points (n, nodes, normals) and weights on the circles z cos(phi) + z' sin(phi), cut where a field is 0: always at two angles."""
    angle = jnp.arctan2(fields_of(other), fields_of(one))
    breaks = [jnp.zeros((one.shape[0], 1)), jnp.full((one.shape[0], 1), 2 * np.pi)]
    breaks += [jnp.mod(angle + turn, 2 * np.pi) for turn in (np.pi / 2, -np.pi / 2)]
    phi, weights = _pieces(jnp.concatenate(breaks, axis=1), count)
    z = jnp.cos(phi)[..., None] * one[:, None] + jnp.sin(phi)[..., None] * other[:, None]
    return z, weights / (2 * np.pi)


def _on_lines(kinks: tuple[float, ...], one: Any, other: Any, students_of: Any, mean: Any) -> tuple[Any, Any]:
    """The same on lines, for kinks away from the fields' mean: there a circle may touch a kink, where its average has an infinite slope."""
    direction = one / jnp.sqrt(jnp.sum(one**2, axis=1, keepdims=True))
    base = other - jnp.sum(other * direction, axis=1, keepdims=True) * direction
    slope, level = students_of(direction), students_of(base) + mean
    breaks = [jnp.full((one.shape[0], 1), place) for place in (-LINE_REACH, 0.0, LINE_REACH)]
    for kink in kinks:
        breaks.append(jnp.clip((kink - level) / jnp.where(slope == 0, 1e-300, slope), -LINE_REACH, LINE_REACH))
    t, weights = _pieces(jnp.concatenate(breaks, axis=1), LINE_NODES)
    density = jnp.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    return base[:, None] + t[..., None] * direction[:, None], weights * density


def _pieces(breaks: Float[Numeric, "m n"], count: int) -> tuple[Float[Numeric, "m k"], Float[Numeric, "m k"]]:
    """Gauss-Legendre nodes between sorted breaks, (n, pieces times count)."""
    edges = jnp.sort(breaks, axis=1)
    node, weight = gauss_legendre(count)
    lengths = jnp.diff(edges, axis=1)[..., None]
    return (edges[:, :-1, None] + lengths * node).reshape(len(edges), -1), (lengths * weight).reshape(len(edges), -1)


def norm_weights(structure: Structure, parameters: Numbers, overlaps: Overlaps, points: Points) -> Any:
    """U_b (n, blocks, L, L), which turn E[h C h^T] into E[sum_lm h_l h_m^T (x_l.x_m - eigenvalue_b d_b C_lm)]."""
    sample, fields = structure.sample, structure.fields
    tokens, order = sample.inputs_a_sample, np.r_[structure.width : fields, 0 : structure.width]
    z = points.z.reshape(-1, tokens, fields)
    correlation = parameters["token_correlation"] if sample.correlated else jnp.eye(tokens, dtype=z.dtype)

    def one(direction: Float[Numeric, "fields fields"]) -> Any:
        S = solve_forward(points.root, solve_forward(points.root, direction[order][:, order]).T)
        return jnp.einsum("ntc,cd,nud->ntu", z, S, z) - jnp.trace(S) * correlation

    directions = spectrum.scaled(parameters, overlaps.blocks)
    found = spectrum.scaled(parameters, jax.vmap(one, out_axes=1)(directions))
    if points.means is None:
        return found
    c = points.means.reshape(-1, tokens, structure.signals)
    gram = jnp.broadcast_to(parameters["gram"], (structure.blocks, *parameters["gram"].shape[-2:]))

    def of_means(direction: Float[Numeric, "fields fields"], gram: Float[Numeric, "K K"]) -> Any:
        along = solve_forward(points.root, direction[order][:, structure.width :])
        cross = jnp.einsum("ntr,cr,nuc->ntu", c, along, z)
        return jnp.einsum("ntr,rs,nus->ntu", c, gram, c) + cross + jnp.swapaxes(cross, 1, 2)

    return found + jax.vmap(of_means, out_axes=1)(directions, gram)
