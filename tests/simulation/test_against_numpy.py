"""The exact chain and SGD written in NumPy have one law; threads and processes give equal results.

The settings mix several features. The NumPy steps share no code with the library: gradients are
written by hand, and inputs are drawn in d dimensions. Each setting compares every entry of M, Q
and of a trained head over 6000 runs of the chain and 6000 runs in NumPy.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import sgdynamics as sgd
from tests.conftest import same_law

RUNS = 6000


def compare_in_law(problem, algorithm, weights, teacher, numpy_run, *, steps, start_head=None):
    """Assert that overlaps and heads of the exact chain and of a NumPy simulation have one law.

    `numpy_run(generator, rows, steps)` returns the rows (runs, p, d) after the steps, and the
    heads (runs, n) or None if the head is fixed.
    """
    d = weights.shape[1]
    measured = sgd.overlaps_of(weights, teacher)
    heads = start_head if start_head is not None else np.ones(len(weights))
    sizes = problem.block_dimensions(d)
    blocks = [np.split(rows, np.cumsum(sizes)[:-1], axis=1) for rows in (weights, teacher)]
    M = np.stack([rows @ signals.T for rows, signals in zip(*blocks, strict=True)])
    Q = np.stack([rows @ rows.T for rows in blocks[0]])
    np.testing.assert_allclose(M.sum(axis=0), measured.M[0])
    start = sgd.start(problem, M=M, Q=Q, a=heads)
    chain = sgd.simulate(problem, algorithm, start, steps=[steps], dimension=d, runs=RUNS, seed=11)
    rows, trained = numpy_run(
        np.random.default_rng(12), np.broadcast_to(weights, (RUNS, *weights.shape)).copy(), steps
    )
    expected = {"M": rows @ teacher.T, "Q": rows @ np.swapaxes(rows, 1, 2)}
    if trained is not None:
        expected["a"] = trained
    for name, values in expected.items():
        simulated = np.asarray(chain[name])[:, 0].reshape(RUNS, -1)
        values = values.reshape(RUNS, -1)
        for entry in range(values.shape[1]):
            same_law(simulated[:, entry], values[:, entry], f"{name}[{entry}]")


def rows_of(count, d, seed):
    return np.random.default_rng(seed).standard_normal((count, d)) / np.sqrt(d)


# -------------------------------------------- two tokens per sample, batch 7, two covariance blocks

CORRELATION = np.array([[1.0, 0.5], [0.5, 0.8]])
BLOCKS = [(0.5, 0.25), (2.0, 0.75)]


def gated_loss(fields, signals, head, draws):
    """Squared loss of gated tokens t = 1, 2: f = sum_t tanh(q_t) v_t and y = sum_t s_t + noise."""
    output = jnp.sum(jnp.tanh(fields[0]) * fields[1])
    return 0.5 * (output - jnp.sum(signals[0]) - 0.3 * draws["noise"]) ** 2


@pytest.mark.slow
def test_tokens_in_batches_of_seven_on_two_blocks():
    d, batch, lr = 16, 7, 3.0
    weights, teacher = rows_of(2, d, 1), rows_of(1, d, 2)
    gram = np.stack([teacher[:, :4] @ teacher[:, :4].T, teacher[:, 4:] @ teacher[:, 4:].T])
    problem = sgd.Problem(
        gated_loss,
        2,
        1,
        tokens=2,
        token_correlation=CORRELATION,
        draws={"noise": "normal"},
        gram=gram,
        covariance=BLOCKS,
    )
    root = np.linalg.cholesky(CORRELATION)
    scale = np.sqrt(np.repeat([0.5, 2.0], [4, 12]))

    def run(generator, W, steps):
        for _ in range(steps):
            x = (
                np.einsum("ts,rbsd->rbtd", root, generator.standard_normal((RUNS, batch, 2, d)))
                * scale
            )
            noise = 0.3 * generator.standard_normal((RUNS, batch))
            q, v = (np.einsum("rbtd,rd->rbt", x, W[:, unit]) for unit in (0, 1))
            error = np.sum(np.tanh(q) * v, axis=-1) - np.einsum("rbtd,d->rb", x, teacher[0]) - noise
            slopes = np.stack([(1 - np.tanh(q) ** 2) * v, np.tanh(q)])
            W = W - lr / d * np.einsum("rb,urbt,rbtd->rud", error, slopes, x) / batch
        return W, None

    compare_in_law(problem, sgd.OnePassSGD(lr=lr, batch=batch), weights, teacher, run, steps=5)


# ----------------------------------------------------------------------------------- erf committees


def committee_gradient(W, x, labels, head=None):
    """Gradients of the loss (f - y)^2/2 of a committee f = (1/p) sum_i a_i erf(w_i.x/sqrt 2).

    Returns the gradient of the rows averaged over the batch, (runs, p, d), and the gradients of the
    head for each sample, (runs, batch, p).
    """
    p = W.shape[1]
    fields = np.einsum("rbd,rpd->rbp", x, W)
    a = np.ones(p) if head is None else head
    units = erf(fields / np.sqrt(2))
    error = np.sum(a * units, axis=-1) / p - labels
    slopes = np.sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
    rows = np.einsum("rb,rbp,rbd->rpd", error, a * slopes, x) / p / x.shape[1]
    return rows, error[..., None] * units / p


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_muon_in_four_dimensions(batch):
    """Two rows and one signal span three of four dimensions; a batch of one has rank one."""
    d, lr, noise = 4, 0.4, 0.2
    weights, teacher = rows_of(2, d, 3), np.eye(1, d)
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=noise)

    def run(generator, W, steps):
        for _ in range(steps):
            x = generator.standard_normal((RUNS, batch, d))
            labels = erf(x[..., 0] / np.sqrt(2)) + np.sqrt(noise) * generator.standard_normal(
                (RUNS, batch)
            )
            G, _ = committee_gradient(W, x, labels)
            U, sizes, V = np.linalg.svd(G, full_matrices=False)
            W = W - lr / np.sqrt(d) * (U * (sizes > 1e-10 * sizes[:, :1])[:, None]) @ V
        return W, None

    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, update=sgd.updates.muon())
    compare_in_law(problem, algorithm, weights, teacher, run, steps=6)


def decreasing_noise(alpha):
    return 0.8 * jnp.exp(-2 * alpha)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_sphere_with_weight_decay_and_decreasing_noise(batch):
    """Rows are projected back to the sphere after a step with decay and with a noise schedule."""
    d, lr, decay = 8, 2.0, 0.7
    weights, teacher = rows_of(2, d, 5), np.eye(1, d)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=decreasing_noise, constraint="sphere", weight_decay=decay
    )

    def run(generator, W, steps):
        for step in range(steps):
            noise = 0.8 * np.exp(-2 * step * batch / d)
            x = generator.standard_normal((RUNS, batch, d))
            labels = erf(x[..., 0] / np.sqrt(2)) + np.sqrt(noise) * generator.standard_normal(
                (RUNS, batch)
            )
            G, _ = committee_gradient(W, x, labels)
            W = W - lr / d * (G + decay * W)
            W = W / np.linalg.norm(W, axis=-1, keepdims=True)
        return W, None

    compare_in_law(problem, sgd.OnePassSGD(lr=lr, batch=batch), weights, teacher, run, steps=8)


@pytest.mark.slow
def test_contexts_with_replay():
    """Task one is learned alone, then task two with 30% replay; each task trains its own head."""
    d, batch, lr, head_rate, switch, replay = 10, 3, 1.5, 2.0, 0.9, 0.3
    weights, teacher = rows_of(2, d, 7), np.eye(2, d)
    first = sgd.TeacherStudent(
        width=2,
        teacher_width=2,
        activation="erf",
        head="trained",
        teacher_head=[2.0, 0.0],
        noise=0.1,
    )
    shares = sgd.piecewise_rate([switch], [[1.0, 0.0], [replay, 1 - replay]])
    problem = sgd.contexts(
        {"one": first, "two": first.replace(teacher_head=[0.0, 2.0])},
        probabilities=shares,
        heads="own",
    )
    heads = np.array([[1.0, 0.4], [0.6, -1.0]])

    def run(generator, W, steps):
        a = np.broadcast_to(heads, (RUNS, 2, 2)).copy()
        for step in range(steps):
            first_probability = 1.0 if step * batch / d < switch else replay
            task = (generator.random((RUNS, batch)) >= first_probability).astype(int)
            x = generator.standard_normal((RUNS, batch, d))
            signal = np.where(task == 0, x[..., 0], x[..., 1])
            labels = erf(signal / np.sqrt(2)) + np.sqrt(0.1) * generator.standard_normal(
                (RUNS, batch)
            )
            task_heads = np.take_along_axis(a, task[..., None], axis=1)
            G, head_gradients = committee_gradient(W, x, labels, task_heads)
            W = W - lr / d * G
            for index in (0, 1):
                a[:, index] -= (
                    head_rate
                    * lr
                    / d
                    * np.sum(head_gradients * (task == index)[..., None], axis=1)
                    / batch
                )
        return W, a

    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, head_rate=head_rate)
    compare_in_law(problem, algorithm, weights, teacher, run, steps=8, start_head=heads)


# ---------------------------------------------------------------------------- threads and processes


def solve_and_simulate(lr=0.4):
    """Risks of the ODE and of three runs."""
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    algorithm = sgd.OnePassSGD(lr=lr)
    theory = sgd.solve_ode(problem, algorithm, start, times=[0.0, 1.0])
    runs = sgd.simulate(problem, algorithm, start, times=[0.0, 1.0], dimension=30, runs=3, seed=2)
    return np.concatenate([np.asarray(theory.risk), np.asarray(runs.risk)])


@pytest.mark.slow
def test_threads_and_sequential_calls_give_equal_results():
    """Eight calls on four threads, at four learning rates, equal sequential calls bit for bit."""
    rates = [0.2, 0.4, 0.6, 0.8]
    expected = [solve_and_simulate(lr) for lr in rates]
    with ThreadPoolExecutor(4) as pool:
        for lr, risks in zip(rates * 2, pool.map(solve_and_simulate, rates * 2), strict=True):
            np.testing.assert_array_equal(risks, expected[rates.index(lr)])


@pytest.mark.slow
def test_threads_may_compile_at_the_same_time():
    """Four threads of a new process start before anything is compiled."""
    program = (
        "import numpy as np\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tests.simulation.test_against_numpy import solve_and_simulate\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    risks = list(pool.map(solve_and_simulate, [0.4] * 4))\n"
        "assert all(np.array_equal(risk, risks[0]) for risk in risks)\n"
        "print(repr(risks[0].tolist()))\n"
    )
    call = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True
    )
    np.testing.assert_allclose(np.array(eval(call.stdout)), solve_and_simulate(), rtol=1e-12)


@pytest.mark.slow
def test_spawned_process_gives_the_same_results():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_allclose(pool.apply(solve_and_simulate), solve_and_simulate(), rtol=1e-12)


FORK = """
import multiprocessing
from tests.simulation.test_against_numpy import solve_and_simulate

def child(queue):
    try:
        queue.put(solve_and_simulate().tolist())
    except RuntimeError as error:
        queue.put(str(error))

def result_of_fork():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    try:
        return queue.get(timeout=100)
    finally:
        process.kill()

before = result_of_fork()
expected = solve_and_simulate().tolist()
print(before == expected)
print(result_of_fork())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_works_before_jax_starts_and_raises_an_error_later():
    """A process forked after JAX has started would wait forever: its threads do not survive."""
    call = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    same, message = call.stdout.splitlines()
    assert same == "True"
    assert "forked after JAX had started" in message
    assert "spawn" in message
