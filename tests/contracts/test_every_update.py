"""All updates on all kinds of spectra, at widths 1 and 2, by all solvers.

A combination works, or raises ValueError before any work. All combinations are called up to the
point where the work begins, which takes no time. The slow tests run the accepted combinations.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from tests.contracts.before_work import Work, stop_before_work

UPDATES = {
    "adagrad": lambda: U.adagrad(0.5),
    "adagrad_norm": lambda: U.adagrad_norm(0.5),
    "adam": lambda: U.adam(memory=1.0, eps=0.02),
    "average": lambda: U.average(1.0),
    "clipped": lambda: U.clipped(0.3),
    "clipped rows": lambda: U.clipped(0.3, over="row"),
    "dana": lambda: U.dana(0.5, delta=2.0),
    "decay of adam": lambda: U.weight_decay(0.1, of=U.adam(memory=1.0, eps=0.02)),
    "decay of sign": lambda: U.weight_decay(0.1, of=U.sign()),
    "delayed": lambda: U.delayed(per_dimension=0.1),
    "delayed by steps": lambda: U.delayed(steps=2),
    "gradient_noise": lambda: U.gradient_noise(0.2),
    "inertia": lambda: U.inertia(0.5, temperature=0.1),
    "momentum": lambda: U.momentum(0.5),
    "slow momentum": lambda: U.momentum(memory=1.0),
    "muon": lambda: U.muon(),
    "fast muon": lambda: U.muon(beta=0.5),
    "slow muon": lambda: U.muon(memory=1.0),
    "nesterov": lambda: U.nesterov(0.5),
    "slow nesterov": lambda: U.nesterov(memory=1.0),
    "normalised": lambda: U.normalised(),
    "pdhg": lambda: U.pdhg(0.5),
    "polyak": lambda: U.polyak(),
    "reuse": lambda: U.reuse(2),
    "rmsprop": lambda: U.rmsprop(1.0, eps=0.1),
    "saga": lambda: U.saga(),
    "sam": lambda: U.sam(reach=0.2),
    "sam of a radius": lambda: U.sam(0.2),
    "row_adam": lambda width=1: U.row_adam(width, memory=1.0, beta=0.8),
    "separate": lambda: U.separate(rows=U.momentum(0.9)),
    "schedule_free": lambda: U.schedule_free(0.9),
    "sign": lambda: U.sign(),
    "sparse": lambda: U.sparse(share=0.4),
    "sparse without feedback": lambda: U.sparse(share=0.4, feedback=False),
    "sparse per step": lambda: U.sparse(per_step=2.0),
    "state_rate": lambda: U.state_rate(lambda overlaps: 1 / (1 + overlaps.Q[0, 0])),
    "svrg": lambda: U.svrg(5),
}
# Updates of single samples, which need a data set.
OF_SAMPLES = ("pdhg", "saga", "svrg")
LAW = sgd.power_law(1.2, 40, target=0.5, raw=1, bins=2)
SPECTRA = {
    "isotropic": None,
    "blocks": [(2.0, 0.4), (0.7, 0.2), (0.5, 0.4)],
    "Spectrum": sgd.Spectrum([2.0, 0.7, 0.3], [12, 14, 14], target=[0.8, 0.5, 0.3]),
    "power_law": LAW,
}
WIDTHS = (1, 2)
CALLS = {
    "solve_ode": sgd.solve_ode,
    "exact": partial(sgd.simulate, runs=2, seed=1),
    "direct": partial(sgd.simulate, runs=2, seed=1, method="direct"),
}
SPARSE = ("sparse", "sparse without feedback", "sparse per step")
COORDINATEWISE = ("adagrad", "adam", "decay of adam", "decay of sign", "rmsprop", "sign", *SPARSE)
WITHOUT_ODE = ("fast muon", "sam of a radius")


def is_unsupported(update, solver):
    """As documented: coordinatewise updates have no exact chain, and some have no limit."""
    return (
        update in OF_SAMPLES
        or (solver == "exact" and update in COORDINATEWISE)
        or (solver == "solve_ode" and update in WITHOUT_ODE)
    )


def call(update, spectrum, width, solver):
    covariance = SPECTRA[spectrum]
    options = {} if covariance is None else {"covariance": covariance}
    problem = sgd.TeacherStudent(width=width, activation="erf", noise=0.1, **options)
    # one second moment for each row
    sizes = {"width": width} if update == "row_adam" else {}
    algorithm = sgd.OnePassSGD(lr=0.3, update=UPDATES[update](**sizes), per="trace")
    if isinstance(covariance, sgd.Spectrum):
        start = sgd.random_start(problem, seed=3)
        return CALLS[solver](problem, algorithm, start, steps=[0, 3])
    start = sgd.random_start(problem, dimension=40, seed=3)
    dimension = {} if solver == "solve_ode" else {"dimension": 40}
    return CALLS[solver](problem, algorithm, start, alpha=[0.0, 0.1], **dimension)


def test_every_update_of_the_library_is_listed():
    assert {name for name in U.__all__ if name not in ("Update", "maker", "own")} == {
        UPDATES[name]().kind for name in UPDATES
    }


@pytest.mark.parametrize("update", UPDATES)
def test_unsupported_combinations_raise_before_any_work(update, monkeypatch):
    stop_before_work(monkeypatch)
    for spectrum, width, solver in itertools.product(SPECTRA, WIDTHS, CALLS):
        expected = ValueError if is_unsupported(update, solver) else Work
        with pytest.raises(expected):
            call(update, spectrum, width, solver)


FAST = {("adam", "power_law", 1)}
COMBINATIONS = [
    pytest.param(*combination, marks=[] if combination in FAST else pytest.mark.slow)
    for combination in itertools.product(UPDATES, SPECTRA, WIDTHS)
    if combination[0] not in OF_SAMPLES
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a step removes g l_1", "ignore:expectations are known only")
@pytest.mark.parametrize(("update", "spectrum", "width"), COMBINATIONS)
def test_every_update_works_on_every_spectrum(update, spectrum, width):
    """Overlaps, risk and error estimates are finite, and the weights move."""
    for solver in CALLS:
        if is_unsupported(update, solver):
            continue
        result = call(update, spectrum, width, solver)
        for name in ("M", "Q", "risk"):
            assert np.all(np.isfinite(result[name])), (solver, name)
        assert not np.allclose(result.M[:, 0], result.M[:, 1], rtol=1e-6, atol=0), solver
        errors = {name: value for name, value in result.attrs.items() if name.startswith("error_")}
        assert all(np.isfinite(value) for value in errors.values()), (solver, errors)
