"""Updates with memory, Muon, adaptive steps, weight decay and gradient noise.

Each update agrees with its definition in NumPy, and the exact chain and direct runs have one law.
The definitions are those in the docstrings of ``sgd.updates``, applied to Z = [W | a], where the
head a is the last column.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.muon import newton_schulz_of, polar
from sgdynamics.algorithms.updates.update import MAKERS, count_row_sets
from sgdynamics.problems.frames import compressed_rows, place_signals
from sgdynamics.results.records import algorithm_from
from sgdynamics.samples.inputs import Embedding
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_batch import segment_inputs, segment_kicks
from sgdynamics.simulation.chain_steps import chain_step
from sgdynamics.simulation.direct import direct_step
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.span_draws import SpanDraws
from tests.conftest import same_law
from tests.simulation.test_updates import assert_same_law, network, simulate_network

U = sgd.updates
LR, HEAD_RATE, D, DECAY = 0.6, 0.8, 13, 0.3
BOTH = ("fixed", "trained")
S_M, S_Q = np.array([[0.4], [0.1]]), np.array([[1.0, 0.2], [0.2, 0.8]])

# Name: the update, its heads, and whether its gradients include the weight decay of a problem.
EQUIVARIANT = {
    "momentum": (U.momentum(memory=3.0), BOTH, True),
    "nesterov": (U.nesterov(0.7), BOTH, True),
    "nesterov, slow": (U.nesterov(memory=3.0), BOTH, True),
    "average": (U.average(2.0), BOTH, True),
    "polyak": (U.polyak(), BOTH, True),
    "schedule_free": (U.schedule_free(0.8), BOTH, True),
    "dana": (U.dana(1.5, delta=4.0, offset=0.5), BOTH, True),
    "clipped, row": (U.clipped(0.2, over="row"), BOTH, False),
    "clipped, sample": (U.clipped(0.2, over="sample"), BOTH, False),
    "sam, reach": (U.sam(reach=0.5), BOTH, False),
    "muon": (U.muon(), ("fixed",), False),
    "muon, newton_schulz": (U.muon(newton_schulz=True), ("fixed",), False),
    "muon, slow": (U.muon(memory=3.0), ("fixed",), False),
    "muon, slow newton_schulz": (U.muon(memory=3.0, newton_schulz=True), ("fixed",), False),
    "muon, fast": (U.muon(beta=0.6), ("fixed",), False),
    "adagrad_norm": (U.adagrad_norm(0.1), BOTH, False),
    "decay": (U.weight_decay(0.4), BOTH, False),
    "decay, momentum": (U.weight_decay(0.4, of=U.momentum(0.7)), BOTH, True),
    "decay inside, momentum": (
        U.weight_decay(0.4, of=U.momentum(0.7), decoupled=False),
        BOTH,
        True,
    ),
    "decay inside, clipped": (U.weight_decay(0.4, of=U.clipped(0.2), decoupled=False), BOTH, False),
    "decay, average": (U.weight_decay(0.4, of=U.average(2.0)), BOTH, True),
    "decay, schedule_free": (U.weight_decay(0.4, of=U.schedule_free(0.8)), BOTH, True),
    "noise": (U.gradient_noise(0.7), BOTH, False),
    "noise, clipped sample": (U.gradient_noise(0.7, of=U.clipped(0.2, over="sample")), BOTH, False),
}
COORDINATEWISE = {
    "sign": U.sign(),
    "adam": U.adam(4.0, eps=0.02),
    "adamw": U.adam(4.0, eps=0.02, weight_decay=0.3, beta=0.6),
    "rmsprop": U.rmsprop(4.0, eps=0.1),
    "adagrad": U.adagrad(0.5, eps=0.01),
}


# ------------------------------------------------------------------------------- pathwise agreement


class Batch:
    """Gradients of phase retrieval at Z = [W | a] for one batch in d dimensions.

    A fixed head has gradient zero.
    """

    def __init__(self, problem, x, noise, kicks=None, spread=1.0):
        self.x, self.trained, self.p = x, problem.head == "trained", problem.width
        self.y = (x @ self.signal(x.shape[1])) ** 2 + np.sqrt(problem.noise) * noise
        self.kicks = None if kicks is None else np.pad(kicks, ((0, 0), (0, 1)))

    @staticmethod
    def signal(d):
        return np.eye(d)[0]

    def sample_gradients(self, Z):
        fields, a = self.x @ Z[:, :-1].T, Z[:, -1]
        error = fields**2 @ a / self.p - self.y
        G = 2 / self.p * (error[:, None] * a * fields)[:, :, None] * self.x[:, None]
        g = error[:, None] * fields**2 / self.p * self.trained
        return np.concatenate([G, g[:, :, None]], axis=2)

    def __call__(self, Z):
        return self.sample_gradients(Z).mean(axis=0)


def map_singular_values(G, function):
    """Return U f(s) V^T for the singular values s of the weights' columns, and 0 for the head."""
    left, s, right = np.linalg.svd(G[:, :-1], full_matrices=False)
    return np.pad((left * function(s)) @ right, ((0, 0), (0, 1)))


def quintic(s):
    """Five Newton-Schulz iterations on singular values, normalised by their Frobenius norm."""
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def ones(s):
    return (s > 1e-9 * s[0]).astype(float)


def norm(G, axis=None):
    return np.sqrt(np.sum(G**2, axis=axis, keepdims=axis is not None))


def reference(name, problem, Z, iterate, batches):
    """Z after the steps of an update by its definition; the head has head_rate times the rate."""
    rate = np.r_[np.ones(D), HEAD_RATE * (problem.head == "trained")] / D
    decay = problem.weight_decay
    V, b2, theta = np.zeros_like(Z), D**2 * 0.1, 0.2 * np.sqrt(D)
    for number, batch in enumerate(batches, start=1):

        def decayed_gradient(Z, batch=batch, extra_decay=0.0):
            return batch(Z) + (decay + extra_decay) * Z

        def clip(G, axis=None):
            return G * np.minimum(1, theta / norm(G, axis))

        match name:
            case "momentum":
                V = (1 - 3 / D) * V + 3 / D * decayed_gradient(Z)
                Z = Z - LR * rate * V
            case "nesterov":
                G = decayed_gradient(Z)
                V = 0.7 * V + G
                Z = Z - LR * rate * (G + 0.7 * V)
            case "nesterov, slow":
                G = decayed_gradient(Z)
                V = (1 - 3 / D) * V + 3 / D * G
                Z = Z - LR * rate * (3 / D * G + (1 - 3 / D) * V)
            case "average":
                iterate = iterate - LR * rate * decayed_gradient(iterate)
                Z = Z + 2 / D * (iterate - Z)
            case "polyak":
                iterate = iterate - LR * rate * decayed_gradient(iterate)
                Z = ((number - 1) * Z + iterate) / number
            case "schedule_free":
                iterate = iterate - LR * rate * decayed_gradient(0.2 * iterate + 0.8 * Z)
                Z = ((number - 1) * Z + iterate) / number
            case "dana":
                G = decayed_gradient(Z)
                V = (1 - 4 / (D * 0.5 + number - 1)) * V + G / D
                Z = Z - LR * rate * G - 1.5 * rate * V
            case "clipped, row":
                Z = Z - LR * rate * (clip(batch(Z), 1) + decay * Z)
            case "clipped, sample":
                Z = Z - LR * rate * (
                    np.mean([clip(G) for G in batch.sample_gradients(Z)], axis=0) + decay * Z
                )
            case "sam, reach":
                G = batch(Z)
                Z = Z - LR * rate * (batch(Z + 0.5 / np.sqrt(D) * G / norm(G)) + decay * Z)
            case "muon" | "muon, newton_schulz":
                G = map_singular_values(batch(Z), ones if name == "muon" else quintic)
                Z = Z - LR * rate * (np.sqrt(D) * G + decay * Z)
            case "muon, slow" | "muon, slow newton_schulz":
                V = (1 - 3 / D) * V + 3 / D * batch(Z)
                Z = Z - LR * rate * (
                    map_singular_values(V, ones if name == "muon, slow" else quintic) + decay * Z
                )
            case "muon, fast":
                V = 0.6 * V + batch(Z)
                Z = Z - LR * rate * (np.sqrt(D) * map_singular_values(V, ones) + decay * Z)
            case "adagrad_norm":
                G = batch(Z)
                b2 = b2 + norm(G) ** 2
                Z = Z - LR * rate * (D * G / np.sqrt(b2) + decay * Z)
            case "decay":
                Z = Z - LR * rate * (batch(Z) + (decay + 0.4) * Z)
            case "decay, momentum":
                V = 0.7 * V + decayed_gradient(Z)
                Z = Z - LR * rate * (V + 0.4 * Z)
            case "decay inside, momentum":
                V = 0.7 * V + decayed_gradient(Z, extra_decay=0.4)
                Z = Z - LR * rate * V
            case "decay inside, clipped":
                Z = Z - LR * rate * (clip(batch(Z) + 0.4 * Z) + decay * Z)
            case "decay, average":
                iterate = iterate - LR * rate * (decayed_gradient(iterate) + 0.4 * iterate)
                Z = Z + 2 / D * (iterate - Z)
            case "decay, schedule_free":
                iterate = iterate - LR * rate * (
                    decayed_gradient(0.2 * iterate + 0.8 * Z) + 0.4 * iterate
                )
                Z = ((number - 1) * Z + iterate) / number
            case "noise":
                Z = Z - LR * rate * (batch(Z) + 0.7 * batch.kicks + decay * Z)
            case "noise, clipped sample":
                Z = Z - LR * rate * (
                    np.mean([clip(G) for G in batch.sample_gradients(Z)], axis=0)
                    + 0.7 * batch.kicks
                    + decay * Z
                )
            case _:
                raise AssertionError(name)
    return Z


def problem_of(head):
    return sgd.TeacherStudent(
        width=2, activation="square", noise=0.2, head=head, weight_decay=DECAY
    )


# Each update compiles a program of its own. The tests of these are fast tests.
FAST = (
    "schedule_free",
    "clipped, sample",
    "muon, slow",
    "decay, average",
    "noise, clipped sample",
)
PATHWISE = [
    pytest.param(name, heads[-1], marks=() if name in FAST else pytest.mark.slow)
    for name, (_, heads, _) in EQUIVARIANT.items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), PATHWISE)
@pytest.mark.parametrize("batch", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_pathwise_against_the_definition(name, head, batch):
    """Three steps in d dimensions and in the compressed frame agree with the definition to 1e-12.

    The steps are not compiled, because each update would be a program of its own.
    """
    update, _, decay_inside = EQUIVARIANT[name]
    problem = problem_of(head)
    assert update.law.decay_inside == decay_inside
    start = update_start(update, sgd.random_start(problem, dimension=40, seed=5))
    T, L = (array[0] for array in compressed_rows(problem, start))
    steps, p = 3, 2
    layout = Layout(problem.structure, batch, update=update.law)
    kick_count, inside, columns = layout.kicks, layout.inside, layout.columns
    generator = np.random.default_rng(3)
    x, noise = (
        generator.standard_normal((layout.steps, batch, D)),
        generator.standard_normal((layout.steps, batch)),
    )
    kicks = generator.standard_normal((layout.steps, kick_count, D)) if kick_count else None
    gaussians = x if kicks is None else np.concatenate([x, kicks], axis=1)
    # A rotation outside of the frame changes nothing, so the outside inputs are replaced by the
    # lower-triangular factor of their Gram matrix.
    outside = np.linalg.qr(
        np.pad(
            gaussians[..., inside:].reshape(columns, -1),
            ((0, 0), (0, max(0, columns - D + inside))),
        ).T,
        mode="r",
    ).T
    algorithm = sgd.OnePassSGD(lr=LR, batch=batch, head_rate=HEAD_RATE, update=update).parameters
    parameters, embedding = (problem.parameters, algorithm), place_signals(problem, np.array([D]))
    batches = [
        Batch(problem, x[index], noise[index], None if kicks is None else kicks[index])
        for index in range(layout.steps)
    ]

    W = np.zeros((len(start.a[0]), D))
    W[:, : T.shape[-1] + L.shape[-1]] = np.concatenate([T[0], L[0]], axis=1)
    for memory_rows in W[p:].reshape(-1, p, D):
        # Rows of the memory that are not at rest start as the weights. The factor of a singular
        # Gram matrix has the square root of the rounding error.
        np.testing.assert_allclose(memory_rows, W[:p], atol=1e-7)
        np.testing.assert_allclose(memory_rows @ W[:p].T, W[:p] @ W[:p].T, atol=1e-14)
    sets = count_row_sets(update.law) * p
    padding = sets - len(W)
    with jax.enable_x64(True):
        scalars = tuple(jnp.asarray(scalar) for scalar in start.scalars[0])
        direct = Rows(
            jnp.pad(W, ((0, padding), (0, 0))),
            jnp.pad(jnp.asarray(start.a[0]), (0, padding)),
            scalars,
        )
        chain = compressed.initial_rows(
            layout, jnp.asarray(T), jnp.asarray(L), jnp.asarray(start.a[0]), scalars
        )
        draws = SpanDraws(x[:, :, None, :inside], noise[..., None], outside[None])
        if kick_count:
            draws = draws._replace(kicks=kicks[:, :, None, :inside])
        inputs, labels = segment_inputs(layout, problem.parameters, draws)
        kick_inputs = segment_kicks(layout, draws)
        completed_steps = min(steps, layout.steps)
        for number in range(completed_steps):
            step_kicks = None if kick_inputs is None else kick_inputs[number]
            direct = direct_step(
                problem.structure,
                parameters,
                LR / D,
                direct,
                jnp.asarray(x[number]),
                jnp.asarray(noise[number]),
                embedding,
                update.law,
                number,
                kicks=None if kicks is None else jnp.asarray(kicks[number]),
            )
            chain = chain_step(
                layout,
                parameters,
                LR / D,
                chain,
                (inputs[number], labels[number], draws.outside, step_kicks),
                float(D),
                number,
            )
        overlaps = compressed.overlaps_with_memory(layout, problem.parameters, chain)
    expected = reference(
        name,
        problem,
        np.c_[W[:p], start.a[0, :p]],
        np.c_[W[-p:], start.a[0, -p:]],
        batches[:completed_steps],
    )
    assert np.abs(expected[:, :-1] - W[:p]).max() > 1e-3
    np.testing.assert_allclose(direct.rows[:p], expected[:, :-1], atol=1e-12)
    np.testing.assert_allclose(direct.head[:p], expected[:, -1], atol=1e-12)
    rows = np.asarray(direct.rows)
    for overlap_name, expected_overlap in (
        ("M", rows[:p, :1]),
        ("Q", rows[:p] @ rows[:p].T),
        ("rows_M", rows[:, :1]),
        ("rows_Q", rows @ rows.T),
    ):
        if overlap_name in overlaps:
            np.testing.assert_allclose(overlaps[overlap_name][0], expected_overlap, atol=1e-12)
    np.testing.assert_allclose(overlaps["a"], expected[:, -1], atol=1e-12)
    for chain_scalar, direct_scalar in zip(chain.scalars, direct.scalars, strict=True):
        assert float(chain_scalar) == pytest.approx(float(direct_scalar), abs=1e-13)


def coordinatewise_reference(name, problem, W, batches):
    """Weights and running squares after the steps of an update by its definition."""
    c, eps, decay = 4 / D, 0.02, problem.weight_decay
    V, S = np.zeros_like(W), np.zeros_like(W) + 0.5 * (name == "adagrad")
    for number, batch in enumerate(batches, start=1):
        G = batch(np.c_[W, np.ones(2)])[:, :-1]
        match name:
            case "sign":
                step = np.sign(G)
            case "adam" | "adamw":
                beta, decay_rate = (0.9, 0.0) if name == "adam" else (0.6, 0.3)
                V, S = beta * V + (1 - beta) * G, (1 - c) * S + c * G**2
                step = (
                    V / (1 - beta**number) / (np.sqrt(S / (1 - (1 - c) ** number)) + eps)
                    + decay_rate * W
                )
            case "rmsprop":
                S = (1 - c) * S + c * G**2
                step = G / (np.sqrt(S) + 0.1)
            case "adagrad":
                S = S + G**2 / D
                step = G / (np.sqrt(S) + 0.01)
        W = W - LR / D * (step + decay * W)
    return W, S


def coordinatewise_runs(update, problem, W, x, noise):
    """Weights and squares after direct steps of the library; the signal is the first axis."""
    algorithm = sgd.OnePassSGD(lr=LR, batch=x.shape[1], update=update).parameters
    start = update_start(update, sgd.start(problem, M=np.zeros((2, 1)), Q=np.eye(2)))
    embedding, sets = place_signals(problem, np.array([D])), count_row_sets(update.law)
    with jax.enable_x64(True):
        squares = tuple(
            jnp.asarray(np.repeat(initial[:, None], D, axis=1)) for initial in start.squares[0]
        )
        scalars = tuple(jnp.asarray(scalar) for scalar in start.scalars[0])
        state = Rows(
            jnp.pad(W, ((0, 2 * (sets - 1)), (0, 0))),
            jnp.pad(jnp.ones(2), (0, 2 * (sets - 1))),
            scalars,
            squares,
        )
        for index in range(len(x)):
            sample = (jnp.asarray(x[index]), jnp.asarray(noise[index]))
            state = direct_step(
                problem.structure,
                (problem.parameters, algorithm),
                LR / D,
                state,
                *sample,
                embedding,
                update.law,
                index,
            )
    return np.asarray(state.rows[:2]), [np.asarray(squares) for squares in state.squares]


def draw_batches(batch=2, steps=4):
    """Initial weights, inputs and label noise of a few batches."""
    generator = np.random.default_rng(8)
    W = 0.4 * generator.standard_normal((2, D))
    return (
        W,
        generator.standard_normal((steps, batch, D)),
        generator.standard_normal((steps, batch)),
    )


@pytest.mark.parametrize("name", COORDINATEWISE)
def test_coordinatewise_updates_pathwise(name):
    problem, (W, x, noise) = problem_of("fixed"), draw_batches()
    weights, squares = coordinatewise_runs(COORDINATEWISE[name], problem, W, x, noise)
    expected, S = coordinatewise_reference(
        name, problem, W, [Batch(problem, *sample) for sample in zip(x, noise, strict=True)]
    )
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    for running_squares in squares:
        np.testing.assert_allclose(running_squares, S, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in COORDINATEWISE if name != "sign"])
def test_coordinatewise_updates_agree_with_torch(name):
    torch = pytest.importorskip("torch")
    problem, (W, x, noise) = problem_of("fixed").replace(weight_decay=0.0), draw_batches()
    result, _ = coordinatewise_runs(COORDINATEWISE[name], problem, W, x, noise)
    weights = torch.tensor(W, dtype=torch.float64, requires_grad=True)
    optimiser = {
        "adam": lambda: torch.optim.Adam([weights], lr=LR / D, betas=(0.9, 1 - 4 / D), eps=0.02),
        "adamw": lambda: torch.optim.AdamW(
            [weights], lr=LR / D, betas=(0.6, 1 - 4 / D), eps=0.02, weight_decay=0.3
        ),
        "rmsprop": lambda: torch.optim.RMSprop([weights], lr=LR / D, alpha=1 - 4 / D, eps=0.1),
        "adagrad": lambda: torch.optim.Adagrad(
            [weights], lr=LR / np.sqrt(D), initial_accumulator_value=0.5 * D, eps=0.01 * np.sqrt(D)
        ),
    }[name]()
    for sample in zip(x, noise, strict=True):
        weights.grad = torch.tensor(
            Batch(problem, *sample)(np.c_[weights.detach().numpy(), np.ones(2)])[:, :-1]
        )
        optimiser.step()
    np.testing.assert_allclose(result, weights.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_polar_factors(p):
    """Polar factors agree with the singular value decomposition for full, lower and zero rank."""
    generator = np.random.default_rng(p)
    wide = generator.standard_normal((p, 7))
    with jax.enable_x64(True):
        for G in (wide, 1e-9 * wide, np.outer(np.arange(1, p + 1), wide[0]), 0 * wide):
            rank = np.linalg.matrix_rank(G, tol=1e-12 * max(1e-12, norm(G)))
            left, s, right = np.linalg.svd(G, full_matrices=False)
            np.testing.assert_allclose(
                polar(jnp.asarray(G)),
                left[:, :rank] @ right[:rank],
                atol=1e-7 if rank < p else 1e-12,
            )
            if rank:
                np.testing.assert_allclose(
                    newton_schulz_of(jnp.asarray(G)), (left * quintic(s)) @ right, atol=1e-12
                )
        # Images of the singular values 1, 1/2, 1/10 of a matrix of norm 1 under the polynomial.
        for share, expected in ((1.0, 0.69643641), (0.5, 0.76543853), (0.1, 0.71212008)):
            G = np.array([[share, 0.0], [0.0, np.sqrt(1 - share**2)]])
            assert float(newton_schulz_of(jnp.asarray(G))[0, 0]) == pytest.approx(
                expected, abs=1e-8
            )


@pytest.mark.parametrize("name", [*EQUIVARIANT, *COORDINATEWISE])
def test_float32_stays_float32(name):
    update = COORDINATEWISE[name] if name in COORDINATEWISE else EQUIVARIANT[name][0]
    problem = sgd.TeacherStudent(
        width=2, activation="square", head="trained" if update.law.trains_head else "fixed"
    )
    rows, cast = 2 * count_row_sets(update.law), partial(np.asarray, dtype=np.float32)
    parameters = [
        jax.tree.map(cast, tree)
        for tree in (problem.parameters, sgd.OnePassSGD(update=update).parameters)
    ]
    scalars = tuple(np.ones((), np.float32) for _ in update.law.scalars)
    squares = tuple(np.ones((2, D), np.float32) for _ in update.law.squares)
    trained = problem.structure.trained
    vectors = tuple(np.ones(2, np.float32) for _ in update.law.vector_names(trained))
    state = Rows(
        np.zeros((rows, D), np.float32),
        np.zeros(rows, np.float32),
        scalars,
        squares,
        vectors=vectors,
    )
    embedding = Embedding(
        *(
            cast(array) if array.dtype.kind == "f" else array
            for array in place_signals(problem, np.array([D]))
        )
    )

    def step(parameters, algorithm, state, x, noise, kicks):
        return direct_step(
            problem.structure,
            (parameters, algorithm),
            cast(0.1),
            state,
            x,
            noise,
            embedding,
            update.law,
            3,
            kicks=kicks,
        )

    with jax.enable_x64(True):
        state = jax.eval_shape(
            step,
            *parameters,
            state,
            np.zeros((1, D), np.float32),
            np.zeros(1, np.float32),
            np.zeros((2, D), np.float32),
        )
    assert {str(array.dtype) for array in jax.tree.leaves(state)} == {"float32"}


# --------------------------------------------------------------------------------- agreement in law


@pytest.mark.parametrize(("batch", "blocks"), [(1, False), (3, True)])
@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.slow
def test_exact_and_direct_agree_in_law(name, batch, blocks):
    """2000 runs with each method, for one sample per step and for batches of 3 with two blocks.

    A batch of 3 exceeds the 2 units, so the chain combines samples or keeps a column for each.
    """
    update, heads, _ = EQUIVARIANT[name]
    options = {"covariance": [(2.0, 0.4), (0.5, 0.6)]} if blocks else {}
    problem = network(head=heads[-1], **options)
    exact, direct = (
        simulate_network(
            update, method, problem, batch=batch, d=30 if blocks else 20, steps=(1, 30)
        )
        for method in ("exact", "direct")
    )
    assert_same_law(exact, direct)
    for variable in ("rows_Q", "update_scalars"):
        if variable in exact:
            exact_sample, direct_sample = (
                np.asarray(result[variable])[:, -1].reshape(2000, -1).T
                for result in (exact, direct)
            )
            for index, pair in enumerate(zip(exact_sample, direct_sample, strict=True)):
                same_law(*pair, f"{variable}[{index}]")


# ------------------------------------------------------------------------- continuation and records


def continued_call(update, method, problem):
    """A solver call, and the times of its first part, of the whole, and of its second part."""
    algorithm = sgd.OnePassSGD(lr=1.0, update=update)
    if method == "ode":
        call = partial(sgd.solve_ode, problem, algorithm, rtol=1e-10, atol=1e-12)
        return call, [0.0, 0.4], [0.0, 0.4, 1.0], [0.0, 0.6]
    call = partial(sgd.simulate, problem, algorithm, dimension=40, seed=3, method=method)
    return call, [0.0, 0.5], None, [0.0, 0.25]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adam", "polyak", "adagrad_norm", "adagrad"])
def test_start_from_continues(name):
    """An ODE in two parts equals the whole one, and runs start with all stored variables."""
    update = COORDINATEWISE[name] if name in COORDINATEWISE else EQUIVARIANT[name][0]
    problem = sgd.TeacherStudent(width=2, teacher_width=1, activation="erf", noise=0.25)
    start = sgd.start(problem, M=S_M, Q=S_Q)
    call, first_times, all_times, remaining_times = continued_call(update, "ode", problem)
    first, whole = call(start, times=first_times), call(start, times=all_times)
    second = call(sgd.start_from(first), times=remaining_times)
    for variable in ("M", "Q", "risk", "rows_M", "rows_Q", "update_scalars", "update_squares"):
        assert (variable in whole) == (variable in second)
        if variable in whole:
            np.testing.assert_allclose(second[variable][:, -1], whole[variable][:, -1], atol=1e-8)
    method = "direct" if name in COORDINATEWISE else "exact"
    call, first_times, _, remaining_times = continued_call(update, method, problem)
    first = call(start, times=first_times, runs=3)
    second = call(sgd.start_from(first), times=remaining_times)
    for variable in ("M", "Q", "rows_M", "rows_Q", "update_scalars", "update_squares"):
        if variable in first:
            np.testing.assert_allclose(second[variable][:, 0], first[variable][:, -1], atol=1e-12)


# Updates of single samples of a data set
OF_SAMPLES = [U.saga(), U.svrg(5), U.pdhg(0.5)]


def all_updates():
    updates = [update for update, _, _ in EQUIVARIANT.values()] + list(COORDINATEWISE.values())
    nested = U.weight_decay(0.1, of=U.weight_decay(0.2, of=U.adam(3.0), decoupled=False))
    return [
        *updates,
        nested,
        U.momentum(0.5),
        U.reuse(2),
        U.normalised(),
        U.clipped(0.3),
        U.sam(0.1),
        U.adam(2.0, beta=0.0),
        U.inertia(0.5, temperature=0.1),
        U.row_adam(2, memory=1.0),
        U.delayed(per_dimension=0.5),
        U.delayed(steps=3),
        U.sparse(share=0.2),
        U.sparse(per_step=2.0),
        *OF_SAMPLES,
        U.separate(rows=U.momentum(0.9), head=U.adam(2.0)),
        U.separate(head={"b": U.muon(memory=2.0), "c": U.adam(2.0, velocity_memory=3.0)}),
    ]


def test_records_of_every_update():
    """An algorithm equals the one restored from its record.

    An update whose hyperparameters are replaced by themselves equals the original.
    """
    missing = set(MAKERS) - {update.kind for update in all_updates()}
    assert all(not hasattr(U, name) for name in missing), missing
    for update in all_updates():
        if update in OF_SAMPLES:
            algorithm = sgd.GradientDescent(lr=0.3, update=update)
        else:
            algorithm = sgd.OnePassSGD(lr=0.3, batch=2, update=update)
        record = algorithm.describe()
        assert record.get("rerunnable", True)
        restored = algorithm_from(record)
        assert restored.update == update, update
        assert restored.describe() == record
        assert update.replace(**dict(update.numbers)) == update
    assert U.clipped(0.3, over="row") != U.clipped(0.3)
    assert U.momentum(memory=0.5) != U.momentum(0.5)
    assert U.muon(newton_schulz=True) != U.muon()


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.slow
def test_updates_without_an_ode_raise():
    problem, trained = (sgd.TeacherStudent(width=2, activation="erf", head=head) for head in BOTH)
    sphere = sgd.TeacherStudent(width=2, activation="erf", constraint="sphere")
    start, sphere_start = (
        sgd.start(network_problem, M=[[0.1], [0.2]], Q=np.eye(2))
        for network_problem in (problem, sphere)
    )

    def signum(state, gradient, lr, D, number):
        V = 0.7 * state["velocity"] + gradient(state["weights"])
        return {
            "weights": -lr / D * V * jnp.sqrt(D) / jnp.sqrt(jnp.sum(V**2)),
            "velocity": V - state["velocity"],
        }

    def long_steps(state, gradient, lr, D, number):
        return {"weights": -lr / jnp.sqrt(D) * gradient(state["weights"])}

    def fixed_clip(state, gradient, lr, D, number):
        G = gradient(state["weights"])
        return {"weights": -lr / D * G / jnp.maximum(1.0, jnp.sqrt(jnp.sum(G**2)))}

    fast = U.own(signum, rows=("velocity",), memory="fast")
    for update, network_problem, message in (
        (U.sam(0.1), problem, r"update = sam.*reach"),
        (U.muon(beta=0.5), problem, r"update = muon.*O\(1\) steps and is not linear"),
        (fast, problem, r"update = own.*O\(1\) steps and is not linear"),
        (U.own(long_steps), problem, r"update = own.*no high-dimensional limit"),
        (U.own(fixed_clip), problem, r"update = own.*no high-dimensional limit"),
        (U.row_adam(2, 1.0), trained, r"update = row_adam.*does not train a head"),
        (
            U.weight_decay(0.1, of=U.row_adam(2, 1.0)),
            trained,
            r"update = weight_decay.*does not train a head",
        ),
        (U.separate(head=U.adam(1.0)), problem, r"update = separate.*the head is fixed"),
        (U.separate(head={"b": U.adam(1.0)}), trained, r"head = 'b'.*with a top"),
        (
            U.separate(rows=U.sign(), head=U.adam(1.0)),
            trained,
            r"update = separate.*O\(1\) steps and the step is not linear",
        ),
        (U.average(1.0), sphere, r"update = average.*sphere"),
        (U.weight_decay(0.1, of=U.polyak()), sphere, r"update = weight_decay.*sphere"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd.solve_ode(
                network_problem,
                sgd.OnePassSGD(update=update),
                sphere_start if network_problem is sphere else start,
                times=[1.0],
            )
    with pytest.raises(ValueError, match=r"dimension = 100.*d -> infinity"):
        sgd.solve_ode(
            problem, sgd.OnePassSGD(update=U.momentum(0.5)), start, times=[1.0], dimension=100
        )


def test_invalid_hyperparameters_raise():
    for make, name in (
        (lambda: U.momentum(), "beta and memory"),
        (lambda: U.nesterov(0.5, memory=1.0), "beta and memory"),
        (lambda: U.momentum(memory=0.0), "memory"),
        (lambda: U.average(0.0), "memory"),
        (lambda: U.schedule_free(1.1), "beta"),
        (lambda: U.dana(-1.0, 1.0), "velocity_rate"),
        (lambda: U.dana(1.0, 0.0), "delta"),
        (lambda: U.dana(1.0, 1.0, offset=0.0), "offset"),
        (lambda: U.clipped(0.1, over="unit"), "over"),
        (lambda: U.sam(), "radius and reach"),
        (lambda: U.muon(memory=1.0, beta=0.5), "beta and memory"),
        (lambda: U.muon(beta=1.0), "beta"),
        (lambda: U.adagrad_norm(0.0), "start"),
        (lambda: U.adam(0.0), "memory"),
        (lambda: U.adam(1.0, beta=1.0), "beta"),
        (lambda: U.rmsprop(1.0, eps=0.0), "eps"),
        (lambda: U.adagrad(0.0), "start"),
        (lambda: U.weight_decay(-0.1), "rate"),
        (lambda: U.weight_decay(0.1, of="adam"), "of"),
        (lambda: U.weight_decay(0.1, of=U.adagrad(0.1)), "of"),
        (lambda: U.gradient_noise(-0.1), "sigma"),
        (lambda: U.gradient_noise(0.1, of=U.momentum(0.5)), "of"),
        (lambda: U.gradient_noise(0.1, of=U.sign()), "of"),
        (lambda: U.gradient_noise(0.1, of=U.gradient_noise(0.2)), "of"),
    ):
        with pytest.raises(ValueError, match=f"^{name} = "):
            make()
