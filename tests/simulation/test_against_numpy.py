"""The exact chain against SGD written in NumPy, in law, in settings that mix several features; threads and processes.

The NumPy steps share no code with the library: gradients are written by hand, and inputs are drawn in d
dimensions. Each setting compares every entry of M, Q and of a trained head over 6000 runs of either.
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
    """Laws of all overlaps after some steps of the chain, and of NumPy's rows (runs, p, d) and heads (runs, n)."""
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


# ------------------------------------------------------------- samples of two tokens, batch 7, two covariance blocks

CORRELATION = np.array([[1.0, 0.5], [0.5, 0.8]])
BLOCKS = [(0.5, 0.25), (2.0, 0.75)]


def gated(fields, signals, head, draws):
    """Tokens t = 1, 2 with a gate and a value each: f = sum_t tanh(q_t) v_t, y = sum_t s_t + noise."""
    output = jnp.sum(jnp.tanh(fields[0]) * fields[1])
    return 0.5 * (output - jnp.sum(signals[0]) - 0.3 * draws["noise"]) ** 2


@pytest.mark.slow
def test_tokens_in_batches_of_seven_on_two_blocks():
    d, batch, lr = 16, 7, 3.0
    weights, teacher = rows_of(2, d, 1), rows_of(1, d, 2)
    gram = np.stack([teacher[:, :4] @ teacher[:, :4].T, teacher[:, 4:] @ teacher[:, 4:].T])
    problem = sgd.Problem(
        gated,
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


# --------------------------------------------------------------------------------------------------- erf committees


def committee_gradient(W, x, labels, head=None):
    """Gradients of the mean of (f - y)^2/2 with f = (1/p) sum_i a_i erf(w_i.x/sqrt 2): rows, and heads before the mean."""
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
    """Three columns of rows and signals in four dimensions, and gradients of rank one in a batch of one."""
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


def falling_noise(alpha):
    return 0.8 * jnp.exp(-2 * alpha)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_sphere_with_weight_decay_and_noise_that_falls(batch):
    d, lr, decay = 8, 2.0, 0.7
    weights, teacher = rows_of(2, d, 5), np.eye(1, d)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=falling_noise, constraint="sphere", weight_decay=decay
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
    """Task one alone, then task two with a replay of 30%: two heads, each trained by its own samples."""
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
            chance = 1.0 if step * batch / d < switch else replay
            task = (generator.random((RUNS, batch)) >= chance).astype(int)
            x = generator.standard_normal((RUNS, batch, d))
            signal = np.where(task == 0, x[..., 0], x[..., 1])
            labels = erf(signal / np.sqrt(2)) + np.sqrt(0.1) * generator.standard_normal(
                (RUNS, batch)
            )
            used = np.take_along_axis(a, task[..., None], axis=1)
            G, g = committee_gradient(W, x, labels, used)
            W = W - lr / d * G
            for index in (0, 1):
                a[:, index] -= (
                    head_rate * lr / d * np.sum(g * (task == index)[..., None], axis=1) / batch
                )
        return W, a

    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, head_rate=head_rate)
    compare_in_law(problem, algorithm, weights, teacher, run, steps=8, start_head=heads)


# ----------------------------------------------------------------------------------------------- threads and processes


def solve_and_simulate(lr=0.4):
    """Risks of the ODE and of three runs."""
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    algorithm = sgd.OnePassSGD(lr=lr)
    theory = sgd.solve_ode(problem, algorithm, start, times=[0.0, 1.0])
    runs = sgd.simulate(problem, algorithm, start, times=[0.0, 1.0], dimension=30, runs=3, seed=2)
    return np.concatenate([np.asarray(theory.risk), np.asarray(runs.risk)])


def test_threads_give_the_numbers_of_one_thread():
    """Eight calls on four threads, at four learning rates: the same bits as one after the other."""
    rates = [0.2, 0.4, 0.6, 0.8]
    expected = [solve_and_simulate(lr) for lr in rates]
    with ThreadPoolExecutor(4) as pool:
        for lr, risks in zip(rates * 2, pool.map(solve_and_simulate, rates * 2), strict=True):
            np.testing.assert_array_equal(risks, expected[rates.index(lr)])


@pytest.mark.slow
def test_threads_that_compile_at_once():
    """Nothing is compiled yet when four threads of a new process start."""
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
def test_a_spawned_process_gives_the_same_numbers():
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

def answer():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    try:
        return queue.get(timeout=100)
    finally:
        process.kill()

before = answer()
expected = solve_and_simulate().tolist()
print(before == expected)
print(answer())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_before_jax_starts_works_and_one_forked_later_is_told_why():
    """It used to wait for ever: JAX's threads do not survive a fork."""
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
