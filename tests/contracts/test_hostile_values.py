"""Invalid values for each argument of each public function: a ValueError, or a normal answer.

Solvers stop where their work would begin (`before_work`), so that ten thousand calls take seconds;
all checks are real.
"""

from __future__ import annotations

import inspect
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from jax.experimental.compilation_cache import compilation_cache as jax_cache

import sgdynamics as sgd
from sgdynamics import updates
from sgdynamics.base import registry, resources
from sgdynamics.plotting import plot
from sgdynamics.results.datasets import encode
from sgdynamics.solvers import functional
from tests.algorithms import torch_stand_ins as stand_ins
from tests.contracts.before_work import Work, stop_before_work
from tests.contracts.kinds import algorithm_of
from tests.contracts.questions import all_arguments
from tests.contracts.test_bad_input import (
    PROBLEM,
    SGD,
    SPIKED,
    SPIKED_START,
    START,
    result,
    sweep_result,
)

mpl.use("Agg")


def nothing(*_):
    return None


def fails(*_):
    return 1 / 0


HOSTILE = [
    *(None, float("nan"), float("inf"), -1, 0, 1.5, 1e12, 1e300, 10**400, True, np.array(True), 1j),
    *("", "x", b"x", [], {}, [[["a"]]], [np.nan], [1e300], np.zeros(0), np.zeros((3, 0, 2))),
    *(object(), object, nothing, fails, xr.Dataset()),
]
ROWS = np.eye(2, 30)
TORCH_NETWORK = stand_ins.Sequential(
    stand_ins.Linear(ROWS), stand_ins.Tanh(), stand_ins.Linear(np.ones((1, 2)))
)
OPTIMISER = stand_ins.optimiser("SGD", {"params": TORCH_NETWORK.parameters(), "lr": 0.1})
EFFECTIVE = {
    "loss": lambda x, y: jnp.sum((x - y) ** 2),
    "sample": lambda key, d: jax.random.normal(key, (d,)),
    "statistics": lambda x: x[:1],
    **{
        "lr": 0.1,
        "samples": 64,
        "seed": 0,
        "antithetic": None,
        "controls": None,
        "names": None,
        "progress": None,
    },
}
NETWORK = {
    "noise": 0.0,
    "head": "fixed",
    "constraint": None,
    "weight_decay": 0.0,
    "loss": "squared",
    "covariance": None,
}
FIXED = {"lr": 0.1, "samples_per_dimension": 2.0, "head_rate": 1.0}
SOLVE = {"problem": PROBLEM, "algorithm": SGD, "start": START}
SPIKED_SOLVE = {"problem": SPIKED, "algorithm": SGD, "start": SPIKED_START}
LOSS_CURVE = (np.arange(30.0) + 1, np.full(30, 0.1), 2 + 1 / (np.arange(30.0) + 1))
SCHEDULE = {"peak": 0.5, "steps": 10.0, "alpha": None}
CLOCK = {"times": [0.0, 1.0], "alpha": None, "steps": None}
RUNS = {"dimension": 50, "runs": 2, "seed": 0, "progress": None}
SIMULATE = {**RUNS, "method": "exact", "dtype": "float64"}
DATA = {**SOLVE, "algorithm": sgd.GradientDescent()}


def plain_step(state, gradient, lr, D, number, factor):
    return {"weights": -factor * lr / D * gradient(state["weights"])}


def plain_rule(sample, factor):
    return sample.weight * sample.slope(sample.fields), sample.memory


def jax_network(parameters, x):
    return parameters["u"] @ jnp.tanh(parameters["W"] @ x)


def cite_subject(subject):
    return sgd.cite(subject)


def stages_result():
    """A result with the stages that `gap_recovered` reads."""
    risk = xr.DataArray([[0.3, 0.2, 0.1]], dims=("run", "time"))
    stage = ("time", ["weak", "strong", "ceiling"])
    return xr.Dataset({"risk": risk}, {"stage": stage})


# Stands for an instance of PyTorch's SGD, which from_torch recognises by its class name.
TORCH_SGD = type("SGD", (), {"param_groups": ({"lr": 0.1, "momentum": 0.9},)})()


CALLS = {
    "Activation": (
        sgd.Activation,
        {"f": jnp.tanh, "kinks": (), "name": None, "coefficients": None},
    ),
    "polynomial": (sgd.polynomial, {"coefficients": [0, 1]}),
    "TeacherStudent": (
        sgd.TeacherStudent,
        {
            **NETWORK,
            "width": 2,
            "teacher_width": 1,
            "activation": "erf",
            "teacher_activation": None,
            "teacher_gram": None,
            "teacher_head": None,
        },
    ),
    "MultiIndex": (
        sgd.MultiIndex,
        {
            **NETWORK,
            "target": lambda z: z[0],
            "directions": 1,
            "width": 2,
            "activation": "erf",
            "gram": None,
        },
    ),
    "GaussianMixture": (
        sgd.GaussianMixture,
        {"kind": "binary", "width": 2, "snr": 10.0, "weight_decay": 0.1, "activation": "relu"},
    ),
    "Problem": (
        sgd.Problem,
        {
            **{name: value for name, value in NETWORK.items() if name not in ("noise", "loss")},
            **{
                "loss": lambda f, s, a, z: jnp.sum(f) * s[0] + z,
                "width": 2,
                "signals": 1,
                "gram": None,
                "clusters": None,
            },
            **{"parameters": None, "kinks": ()},
        },
    ),
    "Rule": (
        sgd.Rule,
        {
            **{name: value for name, value in NETWORK.items() if name not in ("noise", "loss")},
            **{
                "update": lambda f, s, a, z, o: sgd.Move(f * o.Q[0, 0]),
                "groups": {"w": 2},
                "rates": {"w": 1.0},
                "risk": None,
            },
            **{
                "reads_lengths": False,
                "signals": 1,
                "gram": None,
                "clusters": None,
                "parameters": None,
                "kinks": (),
            },
        },
    ),
    "attention": (
        sgd.models.attention,
        {
            **{
                "tokens": 2,
                "noise": 0.1,
                "token_correlation": 0.2,
                "gram": None,
                "constraint": None,
                "weight_decay": 0.0,
            },
            **{"covariance": None},
        },
    ),
    "positional_semantic": (
        sgd.models.positional_semantic,
        {
            "omega": 0.3,
            "encoding": 1.0,
            "contrast": 0.5,
            "constraint": "sphere",
            "weight_decay": 0.0,
        },
    ),
    "sequence_single_index": (
        sgd.models.sequence_single_index,
        {
            **{
                "link": "product",
                "tokens": 2,
                "target": None,
                "noise": 0.0,
                "constraint": "sphere",
                "token_correlation": None,
            },
            **{"means": None, "weight_decay": 0.0, "covariance": None},
        },
    ),
    "sequence_information_exponent": (
        sgd.models.sequence_information_exponent,
        {"link": "product", "tokens": 2, "target": None, "tolerance": 1e-7},
    ),
    "autoencoder": (
        sgd.models.autoencoder,
        {"width": 1, "activation": "erf", "spikes": (3.0,), "tied": False, "weight_decay": 0.0},
    ),
    "perceptron": (sgd.models.perceptron, {"rule": "hebb", "weight_decay": 0.0}),
    "lora": (
        sgd.models.lora,
        {
            **{"rank": 1, "activation": "erf", "head": (1.0,), "shift": (1.0,), "gram": None},
            **{"noise": 0.0, "weight_decay": 0.0},
        },
    ),
    "mlp": (
        sgd.models.mlp,
        {
            **{"widths": (2, 2), "activation": "tanh", "teacher": None, "signals": 2},
            **{"noise": 0.0, "biases": False, "weight_decay": 0.0},
        },
    ),
    "softmax": (
        sgd.models.softmax,
        {"classes": 2, "width": 1, "activation": "tanh", "biases": False, "weight_decay": 0.0},
    ),
    "gan": (
        sgd.models.gan,
        {
            "rates": None,
            "noise": 1.0,
            "generator_noise": 1.0,
            "normalisation": 1.0,
            "weight_decay": 0.0,
        },
    ),
    "LinearModes": (
        sgd.scaling.LinearModes,
        {
            "eigenvalues": [1.0],
            "counts": [2.0],
            "errors": [1.0],
            "noise": 0.0,
            "kappa": 1.0,
            "targets": [1.0],
            "along": None,
        },
    ),
    "LinearModes.risk": (
        sgd.scaling.LinearModes([1.0], [2.0], [1.0]).risk,
        {"steps": [0, 3], "step": 0.1, "batch": 1, "weight_decay": 0.0},
    ),
    "Spectrum": (
        sgd.Spectrum,
        {"eigenvalues": [2.0, 1.0], "multiplicities": [1, 5], "target": None},
    ),
    "power_law": (
        sgd.power_law,
        {"exponent": 1.5, "dimension": 1000, "target": 0.3, "raw": 3, "bins": 4},
    ),
    "spectrum_of": (sgd.spectrum_of, {"X": np.eye(4, 3), "y": np.ones(4)}),
    "RandomFeatures": (
        sgd.scaling.RandomFeatures,
        {"data_exponent": 0.7, "target_exponent": 0.3, "features": 10, "inputs": 100},
    ),
    "Equivalent.risk": (
        sgd.scaling.RandomFeatures(0.7, 0.3, 10).equivalent().risk,
        {"steps": [10, 30], "step": 0.1, "batch": 1, "noise": 0.0},
    ),
    "forecast": (
        sgd.forecast,
        {
            **{"curves": LOSS_CURVE, "schedule": None, "model": "annealing"},
            **{"skip": 0.06, "level": 0.9, "warn": False},
        },
    ),
    "monitor": (
        sgd.monitor,
        {
            **{"schedule": sgd.schedules.constant(0.1, 30), "steps": 30.0, "interval": 10},
            **{"curves": LOSS_CURVE, "model": "theory", "level": 0.9, "log": nothing},
        },
    ),
    "schedules.constant": (sgd.schedules.constant, {**SCHEDULE, "warmup": 1.0}),
    "schedules.cosine": (sgd.schedules.cosine, {**SCHEDULE, "warmup": 1.0, "final": 0.1}),
    "schedules.wsd": (
        sgd.schedules.wsd,
        {**SCHEDULE, "decay": 0.2, "warmup": 1.0, "final": 0.1, "shape": "linear"},
    ),
    "schedules.multistep": (
        sgd.schedules.multistep,
        {**SCHEDULE, "milestones": [0.5, 0.8], "factor": 0.1},
    ),
    "schedules.piecewise": (
        sgd.schedules.piecewise,
        {"edges": [2.0, 5.0], "rates": [1.0, 0.5, 0.1], "steps": 10.0, "alpha": None},
    ),
    "schedules.from_file": (sgd.schedules.from_file, {"path": "rates.csv"}),
    "phase": (sgd.scaling.phase, {"data_exponent": 0.7, "target_exponent": 0.3}),
    "compute_optimal": (
        sgd.scaling.compute_optimal,
        {
            **{
                "data_exponent": 1.0,
                "target_exponent": 0.7,
                "flops": [1e4, 1e5, 1e6, 1e7],
                "rate": 0.5,
                "batch": 1,
            },
            **{"inputs_per_feature": 4.0},
        },
    ),
    "SpikedTensor": (sgd.SpikedTensor, {"order": 2, "snr": 1.2, "ridge": 0.0}),
    "DeepLinear": (
        sgd.DeepLinear,
        {
            "depth": 3,
            "width_per_dimension": 1.0,
            "gamma0": 1.0,
            "parametrisation": "mup",
            "start_scale": 1.0,
            "noise": 0.1,
            "weight_decay": 0.1,
            "covariance": [(1.0, 0.5), (2.0, 0.5)],
            "teacher": [0.6, 0.8],
        },
    ),
    "WideNetwork": (
        sgd.WideNetwork,
        {
            "inputs": [[1.0, 0.5], [0.2, -1.0]],
            "labels": [1.0, -1.0],
            "hidden_layers": 2,
            "activation": "tanh",
            "gamma0": 1.0,
            "test_inputs": [[0.3, 0.1]],
            "test_labels": [0.5],
        },
    ),
    "DiagonalNetwork": (
        sgd.DiagonalNetwork,
        {
            "teacher": [(1.0, 0.2), (0.0, 0.8)],
            "start": (1.0, 0.0),
            "noise": 0.1,
            "weight_decay": 0.1,
            "covariance": [(1.0, 0.5), (2.0, 0.5)],
        },
    ),
    "DiagonalNetwork.late_law": (
        sgd.DiagonalNetwork(noise=0.1).late_law,
        {"lr": 0.3, "batch": 1},
    ),
    "DiagonalNetwork.interpolator": (
        sgd.DiagonalNetwork().interpolator,
        {"samples_per_dimension": 0.5},
    ),
    "Start": (
        sgd.Start,
        {
            "M_blocks": np.zeros((1, 1, 2, 1)),
            "Q_blocks": np.eye(2)[None, None],
            "a": np.ones((1, 2)),
        },
    ),
    "OnePassSGD": (
        sgd.OnePassSGD,
        {"lr": 0.1, "batch": 1, "head_rate": 1.0, "update": None, "per": "trace"},
    ),
    "GradientDescent": (sgd.GradientDescent, FIXED),
    "MultiPassSGD": (sgd.MultiPassSGD, {**FIXED, "batch_fraction": 0.5, "rescale": True}),
    "PersistentSGD": (
        sgd.PersistentSGD,
        {**FIXED, "batch_fraction": 0.5, "rescale": True, "persistence_time": 1.0},
    ),
    "Langevin": (sgd.Langevin, {**FIXED, "temperature": 1.0}),
    "AMP": (sgd.AMP, {"samples_per_dimension": 3.0, "estimator": "bayes", "start": "zero"}),
    "EpochSGD": (sgd.EpochSGD, {**FIXED, "batch": 1, "order": "reshuffle"}),
    "EpochSGD.cells": (sgd.EpochSGD().cells, {"given": 16}),
    "piecewise_rate": (sgd.piecewise_rate, {"edges": [1.0], "rates": [1.0, 0.0]}),
    "labels.sign": (sgd.labels.sign, {"flip": 0.1}),
    "labels.probit": (sgd.labels.probit, {"noise": 0.1}),
    "labels.logistic": (sgd.labels.logistic, {"slope": 2.0}),
    "labels.outcomes": (
        sgd.labels.outcomes,
        {
            "values": [-1.0, 1.0],
            "probabilities": lambda z: jax.nn.softmax(jnp.array([-z[0], z[0]])),
            "kinks": (),
        },
    ),
    "labels.additive": (
        sgd.labels.additive,
        {"function": lambda z: z[0], "noise": 0.1, "kinks": ()},
    ),
    "labels.student_t": (sgd.labels.student_t, {"df": 3.0, "scale": 1.0}),
    "labels.laplace": (sgd.labels.laplace, {"scale": 1.0}),
    "labels.cauchy": (sgd.labels.cauchy, {"scale": 1.0}),
    "updates.state_rate": (updates.state_rate, {"rate": lambda overlaps: overlaps.Q[0, 0]}),
    "updates.momentum": (updates.momentum, {"beta": 0.5}),
    "updates.momentum, slow": (updates.momentum, {"memory": 0.5}),
    "updates.nesterov": (updates.nesterov, {"beta": 0.5}),
    "updates.average": (updates.average, {"memory": 0.5}),
    "updates.schedule_free": (updates.schedule_free, {"beta": 0.5}),
    "updates.separate": (updates.separate, {"rows": None, "head": None}),
    "updates.dana": (updates.dana, {"velocity_rate": 1.0, "delta": 4.0, "offset": 0.5}),
    "updates.reuse": (updates.reuse, {"times": 2}),
    "updates.clipped": (updates.clipped, {"threshold": 1.0, "over": "row"}),
    "updates.sam": (updates.sam, {"radius": 0.1}),
    "updates.muon": (updates.muon, {"memory": 2.0, "newton_schulz": False}),
    "updates.adagrad_norm": (updates.adagrad_norm, {"start": 0.1}),
    "updates.adam": (
        updates.adam,
        {
            **{"memory": 2.0, "eps": 0.1, "weight_decay": 0.0, "beta": 0.9, "axes": True},
            "velocity_memory": None,
        },
    ),
    "updates.sparse": (updates.sparse, {"share": 0.5, "feedback": True}),
    "updates.sparse, per step": (updates.sparse, {"per_step": 2.0}),
    "updates.delayed": (updates.delayed, {"steps": 2}),
    "updates.delayed, per dimension": (updates.delayed, {"per_dimension": 0.5}),
    "updates.sign": (updates.sign, {"axes": True}),
    "updates.rmsprop": (updates.rmsprop, {"memory": 2.0, "eps": 0.1}),
    "updates.adagrad": (updates.adagrad, {"start": 0.1, "eps": 0.0}),
    "updates.weight_decay": (
        updates.weight_decay,
        {"rate": 0.1, "of": None, "decoupled": True, "head": None},
    ),
    "updates.inertia": (updates.inertia, {"friction": 0.5, "temperature": 0.1}),
    "updates.row_adam": (
        updates.row_adam,
        {"width": 2, "memory": 0.5, "eps": 0.1, "beta": 0.5},
    ),
    "updates.svrg": (updates.svrg, {"period": 5}),
    "updates.pdhg": (updates.pdhg, {"dual_lr": 0.5}),
    "updates.gradient_noise": (updates.gradient_noise, {"sigma": 0.1, "of": None}),
    "updates.own": (
        updates.own,
        {
            "step": plain_step,
            "rows": (),
            "scalars": (),
            "memory": "none",
            "rereads": False,
            "numbers": {"factor": 1.0},
            "on_sample": plain_rule,
            "samples": ("table",),
            "means": (),
        },
    ),
    "from_training": (
        sgd.from_training,
        {
            **{
                "network": TORCH_NETWORK,
                "loss": stand_ins.MSELoss(),
                "optimiser": OPTIMISER,
                "teacher": ROWS[:1],
            },
            **{"teacher_head": [1.0], "teacher_activation": "tanh", "noise": 0.0, "batch": 2},
            **{"activation": "tanh", "input_scale": 1.0, "covariance": None},
        },
    ),
    "from_torch": (
        sgd.from_torch,
        {
            **{"optimiser": TORCH_SGD, "dimension": 50, "batch": 1},
            **{"input_scale": 1.0, "network": None},
        },
    ),
    "contexts": (
        sgd.contexts,
        {"problems": {"a": PROBLEM, "b": PROBLEM}, "probabilities": [0.5, 0.5], "heads": "shared"},
    ),
    "ensemble": (sgd.ensemble, {"problem": PROBLEM, "students": 2, "data": "own"}),
    "Workers": (
        sgd.Workers,
        {
            "algorithm": SGD,
            "workers": 2,
            "every": 0.5,
            "outer_lr": 1.0,
            "outer_momentum": 0.0,
            "problems": None,
        },
    ),
    "largest_stable_lr": (sgd.largest_stable_lr, {"algorithm": SGD}),
    "Stage": (
        sgd.Stage,
        {
            "problem": PROBLEM,
            "algorithm": SGD,
            "alpha": 1.0,
            "labels": {"teacher": 0.5, "previous": 0.5},
            "mixing": "weighted",
            "label_noise": None,
            "start": "fresh",
            "name": None,
        },
    ),
    "stages": (
        sgd.stages,
        {
            "solver": sgd.solve_ode,
            "stages": [sgd.Stage(PROBLEM, SGD, 1.0)],
            "start": START,
        },
    ),
    "self_distillation": (
        sgd.self_distillation,
        {"problem": PROBLEM, "algorithm": SGD, "alpha": 1.0, "rounds": 1, "teacher": 0.0},
    ),
    "weak_to_strong": (
        sgd.weak_to_strong,
        {
            "weak": (PROBLEM, SGD, 1.0),
            "strong": (PROBLEM, SGD, 1.0),
            "start": START,
            "label_noise": 0.0,
        },
    ),
    "gap_recovered": (sgd.gap_recovered, {"result": stages_result()}),
    "model_collapse": (
        sgd.model_collapse,
        {
            "problem": PROBLEM,
            "algorithm": SGD,
            "alpha": 1.0,
            "generations": 2,
            "real": 0.5,
            "mixing": "weighted",
            "start": "fresh",
        },
    ),
    "best_share": (
        sgd.best_share,
        {
            "problem": PROBLEM,
            "algorithm": SGD,
            "start": START,
            "alpha": 1.0,
            "generations": 2,
            "mixing": "weighted",
            "fresh": True,
        },
    ),
    "fine_tuning": (
        sgd.fine_tuning,
        {"pretraining": (PROBLEM, SGD, 1.0), "tuning": (PROBLEM, SGD, 1.0), "replay": 0.0},
    ),
    "phases": (
        sgd.phases,
        {"solver": sgd.solve_ode, "parts": [(PROBLEM, sgd.OnePassSGD(), 1.0)], "start": START},
    ),
    "start": (
        sgd.start,
        {
            "problem": PROBLEM,
            "M": [[0.3], [0.1]],
            "Q": np.eye(2),
            "a": None,
            "q": None,
            "m": None,
            "r2": None,
        },
    ),
    "start, wide": (
        sgd.start,
        {"problem": PROBLEM, "M": [[0.3], [0.1]], "q": [1.0, 1.0], "a": None},
    ),
    "start, spiked": (sgd.start, {"problem": SPIKED, "m": 0.1, "r2": 1.0}),
    "random_start": (
        sgd.random_start,
        {
            "problem": PROBLEM,
            "dimension": 50,
            "seed": 0,
            "runs": 1,
            "scale": 1.0,
            "orthogonal": False,
            "a": None,
            "per": "dimension",
            "wide": False,
            "sampling": "independent",
        },
    ),
    "random_start, spiked": (
        sgd.random_start,
        {"problem": SPIKED, "dimension": 50, "seed": 0, "runs": 1, "scale": 1.0},
    ),
    "random_start, wide": (
        sgd.random_start,
        {
            "problem": PROBLEM,
            "dimension": 50,
            "seed": 0,
            "runs": 1,
            "scale": 1.0,
            "a": None,
            "wide": True,
            "sampling": "sobol",
        },
    ),
    "start_from": (sgd.start_from, {"result": result(), "time": -1}),
    "from_network": (
        sgd.from_network,
        {
            **{"network": jax_network, "parameters": {"W": ROWS, "u": np.ones(len(ROWS))}},
            **{"teacher": ROWS[:1], "target": jnp.sum, "loss": "squared", "noise": 0.0},
            **{"weight_decay": 0.0, "input_scale": 1.0},
        },
    ),
    "overlaps_of": (
        sgd.overlaps_of,
        {
            **{"weights": ROWS, "teacher": ROWS[:1], "head": None, "problem": PROBLEM},
            **{"input_scale": 1.0, "output_scale": None, "teacher_scale": None},
        },
    ),
    "solve_ode, spiked": (
        sgd.solve_ode,
        {**SPIKED_SOLVE, **CLOCK, "dimension": 50, "rtol": 1e-6, "atol": 1e-8},
    ),
    "solve_sde, spiked": (
        sgd.solve_sde,
        {**SPIKED_SOLVE, **CLOCK, **RUNS, "higher_order": True, "step": 0.1, "devices": None},
    ),
    "solve_dmft, epochs": (
        sgd.solve_dmft,
        {
            **DATA,
            "algorithm": sgd.EpochSGD(),
            "alpha": [0.0, 3.0],
            "paths": 512,
            "replicates": 2,
            "cells": 16,
            "method": sgd.DMFT(),
            "devices": None,
        },
    ),
    "simulate, epochs": (
        sgd.simulate,
        {
            **DATA,
            "algorithm": sgd.EpochSGD(),
            "alpha": [0.0, 1.0],
            **SIMULATE,
            "shared_data": False,
        },
    ),
    "DMFT": (
        sgd.DMFT,
        {
            "form": "projections",
            "tolerance": 1e-6,
            "rank": None,
            "dtype": "float64",
            "memory": None,
            "memory_directions": None,
            "keep": None,
        },
    ),
    "early_stopping": (sgd.early_stopping, {"trajectory": result()}),
    "simulate, direct": (
        sgd.simulate,
        {**SOLVE, "alpha": [0.0, 1.0], **SIMULATE, "method": "direct", "dtype": "float32"},
    ),
    "simulate, spiked": (sgd.simulate, {**SPIKED_SOLVE, "steps": [0.0, 1.0], **SIMULATE}),
    "simulate, data": (
        sgd.simulate,
        {
            **DATA,
            "steps": [0.0, 1.0],
            **SIMULATE,
            "shared_data": False,
            "stop_at": None,
            "reduce": None,
            "devices": None,
            "record": None,
            "evaluate": None,
        },
    ),
    "simulate, data, direct": (
        sgd.simulate,
        {**DATA, "steps": [0.0, 1.0], **SIMULATE, "method": "direct", "shared_data": False},
    ),
    "on_train": (sgd.on_train, {"function": lambda f, s, a, z: f[0]}),
    "exit_time_of": (
        sgd.exit_time_of,
        {"trajectory": result(), "threshold": 0.2, "criterion": "risk"},
    ),
    "plateau": (
        sgd.plateau,
        {"problem": sgd.TeacherStudent(width=2, teacher_width=2), "algorithm": SGD},
    ),
    "information_exponent": (
        sgd.information_exponent,
        {"f": "he3", "kinks": (), "tolerance": 1e-6},
    ),
    "generative_exponent": (sgd.generative_exponent, {"f": "he3", "kinks": (), "tolerance": 1e-6}),
    "hermite_coefficients": (sgd.hermite_coefficients, {"f": "he3", "n": 4, "kinks": ()}),
    "hermite_series": (sgd.hermite_series, {"f": "he3", "n": 4, "kinks": ()}),
    "leap_complexity": (
        sgd.leap_complexity,
        {"g": lambda z: z[0] * z[1], "variables": 2, "kinks": (), "tolerance": 1e-6},
    ),
    "sample_complexity": (
        sgd.sample_complexity,
        {"f": "he3", "lr": None, "noise": 0.0, "overlap": 0.5, "kinks": ()},
    ),
    "effective_dynamics": (
        sgd.effective_dynamics,
        {**EFFECTIVE, "point": np.zeros(5), "dimension": 5},
    ),
    "effective_scaling": (
        sgd.effective_scaling,
        {**EFFECTIVE, "point": lambda d: np.zeros(d), "dimensions": [4, 5, 6]},
    ),
    "compare": (sgd.compare, {"theory": result(), "simulation": result()}),
    "save": (sgd.save, {"result": result(), "path": "saved.nc"}),
    "load": (sgd.load, {"path": "saved.nc", "group": None}),
    "cite": (sgd.cite, {}),
    "cite, subject": (cite_subject, {"subject": PROBLEM}),
    "compile_cache": (sgd.compile_cache, {"folder": "programs"}),
    "problem_of": (
        sgd.problem_of,
        {"result": result().assign_attrs(problem=encode(PROBLEM.describe()))},
    ),
    "algorithm_of": (
        sgd.algorithm_of,
        {"result": result().assign_attrs(algorithm=encode(SGD.describe()))},
    ),
    "fit_exponent": (
        sgd.fit_exponent,
        {"result": sweep_result(), "y": "mean", "x": "lr", "noise": 0.1},
    ),
    "plot.density": (
        plot.density,
        {"result": result(), "time": -1, "ax": None, "run": None, "bins": 3},
    ),
    "plot.risk": (
        plot.risk,
        {
            "result": result(),
            "ax": None,
            "x": "t",
            "excess": None,
            "train": False,
            "log": True,
            "label": None,
        },
    ),
    "plot.overlaps": (
        plot.overlaps,
        {"result": result(), "ax": None, "x": "t", "name": "M", "label": None},
    ),
    "plot.phase_diagram": (
        plot.phase_diagram,
        {
            "dataset": sweep_result(),
            "x": "lr",
            "y": "noise",
            "value": "mean",
            "ax": None,
            "log": None,
            "label": None,
        },
    ),
    "plot.protocol": (plot.protocol, {"result": result()}),
    "plot.regime_map": (plot.regime_map, {"regimes": [], "ax": None}),
    "functional.state": (functional.state, {"start": START, "run": 0}),
    "functional.finite": (functional.finite, {"problem": PROBLEM, "dimension": 50, "batch": 1}),
}
# All questions of the registry, with all their arguments.
CALLS |= {
    question.name: (
        question.load(),
        all_arguments(question, PROBLEM, algorithm_of("fields", question.name), START),
    )
    for question in registry.questions().values()
    if question.name != "functional"  # a module: two of its functions are above
}
# Modules, classes of results, and objects without arguments that could be invalid.
NOT_CALLED = {
    "DataSpectrum",
    "Equations",
    "WeakRecovery",
    "Move",
    "models",
    "papers",
    "plot",
    "functional",
    "scaling",
    "labels",
    "updates",
    "schedules",
    "__version__",
    "Dynamics",
    "Expectation",
    "Forecast",
    "Monitor",
    "Moments",
    "supported",
    "Training",
}


# Functions of a result that takes long to compute: their valid call is left out.
NEEDS_A_RESULT = ("plot.protocol", "plot.regime_map")


def error_of(function, arguments):
    """The ValueError of a call, or None. Errors of other types fail the test."""
    try:
        function(**arguments)
    except Work:
        return None
    except ValueError as error:
        return error
    return None


@pytest.fixture
def compilation_cache():
    """JAX's compilation cache, which `compile_cache` changes, as before the test."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@pytest.mark.usefixtures("compilation_cache")
@pytest.mark.parametrize("name", CALLS)
def test_hostile_values(name, tmp_path, monkeypatch):
    stop_before_work(monkeypatch)
    monkeypatch.setattr(resources, "available_bytes", lambda: 16 * 2.0**30)
    monkeypatch.chdir(tmp_path)
    # compile_cache(None) uses the folder of this variable
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    sgd.save(result(), "saved.nc")
    Path("rates.csv").write_text("step,lr\n0,0.1\n10,0.2\n", encoding="utf-8")
    function, valid = CALLS[name]
    if name not in NEEDS_A_RESULT:
        # otherwise no call would reach the check of another argument
        assert error_of(function, valid) is None
    slowest = 0.0
    with warnings.catch_warnings():
        # warnings of the library, for example about runs that diverged
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", DeprecationWarning)
        for argument in valid:
            for value in HOSTILE:
                start_time = time.process_time()
                error = error_of(function, {**valid, argument: value})
                slowest = max(slowest, time.process_time() - start_time)
                if error is not None:
                    message = str(error)
                    assert type(error) is ValueError, (argument, value, error)
                    assert "\n" not in message, (argument, value, message)
                    assert 10 < len(message) < 700, (argument, value, message)
                plt.close("all")
    assert slowest < 5.0


def test_every_public_function_is_called():
    called = {function for function, _ in CALLS.values()}
    for name in sgd.__all__:
        value = getattr(sgd, name)
        is_answer = inspect.isclass(value) and value.__module__.startswith(
            ("sgdynamics.analysis", "sgdynamics.sweeps")
        )
        assert name in NOT_CALLED or is_answer or value in called, name
