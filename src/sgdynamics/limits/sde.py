"""The diffusive limit: overlaps and head follow an SDE, whose noise has the covariance of one sample's increment.

With u(x) the increment of s = (M, Q, a) that one sample makes, per unit of lr/d, in the time t = lr steps/d:

    ds = E[u] dt + sqrt(lr/(d B)) Sigma^(1/2) dB_t,      Sigma = Cov(u)   (lr/B in place of lr inside u)
    u_M = - h signals^T,   u_Q = - (h lambda^T + lambda h^T) + (lr/B) h h^T,   u_a = - head_rate dloss/da
    (sphere: u_M -= M u_Qii/2,  u_Q_ij -= Q_ij (u_Qii + u_Qjj)/2)

Paths are stepped in the factor form W = [T | L] and folded, so W W^T stays positive by construction:

- the drift by Heun's method: -E[h x^T] on the rows, and 2 p new columns whose Gram matrix is the mean (lr/B) E[h h^T];
- the noise needs no root of Sigma: with fresh samples x_s and normals g_s, (1/sqrt(S)) sum_s g_s (u(x_s) - E[u]) has covariance
  Sigma exactly, at any width and at singular overlaps;
- the part of the noise that h h^T makes acts on the folded factor: L L^T -> L (X + sqrt(1 + X^2)) L^T, X = eta - E[eta^2]/2, which
  has the noise L eta L^T to first order and the mean L L^T to second, is positive for every X, and grows no faster than X.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from sgdynamics import checks, compressed
from sgdynamics.algorithms.one_pass import OnePassSGD, checked_algorithm
from sgdynamics.clock import clock, elapsed, plan_steps, reached
from sgdynamics.controls import Schedule, numbers_at
from sgdynamics.gaussian.moments import Rule, moments, nodes_for
from sgdynamics.gaussian.nodes import lower_root, solve_forward
from sgdynamics.gaussian.risk import MARGIN, effective_overlaps, risk_in_time, rule_for
from sgdynamics.limits.spiked import solve_spiked_sde
from sgdynamics.precision import float64
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, checked_kind, checked_start, factor
from sgdynamics.random import normals_and_uniforms
from sgdynamics.results import largest_share, trajectory
from sgdynamics.samples import spectrum
from sgdynamics.shapes import power_of_two
from sgdynamics.simulation.running import See, Simulator, run

SAMPLES = 32  # fresh samples a step: the covariance is exact for any number, more of them make one step's noise more Gaussian
STEP_TOLERANCE = 2e-3  # relative error of the risk that the step length may make, on the noiseless path
FIRST_STEPS, MOST_STEPS = 64, 1 << 14
LARGEST = 1e100


class Path(NamedTuple):
    """The state of a path: rows (blocks, p, K + p) and head (p)."""

    rows: Any
    head: Any


class _Field(NamedTuple):
    """The drift at a state: E[h x^T] and what else moves the rows, the matrix that moves new columns, roots of their growth, E[da]."""

    pull: Any  # (blocks, p, K + p): E[h x^T] on the rows
    rows: Any  # d rows/dt
    columns: Any  # (blocks, p, p): d new/dt = - columns new
    root: Any  # (p, p): a root of E[h h^T]
    growth: Any  # (blocks): the new columns' Gram matrix grows by growth_b E[h h^T]
    head: Any


def _signal_rows(structure: Structure, parameters: Any) -> Any:
    """The signals in the compressed frame, (blocks, K, K + p)."""
    empty = jnp.zeros((structure.blocks, structure.signals, structure.width), parameters["frame"].dtype)
    return jnp.concatenate([jnp.broadcast_to(parameters["frame"], (*empty.shape[:2], structure.signals)), empty], axis=-1)


def _overlaps(structure: Structure, parameters: Any, rows: Any) -> tuple[Any, Any]:
    M = jnp.einsum("bps,brs->bpr", rows[..., : structure.signals], parameters["frame"])
    return M, jnp.einsum("bpm,bqm->bpq", rows, rows)


def _field(structure: Structure, rule: Rule, nodes: Any, parameters: Any, algorithm: Any, numbers: Any, path: Path, extra: Any) -> _Field:
    """The drift where the new columns have the Gram matrix `extra` (blocks, p, p)."""
    p = structure.width
    M, Q = _overlaps(structure, parameters, path.rows)
    Q = Q + extra
    _, omega, means = effective_overlaps(structure, parameters, M, Q)
    found = moments(structure, rule, nodes, parameters, omega, path.head, means=means)
    every = jnp.concatenate([path.rows, _signal_rows(structure, parameters)], axis=1)
    pull = jnp.einsum("bic,bcm->bim", found.coefficients(parameters), every)
    decay = parameters["weight_decay"]
    growth = numbers["noise_rate"] * spectrum.growth(parameters, numbers["outside"])
    columns = spectrum.scaled(parameters, found.stein[:, :p]) + decay * jnp.eye(p)
    if structure.sphere:
        # half the growth of |w_i|^2, taken off again
        norms = -jnp.einsum("bim,bim->i", pull, path.rows) - jnp.einsum("bij,bij->i", columns, extra) - decay
        norms = norms + decay * jnp.einsum("bii->i", extra) + 0.5 * jnp.sum(growth) * jnp.diagonal(found.noise)
    else:
        norms = jnp.zeros(p)
    drift = -pull - (decay + norms)[:, None] * path.rows
    head = -algorithm["head_rate"] * (found.head_gradient + decay * path.head) if structure.trained else jnp.zeros_like(path.head)
    return _Field(pull, drift, columns + jnp.diag(norms), lower_root(found.noise), growth, head)


class _Noise(NamedTuple):
    """Samples of one step: gradients h C^1/2 (S, p, tokens), increments less the mean of rows (S, blocks, p, K + p) and head (S, p)."""

    h: Any
    rows: Any
    head: Any


def _samples(structure: Structure, parameters: Any, algorithm: Any, path: Path, field: _Field, normals: Any) -> _Noise:
    sample, count = structure.sample, SAMPLES * structure.sample.inputs_a_sample
    z, draws = normals[:, : -sample.draw_normals], sample.drawn(parameters, normals[:, -sample.draw_normals :])
    x = sample.inputs(parameters, z.reshape(-1, *sample.token_shape, structure.blocks, structure.fields), draws)
    x = x.reshape(count, structure.blocks, structure.fields)
    fields = jnp.einsum("bpm,sbm->sp", path.rows, x)
    signals = jnp.einsum("brk,sbk->sr", parameters["frame"], x[..., : structure.signals])
    h, head_gradient = compressed.sample_gradients(structure, parameters, fields, signals, path.head, sample.given(draws))
    each = h[:, None, :, None] * x[:, :, None, :]
    rows = -(each.reshape(SAMPLES, -1, *each.shape[1:]).sum(axis=1) - field.pull)
    head = jnp.zeros_like(head_gradient)
    if structure.trained:
        head = -algorithm["head_rate"] * (head_gradient + parameters["weight_decay"] * path.head) - field.head
    seen = sample.mixed_inputs(parameters, h.T).reshape(structure.width, SAMPLES, -1)
    return _Noise(jnp.moveaxis(seen, 0, 1), rows, head)


def _second_order(structure: Structure, parameters: Any, path: Path, e: Any, zeta: Any, scale: Any) -> tuple[Any, Any]:
    """What products of increments with themselves add to the mean of M and Q (blocks first): `scale` times the average over samples.

    e_i is the increment of row i (S, blocks, p, K + p), zeta_ij that of the new columns' Gram matrix (S, blocks, p, p),
    s_ij = w_i.e_j + w_j.e_i + zeta_ij, r_i = s_ii/2, mu_i = e_i.w*, n_i = 3 r_i^2/2 - |e_i|^2/2:
    free: Q'' = E[e_i.e_j];  sphere: M'' = E[-r_i mu_i + M_i n_i],  Q'' = E[e_i.e_j - s_ij (r_i + r_j) + Q_ij (n_i + n_j + r_i r_j)].
    """
    share = scale / e.shape[0]
    products = jnp.einsum("sbim,sbjm->sbij", e, e)
    if not structure.sphere:
        return jnp.zeros_like(path.rows[..., : structure.signals]), share * jnp.sum(products, axis=0)
    M, Q = _overlaps(structure, parameters, path.rows)
    across = jnp.einsum("bim,sbjm->sbij", path.rows, e)
    s = across + jnp.swapaxes(across, -1, -2) + zeta
    r = jnp.einsum("sbii->si", s) / 2
    n = 1.5 * r**2 - jnp.einsum("sbii->si", products) / 2
    mu = jnp.einsum("sbim,brm->sbir", e, _signal_rows(structure, parameters))
    M2 = -r[:, None, :, None] * mu + M * n[:, None, :, None]
    both = n[:, :, None] + n[:, None, :] + r[:, :, None] * r[:, None, :]
    Q2 = products - s * (r[:, :, None] + r[:, None, :])[:, None] + Q * both[:, None]
    return share * jnp.sum(M2, axis=0), share * jnp.sum(Q2, axis=0)


def sde_step(
    structure: Structure,
    rule: Rule,
    higher_order: bool,
    nodes: Any,
    parameters: Any,
    algorithm: Any,
    numbers: Any,
    path: Path,
    length: Any,
    key: Any,
) -> Path:
    """One step of the given length in t.

    `numbers`: noise_rate = lr/B, inverse_dimension, shares (block sizes over d), outside (less the columns inside), amount of noise.
    """
    blocks, p, k = structure.blocks, structure.width, structure.signals
    field = partial(_field, structure, rule, nodes, parameters, algorithm, numbers)
    nothing = jnp.zeros((blocks, p, p))
    here = field(path, nothing)
    grown = length * here.growth[:, None, None] * (here.root @ here.root.T)
    ahead = field(Path(path.rows + length * here.rows, path.head + length * here.head), grown)
    rows = path.rows + length / 2 * (here.rows + ahead.rows)
    head = path.head + length / 2 * (here.head + ahead.head)
    # the trapezoid rule for the new columns, as a sum of squares
    share = jnp.sqrt(length / 2 * here.growth)[:, None, None]
    carried = (jnp.eye(p) - length * ahead.columns) @ here.root
    new = share * jnp.concatenate([carried, jnp.broadcast_to(ahead.root, carried.shape)], axis=-1)

    numbers_each = structure.sample.inputs_a_sample * blocks * structure.fields + structure.sample.draw_normals
    normals, _ = normals_and_uniforms(key, SAMPLES * (numbers_each + 1), 0)
    g, normals = normals[:SAMPLES], normals[SAMPLES:].reshape(SAMPLES, -1)
    noise = _samples(structure, parameters, algorithm, path, here, normals)
    scale = numbers["amount"] * numbers["noise_rate"] * numbers["inverse_dimension"] * length
    weights = jnp.sqrt(scale / SAMPLES) * g
    rows = rows + jnp.einsum("s,sbim->bim", weights, noise.rows)
    head = head + weights @ noise.head

    L = _folded(jnp.concatenate([rows[..., k:], new], axis=-1))
    # the noise of h h^T, seen from L: eta = L^-1 (h h^T - C) L^-T for each sample and block
    every = jnp.concatenate([jnp.moveaxis(noise.h, 0, 1).reshape(p, -1), here.root], axis=1)
    inward = jax.vmap(lambda factor: solve_forward(factor, every))(L)
    seen, mean = inward[..., :-p].reshape(blocks, p, SAMPLES, -1), inward[..., -p:]
    eta = jnp.einsum("bisl,bjsl->sbij", seen, seen) - mean @ jnp.swapaxes(mean, -1, -2)
    # all of |x|^2, not only what lies outside
    swing = (numbers["noise_rate"] * spectrum.growth(parameters, numbers["shares"]))[:, None, None]
    eta = swing * eta
    X = jnp.einsum("s,sbij->bij", weights, eta) - scale / (2 * SAMPLES) * jnp.einsum("sbij,sbjk->bik", eta, eta)
    mean_gram = here.root @ here.root.T
    if higher_order:
        # products of the mean increment with itself: what a step of length lr/d does beyond the flow
        mean_rows = -(here.pull + parameters["weight_decay"] * path.rows)[None]
        step = length * algorithm["lr"] * numbers["inverse_dimension"]
        M2, Q2 = _second_order(structure, parameters, path, mean_rows, swing * mean_gram[None, None], step)
    else:
        gram = swing * (jnp.einsum("sil,sjl->sij", noise.h, noise.h)[:, None] - mean_gram)
        M2, Q2 = _second_order(structure, parameters, path, noise.rows, gram, -scale)
    T2 = jnp.swapaxes(jax.vmap(solve_forward)(parameters["frame"], jnp.swapaxes(M2, -1, -2)), -1, -2)
    cross = rows[..., :k] @ jnp.swapaxes(T2, -1, -2)
    half = jax.vmap(solve_forward)(L, Q2 - cross - jnp.swapaxes(cross, -1, -2))
    X = X + jax.vmap(solve_forward)(L, jnp.swapaxes(half, -1, -2))
    rows = rows.at[..., :k].add(T2)
    values, vectors = jnp.linalg.eigh((X + jnp.swapaxes(X, -1, -2)) / 2)
    L = L @ (vectors * jnp.exp(jnp.arcsinh(values) / 2)[:, None, :])
    rows = jnp.concatenate([rows[..., :k], L], axis=-1)
    if structure.sphere:
        rows = rows / jnp.sqrt(jnp.einsum("bim,bim->i", rows, rows))[:, None]
    return Path(rows, head)


def _folded(rest: Any) -> Any:
    """A lower-triangular L with the Gram matrix of `rest` (blocks, p, columns)."""
    return jnp.swapaxes(jnp.linalg.qr(jnp.swapaxes(rest, -1, -2), mode="r"), -1, -2)


def refuse_without_noise(problem: Problem) -> None:
    """At snr = infinity the drift jumps where a unit is orthogonal to a cluster, and neither the scheme nor the SDE has a meaning there.

    The units that matter are drawn to these surfaces and stay on them (`limits.sliding`). There drift and noise both jump, and what a path
    does depends on the step length: XOR, width 4, d = 1000, t = 5, an overlap that the ODE holds at 0 and runs at 0 to 1e-4 is -0.018 with
    steps of 0.25 and -0.003 with steps of 0.06, an error that no estimate of the noiseless path sees. Only steps as short as those of
    SGD itself, lr/d, would do, and those are what `simulate` makes.
    """
    if spectrum.noiseless(problem.parameters):
        raise checks.reject(
            "snr",
            np.inf,
            "without noise the drift jumps where a unit is orthogonal to a cluster, and an SDE has no meaning there: use solve_ode "
            "(d -> infinity), simulate (exact at any d), or a finite snr",
        )


class SdePaths(Simulator):
    """Paths of the SDE; a step of the simulator is one step of the scheme, whose length depends on the interval between save points."""

    def __init__(
        self,
        problem: Problem,
        algorithm: OnePassSGD,
        begin: Start,
        dimension: int,
        sizes: np.ndarray,
        higher_order: bool,
        amount: float = 1.0,
    ) -> None:
        self.structure = problem.structure
        self.rule = rule_for(problem, begin.Q_blocks, MARGIN)
        nodes = nodes_for(self.structure, self.rule, flow=False)
        self.nodes = {name: value[0] for name, value in nodes.items()}
        self.parameters = problem.parameters
        self.algorithm = algorithm.parameters
        self.higher_order = higher_order
        inside = self.structure.fields if higher_order else 0
        self.numbers = {
            "noise_rate": np.float64(0.0 if algorithm.scheduled else algorithm.lr / algorithm.batch),
            "batch": np.float64(algorithm.batch),
            "inverse_dimension": np.float64(1.0 / dimension),
            "outside": (sizes - inside) / dimension,
            "shares": sizes / dimension,
            "amount": np.float64(amount),
        }
        T, L = factor(problem, begin)
        self.rows = np.concatenate([T, L], axis=-1)
        self.head = begin.a
        self.edges = np.array([0, np.iinfo(np.int64).max])
        self.lengths = np.array([np.nan])
        self.begins = np.zeros(1)

    def set_steps(self, edges: np.ndarray, lengths: np.ndarray) -> None:
        """Steps edges[i]..edges[i+1] have length lengths[i], in t; in alpha where lr is a schedule."""
        room = power_of_two(len(lengths)) - len(lengths)
        self.edges = np.concatenate([edges, np.full(room, np.iinfo(np.int64).max)])
        self.lengths = np.concatenate([lengths, np.full(room, lengths[-1])])
        self.begins = np.concatenate([[0.0], np.cumsum(np.diff(edges) * lengths)[:-1], np.zeros(room)])

    def initial(self, chosen: np.ndarray) -> Any:
        return Path(jnp.asarray(self.rows[chosen]), jnp.asarray(self.head[chosen]))

    def advance(
        self, state: Any, keys: Any, begin: int, end: int, seen: Any = None, see: See | None = None, given: Any = None
    ) -> tuple[Any, Any, Any]:
        numbers = (self.nodes, self.parameters, self.algorithm, self.numbers, self.edges, self.lengths, self.begins)
        plan = (self.structure, self.rule, self.higher_order)
        return _advance(plan, see, numbers, state, keys, np.int64(begin), np.int64(end), seen, given)

    def overlaps(self, state: Any) -> dict[str, Any]:
        return _path_overlaps(self.structure, self.parameters, state)

    @property
    def grain(self) -> int:
        return 1


@partial(jax.jit, static_argnums=0)
def _path_overlaps(structure: Structure, parameters: Any, state: Path) -> dict[str, Any]:
    M, Q = jax.vmap(lambda rows: _overlaps(structure, parameters, rows))(state.rows)
    return {"M": M, "Q": Q, "a": state.head}


@partial(jax.jit, static_argnums=(0, 1))
def _advance(
    plan: tuple[Any, ...], see: See | None, given: tuple[Any, ...], state: Path, keys: Any, begin: Any, end: Any, seen: Any, watched: Any
) -> tuple[Path, Any, Any]:
    nodes, parameters, algorithm, numbers, edges, lengths, begins = given

    def step(number: Any, carry: tuple[Path, Any, Any]) -> tuple[Path, Any, Any]:
        state, last_good, seen = carry
        place = jnp.searchsorted(edges, number, side="right") - 1
        length, middle = lengths[place], begins[place] + (number - edges[place] + 0.5) * lengths[place]
        in_alpha = isinstance(algorithm["lr"], Schedule)  # steps are in alpha then, and in t elsewhere
        now, rates = numbers_at((parameters, algorithm), middle if in_alpha else middle * numbers["batch"] / algorithm["lr"])
        scales = {**numbers, "noise_rate": rates["lr"] / numbers["batch"]}
        length = length * scales["noise_rate"] if in_alpha else length

        def one(path: Path, key: Any, seen: Any) -> tuple[Path, Any]:
            key = jax.random.fold_in(key, number)
            path = sde_step(*plan, nodes, now, rates, scales, path, length, key)
            if see is not None:
                M, Q = _overlaps(plan[0], parameters, path.rows)
                seen = see(watched, seen, number + 1, {"M": M, "Q": Q, "a": path.head})
            return path, seen

        state, seen = jax.vmap(one)(state, keys, seen)
        fine = jnp.all(jnp.abs(state.rows) < LARGEST, axis=(1, 2, 3)) & jnp.all(jnp.abs(state.head) < LARGEST, axis=1)
        return state, jnp.where(fine, number + 1, last_good), seen

    return jax.lax.fori_loop(begin, end, step, (state, jnp.broadcast_to(begin, keys.shape), seen))


def step_length(
    problem: Problem, algorithm: OnePassSGD, begin: Start, dimension: int, sizes: np.ndarray, end: float
) -> tuple[float, float]:
    """A step length whose error on the noiseless path from the first start is below STEP_TOLERANCE, and that error."""
    first = Start(begin.M_blocks[:1], begin.Q_blocks[:1], begin.a[:1])
    simulator = SdePaths(problem, algorithm, first, dimension, sizes, True, amount=0.0)
    times = np.linspace(0, end, 17)
    before = None
    count, error = FIRST_STEPS, np.inf
    while True:
        edges, lengths = plan_steps(times, end / count)
        simulator.set_steps(edges, lengths)
        overlaps, _ = run(simulator, 1, edges, 0, "step length", False)
        # in t, with the numbers of the start, or in alpha: a scale for the error, no more
        risk, _ = risk_in_time(problem, overlaps, np.zeros(len(edges)))
        if before is not None:
            error = float(np.max(np.abs(risk - before)) / np.max(np.abs(before)))
            # of second order: this path is off by a third of what the halving changed
            if error / 3 <= STEP_TOLERANCE or count >= MOST_STEPS:
                return end / count, error / 3
        before, count = risk, 2 * count


@float64
def solve_sde(
    problem: Problem | SpikedTensor,
    algorithm: OnePassSGD,
    start: Start | SpikedStart,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: int,
    runs: int | None = None,
    seed: int = 0,
    higher_order: bool = True,
    step: float | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Paths of the SDE at dimension d: the drift of the ODE, and noise sqrt(lr/d) times a root of the covariance of one sample's increment.

    higher_order=True keeps the drift of relative order 1/d that the noise makes (the mean increment of a real step; on the sphere the
    Ito terms of normalising); False leaves the drift of the d -> infinity ODE. `step`: the longest step of the scheme in t; unless given,
    one whose error on the noiseless path is below 2e-3 (attribute `error_integrator`); with a schedule it counts alpha.
    A start of one run serves any number of runs.
    Source: Escaping mediocrity, (27), (60)-(62), there for width 1.
    """
    if isinstance(problem, SpikedTensor):
        when = {"times": times, "alpha": alpha, "steps": steps}
        rest = {"dimension": dimension, "runs": runs, "seed": seed, "higher_order": higher_order, "step": step, "progress": progress}
        return solve_spiked_sde(problem, algorithm, start, **when, **rest)
    checks.outside_jit("solve_sde")
    checked_kind(problem)
    checked_algorithm(algorithm)
    higher_order = checks.flag("higher_order", higher_order)
    progress = checks.flag("progress", progress, unsaid=True)
    refuse_without_noise(problem)
    d, sizes = check_dimension(problem, dimension)
    seed = checks.whole("seed", seed, 0)
    when = clock(algorithm, times=times, alpha=alpha, steps=steps, dimension=d, whole_steps=False)
    problem.check_numbers(0.0 if when.alpha is None else when.alpha[-1])
    if algorithm.flow:
        raise checks.reject("lr", algorithm.lr, "gradient flow has no noise: use solve_ode")
    variable = when.alpha if algorithm.scheduled and when.alpha is not None else when.t
    if step is not None:
        step = checks.number("step", step, above=0.0)
        plan_steps(variable, step)  # refuses more steps than anybody can wait for
    begin = broadcast_runs(checked_start(problem, start), runs)
    simulator = SdePaths(problem, algorithm, begin, d, sizes, higher_order)
    error = None
    if variable[-1] == 0.0:
        edges = np.array([0])
    else:
        if step is None:
            longest, error = step_length(problem, algorithm, begin, d, sizes, float(variable[-1]))
        else:
            longest = step
        edges, lengths = plan_steps(variable, longest)
        simulator.set_steps(edges, lengths)
    saves = edges[-len(when.t) :]
    overlaps, last = run(simulator, begin.runs, saves, seed, f"SDE, d = {d}", progress)
    risk, quadrature = risk_in_time(problem, overlaps, when.alpha)
    ends = reached(edges, lengths, np.maximum(last, 0)) if len(edges) > 1 else np.zeros(begin.runs)
    if algorithm.scheduled:
        order = np.argsort(ends)
        ends[order] = elapsed(algorithm, ends[order])
    diverged_at = np.where(last >= 0, ends, np.nan)
    if np.any(last >= 0):
        warnings.warn(
            f"{int((last >= 0).sum())} of {begin.runs} paths diverged, the first after t = {np.nanmin(diverged_at):.4g} "
            "(coordinate diverged_at); a smaller lr or step may help",
            stacklevel=3,
        )
    spread = risk.std(axis=0, ddof=1) / np.sqrt(begin.runs) if begin.runs > 1 and not np.any(last >= 0) else None
    attributes = {
        "seed": seed,
        "dimension": d,
        "higher_order": int(higher_order),
        "assumptions": "Gaussian inputs, one pass, Gaussian fluctuations",
        "error_quadrature": quadrature,
        "error_integrator": error,
        "error_sampling": None if spread is None else largest_share(spread, risk.mean(axis=0)),
    }
    return trajectory(problem, algorithm, when, overlaps, risk, diverged_at=diverged_at, method="solve_sde", attributes=attributes)
