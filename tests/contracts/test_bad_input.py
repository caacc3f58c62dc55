"""Invalid input raises ValueError with the name of the argument, before any work.

Each entry of the tables is a call that was once accepted, hung, or failed with an unclear error.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.base import resources
from sgdynamics.plotting import plot
from sgdynamics.problems.spiked_tensor import SpikedStart
from sgdynamics.problems.wide_starts import MeanFieldStart
from sgdynamics.solvers import functional

mpl.use("Agg")

# Limit of processor time per call. Nothing is computed, and only the functions of the user are
# compiled, for a few values.
MAX_SECONDS = 5.0
PROBLEM = sgd.TeacherStudent(width=2, activation="square", noise=0.1)
SGD = sgd.OnePassSGD(lr=0.1)
START = sgd.start(PROBLEM, M=[[0.3], [0.1]], Q=np.eye(2))
SPIKED = sgd.SpikedTensor()
SPIKED_START = sgd.start(SPIKED, m=0.1, r2=1.0)
DEEP = "[" * 100_000 + "]" * 100_000


def raises(output, label):
    raise RuntimeError("an error in the loss")


def with_loss(loss):
    return lambda: sgd.TeacherStudent(width=2, activation="erf", loss=loss)


def own_loss(loss, **options):
    return lambda: sgd.Problem(loss, width=2, signals=1, **options)


def target(function):
    return lambda: sgd.MultiIndex(function, directions=2, width=2, activation="erf")


def activation(function, **options):
    return lambda: sgd.TeacherStudent(width=2, activation=sgd.Activation(function, **options))


def result(**changes):
    """A small trajectory as a solver would return it, with changes."""
    variables = {
        "M": (("run", "time", "unit", "signal"), np.zeros((2, 3, 2, 1))),
        "Q": (("run", "time", "unit", "unit_other"), np.zeros((2, 3, 2, 2)) + np.eye(2)),
        "a": (("run", "time", "unit"), np.ones((2, 3, 2))),
        "q": (("run", "time", "unit"), np.ones((2, 3, 2))),
        "risk": (("run", "time"), np.array([[1.0, 0.7, 0.5]] * 2)),
    }
    coordinates = {"t": ("time", [0.0, 1.0, 2.0]), "diverged_at": ("run", [np.nan, np.nan])}
    return xr.Dataset(variables, coordinates, {"method": "solve_ode"}).assign(changes)


def sweep_result():
    """A small result of `sgd.sweep` over two parameters."""
    grid = {
        "mean": (("lr", "noise"), np.arange(1.0, 7.0).reshape(3, 2)),
        "failed": (("lr", "noise"), np.full((3, 2), "")),
    }
    return xr.Dataset(grid, {"lr": [0.1, 0.2, 0.3], "noise": [0.1, 0.2]})


def solve(solver, problem=PROBLEM, algorithm=SGD, start=START, **options):
    return lambda: solver(problem, algorithm, start, **options)


FUNCTIONS = {
    "loss of one argument": (
        with_loss(lambda f: f**2),
        r"loss = .*must take the arguments \(output, label\)",
    ),
    "loss that is a vector": (
        with_loss(lambda f, y: jnp.stack([f, y])),
        r"loss = .*returned shape \(2,\)",
    ),
    "loss that is None": (with_loss(lambda f, y: None), r"loss = .*returned None"),
    "loss that is complex": (with_loss(lambda f, y: (f - y) * 1j), r"loss = .*complex"),
    "loss that is a whole number": (
        with_loss(lambda f, y: jnp.where(f * y > 0, 0, 1)),
        r"loss = .*type int64",
    ),
    "loss with a Python if": (with_loss(lambda f, y: f if f > 0 else y), r"loss = .*use jnp.where"),
    "loss that raises": (with_loss(raises), r"loss = .*RuntimeError: an error in the loss"),
    "loss with NumPy": (with_loss(lambda f, y: np.tanh(float(f) - y)), r"loss = .*use jax.numpy"),
    "loss that is NaN": (
        with_loss(lambda f, y: (f - y) * jnp.nan),
        r"loss = .*its value is not finite at output .* and label",
    ),
    "loss NaN on half the line": (
        with_loss(lambda f, y: jnp.sqrt(f - y)),
        r"loss = .*its value is not finite at output",
    ),
    "loss whose gradient is NaN": (
        with_loss(lambda f, y: jnp.where(f > y, jnp.sqrt(f - y), 0.0)),
        r"loss = .*its gradient is not finite at output .* both branches of jnp.where",
    ),
    "loss that is a number": (with_loss(3), "loss = 3"),
    "own loss that is NaN": (
        own_loss(lambda f, s, a, z: jnp.nan * f[0]),
        r"loss = .*not finite at fields = \[",
    ),
    "own loss with a root": (
        own_loss(lambda f, s, a, z: jnp.sqrt(f[0])),
        r"loss = .*its value is not finite at fields",
    ),
    "own loss, whole numbers": (own_loss(lambda f, s, a, z: jnp.int32(3)), r"loss = .*type int32"),
    "own loss, complex": (own_loss(lambda f, s, a, z: f[0] * 1j), r"loss = .*complex"),
    "own loss, an index out of range": (
        own_loss(lambda f, s, a, z: f[0] - s[1]),
        r"loss = .*index 1 is out of bounds",
    ),
    "parameters that are NaN": (
        own_loss(lambda f, s, a, z, c: c["b"] * f[0], parameters={"b": np.nan}),
        r"parameters\['b'\] = nan: give finite numbers",
    ),
    "parameters that are text": (
        own_loss(lambda f, s, a, z, c: f[0], parameters={"b": "1"}),
        r"parameters\['b'\] = '1'",
    ),
    "parameters that are a list": (
        own_loss(lambda f, s, a, z, c: f[0], parameters=[1.0]),
        r"parameters = \[1.0\]: give a dictionary",
    ),
    "target that is NaN": (
        target(lambda z: jnp.nan * z[0]),
        r"target = .*not finite at signals = \[",
    ),
    "target with a logarithm": (
        target(lambda z: jnp.log(z[1])),
        r"target = .*not finite at signals",
    ),
    "target that is complex": (target(lambda z: z[0] * 1j), r"target = .*complex"),
    "target that is None": (target(lambda z: None), r"target = .*returned None"),
    "target that raises": (target(lambda z: 1 / 0), r"target = .*ZeroDivisionError"),
    "activation that is NaN": (
        activation(lambda x: x * jnp.nan),
        r"activation = .*its value is not finite at x = ",
    ),
    "activation with a root": (
        activation(jnp.sqrt),
        r"activation = .*its value is not finite at x = -",
    ),
    "activation that is complex": (activation(lambda x: x * 1j), r"activation = .*complex"),
    "activation that is a whole number": (
        activation(lambda x: jnp.where(x > 0, 1, 0)),
        r"activation = .*which have no gradient",
    ),
    "activation that is None": (
        activation(lambda x: None),
        r"activation = .*returned None",
    ),
    "teacher that is NaN": (
        lambda: sgd.TeacherStudent(width=2, activation="erf", teacher_activation=jnp.arcsin),
        r"teacher_activation = .*not finite at x = ",
    ),
    "kinks that are text": (activation(jnp.tanh, kinks="0"), "kinks = '0'"),
    "head of the start": (
        lambda: sgd.start(
            sgd.Problem(lambda f, s, a, z: jnp.log(a[0]) * f[0], width=2, signals=1),
            M=[[0.1], [0.1]],
            Q=np.eye(2),
            a=[-1.0, 1.0],
        ),
        r"loss = .*not finite at fields .*head = \[-1.*at this start",
    ),
    "temperature below zero": (
        lambda: sgd.Langevin(temperature=lambda t: -1.0),
        r"temperature = .*at t = 0 the schedule gives -1",
    ),
    "temperature below zero later": (
        solve(
            sgd.simulate,
            algorithm=sgd.Langevin(temperature=lambda t: 1.0 - t),
            times=[2.0],
            dimension=20,
        ),
        r"temperature = .*at t = .*0 or more",
    ),
    "schedule that is complex": (lambda: sgd.OnePassSGD(lr=lambda alpha: 1j), r"lr = .*complex"),
    "schedule that is NaN": (
        lambda: sgd.OnePassSGD(lr=lambda alpha: jnp.nan),
        r"lr = .*the schedule gives nan",
    ),
    "criterion that is complex": (
        solve(sgd.exit_time, method="exact", dimension=50, criterion=lambda state: 1j),
        r"criterion = .*complex",
    ),
}

REACH = {
    "times of a simulation": (
        solve(sgd.simulate, times=[1e300], dimension=50),
        r"times = 1e\+300: that is 5e\+302 steps per run, .* years",
    ),
    "alpha of a simulation": (
        solve(sgd.simulate, alpha=[1e300], dimension=50, method="direct"),
        r"alpha = 1e\+300: .* steps per run",
    ),
    "steps of a simulation": (
        solve(sgd.simulate, steps=[1e300], dimension=50),
        r"steps = 1e\+300: .* steps per run",
    ),
    "times beyond float64": (
        solve(sgd.simulate, times=[1e308], dimension=10**6),
        r"times = 1e\+308: ",
    ),
    "times on a fixed data set": (
        solve(sgd.simulate, algorithm=sgd.GradientDescent(), times=[1e300], dimension=50),
        r"times = 1e\+300: .* steps per run",
    ),
    "times of a spiked tensor": (
        solve(sgd.simulate, SPIKED, SGD, SPIKED_START, times=[1e300], dimension=50),
        r"times = 1e\+300: .* steps per run",
    ),
    "times with a schedule": (
        solve(
            sgd.simulate,
            algorithm=sgd.OnePassSGD(lr=lambda alpha: 1.0 / (1.0 + alpha)),
            alpha=[1e300],
            dimension=50,
        ),
        r"alpha = 1e\+300: ",
    ),
    "steps and runs together": (
        solve(sgd.simulate, steps=[10**14], dimension=50, runs=10**6),
        r"runs = 1000000: with 1e\+14 steps per run",
    ),
    "a step of the SDE": (
        solve(sgd.solve_sde, times=[1.0], dimension=50, step=1e-300),
        r"step = 1e-300: that is 1e\+300 steps per run",
    ),
    "a step of the spiked SDE": (
        solve(sgd.solve_sde, SPIKED, SGD, SPIKED_START, times=[1.0], dimension=50, step=1e-300),
        r"step = 1e-300: that is 1e\+300 steps per run",
    ),
    "max_time of exits": (
        solve(sgd.exit_time, method="exact", dimension=50, max_time=1e300),
        r"max_time = 1e\+300: .* steps per run",
    ),
    "moves of a batch": (
        solve(
            sgd.simulate,
            algorithm=sgd.OnePassSGD(lr=0.1, update=sgd.updates.reuse(2**31 - 1)),
            steps=[10**9],
            dimension=50,
        ),
        r"steps = .*: that is 2.15e\+18 steps per run",
    ),
    "runs of a simulation": (
        solve(sgd.simulate, times=[1.0], dimension=50, runs=1e12),
        r"runs = 1000000000000: the overlaps need .* GiB",
    ),
    "runs of a random start": (
        lambda: sgd.random_start(PROBLEM, dimension=50, runs=1e12),
        r"runs = 1000000000000: the overlaps need",
    ),
    "runs of a spiked start": (
        lambda: sgd.random_start(SPIKED, dimension=50, runs=1e12),
        r"runs = 1000000000000: their states need",
    ),
    "runs of a wide start": (
        lambda: sgd.random_start(PROBLEM, dimension=50, runs=1e12, wide=True),
        r"runs = 1000000000000: the particles",
    ),
    "runs of a spiked simulation": (
        solve(sgd.simulate, SPIKED, SGD, SPIKED_START, times=[1.0], dimension=50, runs=1e12),
        r"runs = 1000000000000: the overlaps",
    ),
    "width": (
        lambda: sgd.random_start(
            sgd.TeacherStudent(width=10**7, activation="erf"), dimension=10**10
        ),
        r"width = 10000000: the overlaps need .* GiB",
    ),
    "more width": (
        lambda: sgd.TeacherStudent(width=10**9),
        r"width = 1000000000: its rows need .* GiB",
    ),
    "teacher width": (
        lambda: sgd.TeacherStudent(teacher_width=10**9),
        r"signals = 1000000000: their overlaps need .* GiB",
    ),
    "own loss of great width": (
        lambda: sgd.Problem(lambda f, s, a, z: f[0], 10**12, 1),
        "width = ",
    ),
    "directions": (
        lambda: sgd.MultiIndex(lambda z: z[0], directions=10**9),
        r"directions = 1000000000: .* GiB",
    ),
    "a batch that is read again": (
        solve(
            sgd.simulate,
            algorithm=sgd.OnePassSGD(lr=0.1, batch=10**5, update=sgd.updates.reuse(2)),
            steps=[1],
            dimension=10**6,
        ),
        r"batch \(or samples\), width and dimension = \(100000, 2, 1000000\): "
        r"the numbers of one run need",
    ),
    "a batch": (
        solve(
            sgd.simulate, algorithm=sgd.OnePassSGD(lr=0.1, batch=10**15), steps=[1], dimension=50
        ),
        r"batch .*GiB are free",
    ),
    "direct dimension": (
        solve(sgd.simulate, steps=[1], dimension=10**15, method="direct"),
        r"dimension = \(1, 2, 10{15}\): .* GiB",
    ),
    "direct data set": (
        solve(
            sgd.simulate,
            algorithm=sgd.GradientDescent(),
            steps=[1],
            dimension=10**9,
            method="direct",
        ),
        r"dimension = 1000000000: a data set of",
    ),
    "samples": (
        solve(sgd.simulate, algorithm=sgd.GradientDescent(), steps=[1], dimension=10**15),
        r"numbers of one run need",
    ),
    "points of a sweep": (
        lambda: sgd.sweep(
            "solve_ode",
            over={"lr": np.arange(1, 10**4), "noise": np.arange(10**4)},
            problem=PROBLEM,
            algorithm=SGD,
            start=START,
            times=[1.0],
        ),
        r"over = .*points\. Use fewer",
    ),
}

VALUES = {
    "noise=True": (
        lambda: sgd.TeacherStudent(noise=True),
        r"noise = True: give a number, 0 or more$",
    ),
    "noise as text": (
        lambda: sgd.TeacherStudent(noise="0.1"),
        r"noise = '0.1': give a number, 0 or more$",
    ),
    "noise complex": (lambda: sgd.TeacherStudent(noise=1j), r"noise = 1j"),
    "noise of an array": (
        lambda: sgd.TeacherStudent(noise=np.array([0.1])),
        r"noise = array\(\[0.1\]\)",
    ),
    "lr=True": (lambda: sgd.OnePassSGD(lr=True), "lr = True"),
    "lr as text": (lambda: sgd.OnePassSGD(lr="0.1"), "lr = '0.1'"),
    "covariance as text": (
        lambda: sgd.TeacherStudent(covariance=[("1", 1.0)]),
        "covariance eigenvalue = '1'",
    ),
    "teacher head of text": (
        lambda: sgd.TeacherStudent(teacher_head=["1"]),
        r"teacher_head = \['1'\]",
    ),
    "teacher head of True": (
        lambda: sgd.TeacherStudent(teacher_head=[True]),
        r"teacher_head = \[True\]",
    ),
    "teacher gram complex": (
        lambda: sgd.TeacherStudent(teacher_gram=[[1j]]),
        r"teacher_gram = \[\[1j\]\]",
    ),
    "clusters of text": (
        lambda: sgd.Problem(
            lambda f, s, a, y: y * f[0], 2, 1, clusters=[("0.5", [1.0], 1.0), (0.5, [-1.0], 0.0)]
        ),
        "clusters weight = '0.5'",
    ),
    "times of text": (solve(sgd.solve_ode, times=["1.0"]), r"times = \['1.0'\]"),
    "times of True": (solve(sgd.solve_ode, times=[False, True]), r"times = \[False, True\]"),
    "orthogonal": (
        lambda: sgd.random_start(PROBLEM, dimension=50, orthogonal="yes"),
        "orthogonal = 'yes': give True or False",
    ),
    "higher_order": (
        solve(sgd.solve_sde, times=[1.0], dimension=50, higher_order="no"),
        "higher_order = 'no': give True or False",
    ),
    "higher_order, spiked": (
        solve(
            sgd.solve_sde, SPIKED, SGD, SPIKED_START, times=[1.0], dimension=50, higher_order="no"
        ),
        "higher_order = 'no': give True or False",
    ),
    "progress": (
        solve(sgd.simulate, times=[1.0], dimension=50, progress="no"),
        "progress = 'no': give True or False, or None",
    ),
    "rescale": (lambda: sgd.MultiPassSGD(rescale="no"), "rescale = 'no': give True or False"),
    "unphysical": (lambda: sgd.fixed_points(PROBLEM, SGD, unphysical="no"), "unphysical = 'no'"),
    "batch": (
        lambda: sgd.OnePassSGD(batch=1e30),
        r"batch = 1e\+30: give a whole number from 1 to 9.22e\+18",
    ),
    "reuse": (
        lambda: sgd.updates.reuse(1e30),
        r"times = 1e\+30: give a whole number from 1 to 2.15e\+09",
    ),
    "order": (
        lambda: sgd.SpikedTensor(order=1e9),
        r"order = 1000000000.0: give a whole number from 2 to 100$",
    ),
    "seed": (solve(sgd.simulate, times=[1.0], dimension=50, seed=2**80), "seed = "),
    "seed of hundreds of digits": (
        solve(sgd.simulate, times=[1.0], dimension=50, seed=10**400),
        "seed = 1000",
    ),
    "dimension": (
        lambda: sgd.random_start(PROBLEM, dimension=1e30),
        r"dimension = 1e\+30: give a whole number from 1 to 1e\+18",
    ),
    "scale": (
        lambda: sgd.random_start(PROBLEM, dimension=50, scale=1e200),
        r"scale = 1e\+200: squared lengths",
    ),
    "scale, small": (
        lambda: sgd.random_start(PROBLEM, dimension=50, scale=1e-200),
        r"scale = 1e-200: squared lengths",
    ),
    "scale, spiked": (
        lambda: sgd.random_start(SPIKED, dimension=50, scale=1e200),
        r"scale = 1e\+200",
    ),
    "scale, wide": (
        lambda: sgd.random_start(PROBLEM, dimension=50, scale=1e200, wide=True),
        r"scale = 1e\+200",
    ),
    "head of a random start": (
        lambda: sgd.random_start(PROBLEM, dimension=50, a=[1.0]),
        r"a has shape \(1,\): give shape \(2,\)",
    ),
    "head of a spiked start": (
        lambda: sgd.random_start(SPIKED, dimension=50, a=[1.0]),
        r"a = \[1.0\]: a spiked tensor has",
    ),
    "SDE without noise": (
        lambda: sgd.solve_sde(
            sgd.GaussianMixture("xor", snr=np.inf),
            SGD,
            sgd.random_start(sgd.GaussianMixture("xor", snr=np.inf), dimension=50),
            times=[1.0],
            dimension=50,
        ),
        r"snr=inf.*at snr = infinity the drift is discontinuous",
    ),
    "too many coefficients": (
        lambda: sgd.polynomial(np.ones(10**6)),
        "coefficients = .*100 at most",
    ),
}

RAW = {
    "start of nothing": (
        lambda: sgd.start(None, M=[[0.1]], Q=[[1.0]]),
        "problem = None: give sgd.TeacherStudent",
    ),
    "Start of lists of text": (lambda: sgd.Start([["x"]], [["y"]], ["z"]), "M_blocks = "),
    "Start of wrong shapes": (
        lambda: sgd.Start(np.zeros((2, 1)), np.eye(2), np.ones(2)),
        r"M_blocks has shape \(2, 1\)",
    ),
    "Start of no runs": (
        lambda: sgd.Start(np.zeros((0, 1, 2, 1)), np.zeros((0, 1, 2, 2)), np.zeros((0, 2))),
        "with at least one run",
    ),
    "Start of runs that differ": (
        lambda: sgd.Start(np.zeros((2, 1, 2, 1)), np.zeros((1, 1, 2, 2)), np.zeros((2, 2))),
        "M_blocks has shape",
    ),
    "Start of NaN": (
        solve(
            sgd.solve_ode,
            start=sgd.Start(np.zeros((1, 1, 2, 1)), np.full((1, 1, 2, 2), np.nan), np.ones((1, 2))),
            times=[1.0],
        ),
        "start has entries of Q that are not finite",
    ),
    "no runs": (
        lambda: sgd.start(PROBLEM, M=np.zeros((0, 2, 1)), Q=np.zeros((0, 2, 2))),
        r"M has shape \(0, 2, 1\)",
    ),
    "spiked start of no runs": (
        lambda: SpikedStart(np.zeros(0), np.zeros(0)),
        "with at least one run",
    ),
    "wide start of wrong shapes": (
        lambda: MeanFieldStart(np.zeros((2, 1)), np.ones(2), np.ones(2)),
        r"M has shape \(2, 1\)",
    ),
    "start_from a number": (lambda: sgd.start_from(3), "result = 3: give what"),
    "start_from nothing": (lambda: sgd.start_from(xr.Dataset()), "there is no 'time' in it"),
    "start_from without Q": (
        lambda: sgd.start_from(result().drop_vars(["q", "Q"])),
        "there is no 'Q' in it",
    ),
    "start_from other axes": (
        lambda: sgd.start_from(
            result(a=(("unit", "time", "run"), np.ones((2, 3, 2)))).drop_vars("q")
        ),
        "result.a = ",
    ),
    "start_from a text": (lambda: sgd.start_from(result(), time="end"), "time = 'end'"),
    "start_from NaN": (lambda: sgd.start_from(result(), time=np.nan), "time = nan"),
    "load a number": (lambda: sgd.load(3), "path = 3: give the name of a file"),
    "load nothing": (lambda: sgd.load(None), "path = None"),
    "load a nameless file": (lambda: sgd.load(""), "path = ''"),
    "save under a number": (lambda: sgd.save(result(), 3), "path = 3"),
    "save nothing": (lambda: sgd.save({}, "x.nc"), "result = {}: give at least one result"),
    "save into the parent group": (lambda: sgd.save({"..": result()}, "x.nc"), r"group = '\.\.'"),
    "save into a nested group": (lambda: sgd.save({"a/b": result()}, "x.nc"), "group = 'a/b'"),
    "save without a name": (lambda: sgd.save({"": result()}, "x.nc"), "group = ''"),
    "save under no text": (lambda: sgd.save({3: result()}, "x.nc"), "group = 3"),
    "save over a folder": (lambda: sgd.save(result(), "."), "path = '.': this is a folder"),
    "problem_of a number": (lambda: sgd.problem_of(3), "result = 3"),
    "problem_of nothing": (lambda: sgd.problem_of(xr.Dataset()), "it has no attribute 'problem'"),
    "problem_of damaged JSON": (
        lambda: sgd.problem_of(xr.Dataset(attrs={"problem": '{"kind": '})),
        "attribute problem = .*damaged",
    ),
    "problem_of deep JSON": (
        lambda: sgd.problem_of(xr.Dataset(attrs={"problem": DEEP})),
        "attribute problem = .*damaged",
    ),
    "problem_of a list": (
        lambda: sgd.problem_of(xr.Dataset(attrs={"problem": "[1]"})),
        "attribute problem = .*damaged",
    ),
    "problem_of an array": (
        lambda: sgd.problem_of(xr.Dataset(attrs={"problem": np.ones(3)})),
        "attribute problem = .*damaged",
    ),
    "algorithm_of a number": (lambda: sgd.algorithm_of(None), "result = None"),
    "algorithm_of deep JSON": (
        lambda: sgd.algorithm_of(xr.Dataset(attrs={"algorithm": DEEP})),
        "attribute algorithm = .*damaged",
    ),
    "rescale of a record": (
        lambda: sgd.algorithm_of(
            xr.Dataset(attrs={"algorithm": json.dumps({"kind": "MultiPassSGD", "rescale": "no"})})
        ),
        "rescale = 'no'",
    ),
    "density of a number": (
        lambda: sgd.plot.density(3),
        "result = 3: use the result of sgd.solve_mean_field",
    ),
    "density of an ODE": (
        lambda: sgd.plot.density(result().drop_vars("q")),
        "there is no 'q' in it",
    ),
    "density of a run": (
        lambda: sgd.plot.density(result(), run=7),
        "run = 7: the result has 2 runs",
    ),
    "density on no axis": (
        lambda: sgd.plot.density(result(), ax=3),
        "ax = 3: this must be a Matplotlib axis",
    ),
    "plot of a number": (lambda: plot.risk(3), "result = 3"),
    "plot without runs": (
        lambda: plot.risk(result().isel(run=slice(0, 0))),
        "no runs or no save points",
    ),
    "plot of no risk": (lambda: plot.risk(result().drop_vars("risk")), "there is no 'risk' in it"),
    "plot of an excess": (lambda: plot.risk(result(), excess="no"), "excess = 'no'"),
    "plot on no axis": (
        lambda: plot.risk(result(), ax=plot),
        "ax = .*this must be a Matplotlib axis",
    ),
    "plot with a label": (lambda: plot.risk(result(), label=3), "label = 3"),
    "overlaps of a spiked tensor": (
        lambda: plot.overlaps(result().drop_vars("M")),
        "there is no 'M' in it",
    ),
    "diagram of a number": (lambda: plot.phase_diagram(3, "lr", "noise"), "dataset = 3"),
    "diagram of a list": (
        lambda: plot.phase_diagram(sweep_result(), ["lr"], "noise"),
        r"x = \['lr'\]",
    ),
    "diagram of a value": (
        lambda: plot.phase_diagram(sweep_result(), "lr", "noise", value=3),
        "value = 3",
    ),
    "regimes of a number": (lambda: plot.regime_map(3), "regimes = 3"),
    "compare numbers": (lambda: sgd.compare(3, 4), "theory = 3"),
    "compare without runs": (
        lambda: sgd.compare(result(), result().drop_vars("diverged_at")),
        "there is no 'diverged_at' in it",
    ),
    "fit of a number": (
        lambda: sgd.fit_exponent(3, "mean", "lr"),
        "result = 3: use the result of sgd",
    ),
    "fit of a list": (lambda: sgd.fit_exponent(sweep_result(), ["mean"], "lr"), r"y = \['mean'\]"),
    "fit of texts": (
        lambda: sgd.fit_exponent(sweep_result(), "failed", "lr", noise=0.1),
        "y = 'failed': this variable is not numeric",
    ),
    "fit at a text": (
        lambda: sgd.fit_exponent(sweep_result(), "mean", "lr", noise="x"),
        "noise = 'x'",
    ),
    "fit beyond the end": (
        lambda: sgd.fit_exponent(sweep_result().drop_vars("noise"), "mean", "lr", noise=9),
        "noise = 9: use an index",
    ),
    "sweep into a number": (
        lambda: sgd.sweep(
            "solve_ode",
            over={"lr": [0.1]},
            problem=PROBLEM,
            algorithm=SGD,
            start=START,
            times=[1.0],
            store=3,
        ),
        "store = 3: give the name of a file or folder",
    ),
    "exits of nothing": (solve(sgd.exit_time, None), "problem = None"),
    "exits of a number": (lambda: sgd.exit_time_of(3, 0.2), "trajectory = 3"),
    "solve nothing": (solve(sgd.solve_sde, None, times=[1.0], dimension=50), "problem = None"),
    "simulate nothing": (solve(sgd.simulate, None, times=[1.0], dimension=50), "problem = None"),
    "a run of a state": (lambda: functional.state(START, 7), "run = 7"),
}

TABLE = {**FUNCTIONS, **REACH, **VALUES, **RAW}
assert len(TABLE) == len(FUNCTIONS) + len(REACH) + len(VALUES) + len(RAW)


@pytest.fixture
def sixteen_gigabytes(monkeypatch):
    """Report the same free memory on each machine."""
    monkeypatch.setattr(resources, "available_bytes", lambda: 16 * 2.0**30)


@pytest.mark.parametrize("name", TABLE)
def test_invalid_input_raises_with_the_name_of_the_argument_at_once(
    name, sixteen_gigabytes, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    call, pattern = TABLE[name]
    start_time = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an overflow before the error fails too
        with pytest.raises(ValueError, match=pattern) as raised:
            call()
    assert time.process_time() - start_time < MAX_SECONDS
    message = str(raised.value)
    assert type(raised.value) is ValueError
    assert "\n" not in message
    assert len(message) < 700
    assert not any(tmp_path.iterdir())


def test_the_error_names_a_damaged_store(tmp_path):
    for text in (DEEP, '{"identity": ', "[]", '{"identity": 3}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(
            ValueError, match=r"store: .*manifest.json .*: use another folder as store="
        ):
            sgd.sweep(
                "solve_ode",
                over={"lr": [0.1]},
                problem=PROBLEM,
                algorithm=SGD,
                start=START,
                times=[1.0],
                store=tmp_path,
            )


def test_scalars_of_all_types_are_accepted():
    """Scalars of Python, NumPy and JAX and arrays without dimensions; strings and True are not."""
    for value in (
        1,
        1.0,
        np.float32(1),
        np.int64(1),
        np.array(1.0),
        jnp.asarray(1.0),
        np.float64(1),
    ):
        assert sgd.TeacherStudent(noise=value).noise == 1.0
        assert sgd.OnePassSGD(lr=value, batch=value).batch == 1
    start = sgd.random_start(PROBLEM, dimension=np.int32(50), orthogonal=np.True_)
    np.testing.assert_allclose(start.Q[0], np.eye(2), atol=1e-12)
    record = json.dumps({"kind": "GaussianMixture", "snr": "inf"})
    assert sgd.problem_of(xr.Dataset(attrs={"problem": record})).snr == np.inf


def test_valid_functions_pass_the_trial():
    """The trial accepts all functions that a run can use.

    Examples are kinks, labels that are classes, and losses that are finite only for the labels of
    their target.
    """
    sgd.TeacherStudent(
        width=2, activation=sgd.Activation(lambda x: jnp.clip(x, -1, 1), kinks=(-1, 1))
    )
    sgd.TeacherStudent(width=2, activation=lambda x: jnp.sqrt(jnp.abs(x)))
    sgd.MultiIndex(
        lambda z: jnp.where(z[0] > 0, 1, -1),
        directions=2,
        width=2,
        activation="erf",
        loss="logistic",
    )
    poisson = lambda f, y: jnp.exp(f) - y * f + y * jnp.log(y)  # noqa: E731
    sgd.MultiIndex(lambda z: jnp.exp(z[0]), directions=1, width=2, activation="erf", loss=poisson)
    with pytest.raises(ValueError, match=r"loss = .*not finite at output .* and label -"):
        sgd.MultiIndex(lambda z: z[0], directions=1, width=2, activation="erf", loss=poisson)


def test_a_problem_can_be_constructed_while_jax_traces():
    """The functions of the problem are tried on concrete values, also inside of a trace."""

    def scale_by_width(x):
        problem = sgd.TeacherStudent(width=2, activation=lambda y: jnp.tanh(y) + 0.1 * y)
        return x * problem.width

    assert float(jax.jit(scale_by_width)(2.0)) == 4.0


@pytest.mark.parametrize(
    "solver", ["solve_ode", "solve_sde", "simulate", "solve_mean_field", "exit_time"]
)
def test_solvers_inside_jit_point_to_functional(solver):
    options = {} if solver == "exit_time" else {"times": [1.0]}
    if solver in ("solve_sde", "simulate"):
        options["dimension"] = 50

    def solve_inside(x):
        return getattr(sgd, solver)(PROBLEM, SGD, START, **options)

    with pytest.raises(ValueError, match=rf"{solver} is called inside jit: .*sgd.functional"):
        jax.jit(solve_inside)(1.0)


def test_traced_arguments_point_to_functional():
    """Under grad and vmap only the argument is traced."""
    calls = {
        "lr": lambda x: sgd.OnePassSGD(lr=x),
        "noise": lambda x: sgd.TeacherStudent(noise=x),
        "M": lambda x: sgd.start(PROBLEM, M=[[x], [0.1]], Q=np.eye(2)),
        "times": lambda x: sgd.solve_ode(PROBLEM, SGD, START, times=x),
        "batch": lambda x: sgd.OnePassSGD(batch=x),
    }
    for name, call in calls.items():
        for transform in (jax.grad, jax.vmap, jax.jit):
            with pytest.raises(
                ValueError, match=rf"{name} = .*sgd.functional|inside jit: .*sgd.functional"
            ):
                transform(lambda x, call=call: call(x) and x)(
                    jnp.ones(2) if transform is jax.vmap else 1.0
                )


def test_a_random_start_accepts_a_head():
    head = [0.5, -1.0]
    without_head = sgd.random_start(PROBLEM, dimension=50, runs=3, seed=4)
    with_head = sgd.random_start(PROBLEM, dimension=50, runs=3, seed=4, a=head)
    np.testing.assert_array_equal(with_head.a, np.tile(head, (3, 1)))
    np.testing.assert_array_equal(with_head.Q, without_head.Q)
    heads = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(sgd.random_start(PROBLEM, dimension=50, runs=3, a=heads).a, heads)
    mixture = sgd.GaussianMixture("binary", width=2)
    np.testing.assert_array_equal(sgd.random_start(mixture, dimension=50, a=head).a, [head])
    assert not np.array_equal(sgd.random_start(mixture, dimension=50).a, [[1.0, 1.0]])


def test_exits_of_a_spiked_trajectory():
    """Spiked tensors have no exit_time; exit_time_of reads the risk or the overlap m."""
    dims = ("run", "time")
    trajectory = xr.Dataset(
        {
            "m": (dims, [[0.1, 0.3, 0.7]]),
            "r2": (dims, [[1.0, 1.0, 1.0]]),
            "risk": (dims, [[2.0, 1.0, 0.5]]),
        },
        {"t": ("time", [0.0, 1.0, 2.0]), "diverged_at": ("run", [np.nan])},
    )
    assert sgd.exit_time_of(trajectory, 0.5, criterion="overlap").times[0] == pytest.approx(1.5)
    assert sgd.exit_time_of(trajectory, 0.25).times[0] == pytest.approx(0.5)


def test_large_computations_are_within_the_limits():
    """The limits are beyond a day of run-steps on an accelerator, and beyond d = 1e9 to t = 10."""
    resources.check_work("steps", 10**6, 1e9)
    resources.check_work("steps", 1, 1e12)
    resources.check_steps("times", 10.0, 10.0 * 1e9 / 1e-3)
    resources.check_memory("runs", 1, 1e6, "", "")


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_hermite_activations_are_normalised_as_documented(order):
    """The page on activations and the docstring state it: not normalised, E[he_n(z)^2] = n!."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    values = np.asarray(sgd.problems.activations.NAMED[f"he{order}"](nodes))
    assert weights @ values**2 / weights.sum() == pytest.approx(math.factorial(order))
    root = Path(__file__).parents[2]
    page = (root / "docs/howto/activation.md").read_text(encoding="utf-8")
    assert "so that E[Heₙ(z)²] = n!" in page
    assert "he3 = x^3 - 3x" in sgd.Activation.__doc__


def test_fixed_points_do_not_warn_of_overflows():
    """High powers exceed float64 on the way to a root, without a warning for the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for snr, ridge, lr in (
            (1e-3, 0.0, 1e-6),
            (1e-3, 0.0, 20.0),
            (1e-3, 1e-8, 20.0),
            (1e3, 0.1, 20.0),
            (1.2, 0.0, 0.1),
        ):
            points = sgd.fixed_points(
                sgd.SpikedTensor(order=100, snr=snr, ridge=ridge), sgd.OnePassSGD(lr=lr)
            )
            assert points[0].m >= 0
            assert all(np.isfinite((point.m, point.r2)).all() for point in points)
