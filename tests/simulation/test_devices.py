"""Runs on several devices have the numbers of runs on one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sgdynamics as sgd

SCRIPT = """
import jax
import numpy as np
import sgdynamics as sgd
from sgdynamics.fixed_data.path_groups import PathGroup
from sgdynamics.simulation.exact import ExactChain

assert len(jax.local_devices()) == 4
problem = sgd.TeacherStudent(width=1, noise=0.1)
start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
algorithm = sgd.OnePassSGD(lr=0.05)
places = set()
advance = ExactChain.advance


def advance_and_record(self, state, *arguments):
    places.add(state.rows.device)
    return advance(self, state, *arguments)


ExactChain.advance = advance_and_record
for runs in (1, 10):
    results = {}
    for devices in (1, None):
        places.clear()
        setting = {"steps": [3, 40], "dimension": 30, "runs": runs, "seed": 4}
        results[devices] = sgd.simulate(problem, algorithm, start, devices=devices, **setting)
        if runs == 10:
            assert len(places) == (devices or 4), (devices, places)
    for result in results.values():
        assert result.sizes["run"] == runs
        np.testing.assert_allclose(result.Q, results[1].Q, rtol=1e-12)
        np.testing.assert_allclose(result.M, results[1].M, rtol=1e-12)
        np.testing.assert_allclose(result.risk, results[1].risk, rtol=1e-9)
mean = sgd.simulate(problem, algorithm, start, reduce="mean", **setting)
np.testing.assert_allclose(mean.Q[0], results[1].Q.mean("run"), rtol=1e-12)
few = {**setting, "steps": [3], "dimension": 20, "method": "direct"}
direct = [sgd.simulate(problem, algorithm, start, devices=count, **few) for count in (1, 4)]
np.testing.assert_allclose(direct[0].Q, direct[1].Q, rtol=1e-12)
exits = {"method": "exact", "dimension": 30, "runs": 10, "max_time": 20.0, "threshold": 0.3}
times = [
    sgd.exit_time(problem, algorithm, start, devices=count, **exits).times for count in (1, None)
]
np.testing.assert_array_equal(*times)
assert np.isfinite(times[0]).any()

# paths of the SDE
setting = {"times": [0.2], "dimension": 100, "runs": 6, "step": 0.05}
paths = [sgd.solve_sde(problem, algorithm, start, devices=count, **setting) for count in (1, 3)]
np.testing.assert_allclose(paths[0].Q, paths[1].Q, rtol=1e-12)

# replicates of DMFT
dispatch, places = PathGroup.dispatch, set()


def dispatch_and_record(self, *arguments):
    places.add(next(iter(self.paths.rows.devices())))
    return dispatch(self, *arguments)


PathGroup.dispatch = dispatch_and_record
linear = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
on_data = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
dmft = {}
for count in (1, None):
    places.clear()
    dmft[count] = sgd.solve_dmft(linear, on_data, start, steps=[3], paths=1024, devices=count)
    assert len(places) == (count or 4), (count, places)
for name in ("Q", "train_risk", "Q_standard_error"):
    np.testing.assert_allclose(dmft[1][name], dmft[None][name], rtol=1e-9)

# points of a sweep that are solved together
from sgdynamics.sweeps import running
solve_points, places = running.compute, set()


def solve_and_record(*arguments):
    places.add(jax.numpy.zeros(1).device)
    return solve_points(*arguments)


running.compute = solve_and_record
over = {"lr": np.linspace(0.01, 0.2, 150)}
call = {"problem": linear, "algorithm": algorithm, "start": start, "times": [0.0, 0.5]}
sweeps = {}
for count in (1, 2):
    places.clear()
    sweeps[count] = sgd.sweep("solve_ode", over=over, devices=count, **call)
    assert len(places) == count, (count, places)
np.testing.assert_array_equal(sweeps[1].risk, sweeps[2].risk)
assert set(sweeps[2].failed.values) == {""}
print("the same")
"""


@pytest.mark.slow
def test_the_numbers_do_not_depend_on_the_number_of_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "the same"


def test_more_devices_than_there_are_raise():
    problem = sgd.TeacherStudent(width=1)
    start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    with pytest.raises(ValueError, match="devices = 99: this process has"):
        sgd.simulate(problem, sgd.OnePassSGD(lr=0.1), start, steps=[1], dimension=9, devices=99)
