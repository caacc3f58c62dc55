"""A step of paths with one read of the bases, against Gram-Schmidt of single gradients."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.fixed_data import path_state, path_step
from sgdynamics.fixed_data import paths as engine
from sgdynamics.fixed_data.bounded_memory import merge_bins
from sgdynamics.fixed_data.dmft import Sweep
from sgdynamics.fixed_data.host_draws import Sampling
from sgdynamics.fixed_data.sample_space import SampleData, sample_space_gradients
from sgdynamics.problems.overlap_starts import Start

STEPS, PATHS = 6, 128


def gram_schmidt(sweep, group, steps):
    """Gram-Schmidt in NumPy: rows of W after some steps, from the same start and normals."""
    setup, step_parameters = sweep.setup, sweep.step_parameters
    sizes, tolerance = step_parameters.block_sizes, step_parameters.tolerance
    paths = jax.tree.map(lambda leaf: leaf[0], path_state.rechunk(group.paths, 1, 1))
    p, n = setup.structure.width, sweep.inputs
    A, P = np.asarray(paths.A[0])[:, : setup.initial_directions], np.zeros((0, n))
    W, head = np.asarray(paths.rows)[..., : setup.initial_directions], np.asarray(paths.head)
    used = np.ones(sweep.paths, dtype=bool)
    for step in range(steps):
        present = step_parameters.at_step(np.int64(step))
        now, rates = present.parameters, present.hyperparameters
        fields = jnp.asarray(np.einsum("pbk,bkn->np", W, A))
        draws = jax.tree.map(lambda leaf: leaf[0], paths.draws)
        data = SampleData(used, sweep.paths, paths.signals[0], draws)
        g, head_pull = (
            np.asarray(gradient)
            for gradient in sample_space_gradients(setup, present, data, fields, head)
        )
        Z = np.asarray(engine._draw_normals(setup, paths, jnp.int64(len(P)), jnp.int64(step))[0])
        spread = np.sqrt(np.asarray(now["eigenvalues"]))[:, None]
        for unit in range(p):
            r, z = g[unit].copy(), Z[unit].copy()
            for _ in range(2):
                r, z = r - (P @ r) @ P, z - (z @ P.T) @ P
            assert np.linalg.norm(r) > tolerance * np.linalg.norm(g[unit])
            r = r / np.linalg.norm(r)
            z = z - np.outer(z @ r, r)
            z = z * np.sqrt(n / np.sum(z**2, axis=1, keepdims=True))
            A = np.concatenate([A, (spread * (np.sqrt(sizes)[:, None] * r + z))[:, None]], axis=1)
            P = np.concatenate([P, r[None]])
        W = np.pad(W, ((0, 0), (0, 0), (0, p)))
        W = W * (1 - rates["lr"] * now["weight_decay"]) - rates["lr"] * np.einsum(
            "pn,bkn->pbk", g, A
        )
        head = head - rates["head_rate"] * rates["lr"] * (head_pull + now["weight_decay"] * head)
    return W, head, A


TWO = [(0.5, 0.4), (2.0, 0.6)]  # blocks of a covariance


def cholesky(S, squares, tolerance):
    """The basis of one gradient after the other."""
    return jnp.linalg.inv(jnp.linalg.cholesky(S)), jnp.ones(len(S), bool)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "covariance"),
    [
        pytest.param(1, None, marks=pytest.mark.slow),
        pytest.param(1, TWO, marks=pytest.mark.slow),
        (3, TWO),
    ],
)
def test_equal_to_the_former_scheme(width, covariance, monkeypatch):
    """Rows and head to 1e-12, for any chunks, if the new basis of each step is the same."""
    monkeypatch.setattr(engine, "CHUNK", 32)
    monkeypatch.setattr(engine, "FEW_ROWS_CHUNK", 32)
    monkeypatch.setattr(path_step, "new_basis", cholesky)
    problem = sgd.TeacherStudent(
        width=width,
        teacher_width=1,
        activation="erf",
        head="trained",
        noise=0.1,
        weight_decay=0.1,
        covariance=covariance,
    )
    start = sgd.random_start(problem, dimension=200, seed=1)
    algorithm = sgd.GradientDescent(lr=1.5, samples_per_dimension=2.0)
    with jax.enable_x64(True):
        sweep = Sweep(problem, algorithm, Sampling(PATHS, 2), 1e-7, np.dtype("float64"))
        sweep.reserve_memory(STEPS, None, None)
        first_run = Start(*(leaf[:1] for leaf in (start.M_blocks, start.Q_blocks, start.a)))
        group = sweep.initial_groups(first_run, sweep.host_draws())[0]
        assert group.paths.P.shape[1] == PATHS // 32
        W, head, A = gram_schmidt(sweep, group, STEPS)
        moved = (np.int64(0), np.zeros(1, dtype=np.int64), np.int64(STEPS))
        paths, slots, number, _ = engine.advance_paths.__wrapped__(
            sweep.setup, sweep.step_parameters, group.paths, group.slots, None, *moved
        )
        assert int(number) == STEPS
        rank = sweep.setup.initial_directions + width * STEPS
        assert int(slots.weight) == rank
        np.testing.assert_allclose(np.asarray(paths.rows[0])[..., :rank], W, rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.asarray(paths.head[0]), head, rtol=0, atol=1e-12)
        fields = np.asarray(paths.fields[0]).reshape(-1, width)
        np.testing.assert_allclose(fields, np.einsum("pbk,bkn->np", W, A), rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("width", [1, 3])
def test_no_step_copies_the_bases(backend, width, monkeypatch):
    """P and A, which are nearly all of the memory, are written in place.

    Copies took two thirds of a step on a GPU, and a third on a CPU. The GPU's program is compiled
    for a CPU here: the same part of XLA decides on copies.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    problem = sgd.TeacherStudent(width=width, activation="erf", constraint="sphere")
    algorithm = (
        sgd.Langevin(lr=0.1, samples_per_dimension=2.0, temperature=0.1)
        if width > 1
        else sgd.GradientDescent(0.1, 2.0)
    )
    start = sgd.random_start(problem, dimension=100, seed=1)
    with jax.enable_x64(True):
        sampling = Sampling(4096, 2, reduction=1 if backend == "cpu" else 2)
        sweep = Sweep(problem, algorithm, sampling, 1e-7, np.dtype("float64"))
        sweep.reserve_memory(20, None, None)
        first_run = Start(*(leaf[:1] for leaf in (start.M_blocks, start.Q_blocks, start.a)))
        group = sweep.initial_groups(first_run, sweep.host_draws())[0]
        moved = (np.int64(0), np.zeros(group.sets, dtype=np.int64), np.int64(5))
        text = (
            engine.advance_paths.lower(
                sweep.setup, sweep.step_parameters, group.paths, group.slots, None, *moved
            )
            .compile()
            .as_text()
        )
    # all of them, and those of a chunk, of which there are two
    sizes = {
        leaf.size // count
        for leaf in (group.paths.P, group.paths.A)
        for count in (1, group.paths.P.shape[1])
    }
    shapes = [
        [int(size) for size in sizes_text.split(",")]
        for sizes_text in re.findall(r"= f64\[([\d,]+)\]\S* (?:copy|copy-start)\(", text)
    ]
    assert "while(" in text
    # a product with a matrix that it turns around for itself, (inputs, capacity), makes no copy
    assert not [
        shape
        for shape in shapes
        if np.prod(shape) in sizes and shape[-1] == group.paths.P.shape[-1]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        sgd.MultiPassSGD(0.3, 2.0, batch_fraction=0.5),
        pytest.param(sgd.Langevin(0.1, 2.0, temperature=0.1), marks=pytest.mark.slow),
    ],
)
def test_chunks_that_are_apart_make_the_same_step(algorithm, monkeypatch):
    """As chunks in an axis do, to rounding; two blocks, of Langevin one, with its white noise."""
    monkeypatch.setattr(engine, "FEW_ROWS_CHUNK", 32)
    covariance = None if isinstance(algorithm, sgd.Langevin) else TWO
    problem = sgd.TeacherStudent(width=1, activation="erf", covariance=covariance)
    start = sgd.random_start(problem, dimension=200, seed=1)
    results, taken = [], []
    monkeypatch.setattr(
        engine,
        "split_chunks",
        lambda paths, function=engine.split_chunks: taken.append(1) or function(paths),
    )
    for most in (0, 8):
        monkeypatch.setattr(engine, "MAX_SEPARATE_CHUNKS", most)
        engine.advance_paths.clear_cache()
        results.append(
            sgd.solve_dmft(
                problem, algorithm, start, steps=[5], paths=512, replicates=4, progress=False
            )
        )
        assert bool(taken) == (most > 0)
    for name in ("M", "Q", "train_risk"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-12, atol=1e-14)


def test_memory_counts_the_copies_that_a_compiler_makes(monkeypatch):
    """2^20 paths of 5000 directions in float32 (39 GiB) did not fit into 104 GiB of an H200."""
    with jax.enable_x64(True):
        sweep = Sweep(
            sgd.TeacherStudent(width=1),
            sgd.GradientDescent(0.1, 2.0),
            Sampling(1 << 18, 4),
            1e-7,
            np.dtype("float32"),
        )
        required = 4 * sweep.bytes_per_replicate(5003)
        for backend, copies in (("cpu", 2), ("gpu", 3)):
            monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
            with pytest.raises(ValueError, match="directions"):
                sweep.reserve_memory(10**9, 5000, copies * required * 0.999e-9)
            sweep.reserve_memory(10**9, 5000, copies * required * 1.01e-9)


def test_replicates_that_advance_together_have_memory_for_all_directions(monkeypatch):
    """On a GPU a step uses as many slots as the replicate that adds the most directions.

    Eight units and 300 steps of 20000 paths ran out of 2048 slots at step 257.
    """
    problem = sgd.TeacherStudent(width=8, activation="erf")
    with jax.enable_x64(True):
        sweep = Sweep(
            problem,
            sgd.GradientDescent(0.1, 2.0),
            Sampling(4096, 4),
            1e-7,
            np.dtype("float64"),
        )
    first, half, steps = sweep.setup.initial_directions, 2048, 300
    for backend, directions in (("cpu", first + half + 8), ("gpu", first + 8 * (steps + 1))):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        sweep.reserve_memory(steps, None, 1e3)
        assert sweep.largest_capacity == sweep.directions_after(steps) == directions


def test_a_short_solution_on_a_gpu_compiles_one_size(monkeypatch):
    """ReLU networks of eight units compiled ten sizes in 43 s, for steps that take 0.9 s."""
    problem, algorithm = sgd.TeacherStudent(width=8), sgd.GradientDescent(0.1, 2.0)
    with jax.enable_x64(True):
        sweep = Sweep(problem, algorithm, Sampling(1 << 14, 4), 1e-7, np.dtype("float64"))
        sweep.reserve_memory(300, None, 1e3)
        assert sweep.initial_capacity() < 100
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        sweep.reserve_memory(300, None, 1e3)
        assert sweep.initial_capacity() == sweep.largest_capacity
        # 20 s of steps are longer than the compilation of several sizes
        sweep.reserve_memory(3000, None, 1e3)
        assert sweep.initial_capacity() < 100


@pytest.mark.slow
def test_a_full_basis_of_several_replicates_does_not_stop_them(monkeypatch):
    """64 paths per replicate: each is full after 32 directions, at different steps."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    problem = sgd.TeacherStudent(width=3, teacher_width=1, activation="erf", noise=0.1)
    start = sgd.random_start(problem, dimension=1000, seed=0)
    algorithm = sgd.GradientDescent(lr=0.5, samples_per_dimension=3.0)
    with pytest.warns(UserWarning, match="span half of the 64 paths"):
        result = sgd.solve_dmft(problem, algorithm, start, steps=[60], paths=256, progress=False)
    assert result.attrs["rank"] == 32
    assert np.isfinite(result.train_risk).all()


def linear_epochs(**memory):
    """|w - w*|^2 after 20 epochs of 8 cells with replacement, gamma .3, alpha 1.5, noise .1."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    start = sgd.start(problem, M=[[0.0]], Q=[[1e-12]])
    algorithm = sgd.EpochSGD(0.3, 1.5, order="replacement")
    settings = {"paths": 2048, "replicates": 2, "cells": 8, "progress": False}
    results = sgd.solve_dmft(
        problem, algorithm, start, alpha=[30.0], **settings, method=sgd.DMFT(**memory)
    )
    return (
        results,
        2 * float(results["excess_risk"][0, 0]),
        2 * float(results["risk_standard_error"][0, 0]),
    )


@pytest.mark.slow
def test_bounded_memory_against_the_full_one():
    """Within the error from two sizes, and closer with more memory; the rank is bounded."""
    _, full, error = linear_epochs()
    small, few, _ = linear_epochs(memory_directions=32, keep=16)
    large, many, stated = linear_epochs(memory_directions=64, keep=32)
    assert small.attrs["rank"] <= 32
    assert large.attrs["rank"] <= 64
    assert 0 < large.attrs["error_memory"] < 0.2
    assert abs(many - full) < 0.1 * full
    assert abs(few - full) < 0.2 * full
    assert abs(many - full) <= 5 * np.hypot(error, stated)


def test_bounded_memory_is_checked_before_work():
    problem = sgd.TeacherStudent(width=2, activation="erf")
    start = sgd.random_start(problem, dimension=100, seed=0)
    descent = sgd.GradientDescent(lr=0.1)
    for options, match in (
        ({"keep": 8}, "keep = 8: only used together with memory_directions"),
        (
            {"memory_directions": 10},
            "memory_directions = 10: too few for this width. Use 15 or more",
        ),
        ({"memory_directions": 40, "keep": 39}, "keep = 39: must be between 8 and 33"),
        ({"memory_directions": 40, "rank": 4}, "rank = 4: memory_directions limits"),
    ):
        with pytest.raises(ValueError, match=match):
            sgd.solve_dmft(problem, descent, start, steps=[100], method=sgd.DMFT(**options))
    with pytest.raises(ValueError, match="memory_directions = 40: C and R"):
        sgd.solve_dmft(
            problem,
            descent,
            start,
            steps=[100],
            two_time=True,
            method=sgd.DMFT(memory_directions=40),
        )


def test_bins_of_steps_grow_with_age():
    assert merge_bins([1] * 4, 8) == [[0], [1], [2], [3]]
    widths = [1] * 16
    groups = merge_bins(widths, 8)
    assert [index for group in groups for index in group] == list(range(16))
    sizes = [len(group) for group in groups]
    assert len(sizes) == 8
    assert sizes[-4:] == [1] * 4
    assert sizes[0] >= 2
