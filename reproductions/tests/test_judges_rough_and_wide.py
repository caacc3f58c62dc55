"""Judges of rough landscapes and of dimension-free networks.

Each judge is tested with data that support all claims, with data that break one claim, and with few
runs. The data are those stored at full size, or artificial ones. Nothing is simulated.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics_reproductions.gallery import claims, stored_data
from sgdynamics_reproductions.gallery.judges import dimension_free as wide
from sgdynamics_reproductions.gallery.judges import rough_landscapes as rough

STORED = stored_data.FOLDER
THREE = ["GD", "SGD", "p-SGD"]


def random():
    return np.random.default_rng(5)


def scatter_runs(mean, spread, runs, axis=0):
    """Draw runs about a mean, along a new axis."""
    mean = np.expand_dims(np.asarray(mean, dtype=np.float64), axis)
    shape = list(mean.shape)
    shape[axis] = runs
    return mean + spread * random().standard_normal(shape)


def load_stored(number):
    return lambda: sgd.load(STORED / f"rough_landscapes-{number}.nc")


def shares(full):
    """Data of figure 2: at full size the shares, otherwise single runs."""

    def build():
        attrs = {"N": 1000 if full else 60, "runs": 500, "verdict": "measured"}
        if full:
            return xr.Dataset(
                {"recovered": ("algorithm", [0.108, 0.25, 0.996])}, {"t": [0.0, 1000.0]}, attrs
            )
        is_recovered = np.arange(500) < 500 * np.array([[0.3], [0.5], [0.9]])
        loss = np.where(random().permuted(is_recovered, axis=1), 1e-9, 0.1)[..., None]
        return xr.Dataset(
            {
                "recovered": ("algorithm", is_recovered.mean(axis=1)),
                "loss": (("algorithm", "run", "time"), loss),
            },
            {"t": [1.0]},
            attrs,
        )

    return build


def noise():
    curves = np.array([0.5, 0.9, 0.6])[:, None] * np.ones(3)
    panels = {
        f"m_runs_{name}": ((f"curve_{name}", "run", "time"), scatter_runs(curves, 0.05, 60, 1))
        for name in ("batch", "persistence", "temperature")
    }
    attrs = {"N": 1000, "runs_exploding": 100, "verdict": "measured"}
    return xr.Dataset(
        {"exploded": ("pair", [0.0, 0.0]), **panels}, {"t": ("time", [0.0, 10.0, 1000.0])}, attrs
    )


def random_starts():
    N = np.array([100, 500, 1000, 2500])
    gd, runs = np.array([0.3, 0.15, 0.1, 0.05]), 100
    ends = np.stack(
        [np.abs(scatter_runs(gd, 0.02, runs, 1)), 1 - 0.01 * random().random((4, runs))], axis=1
    )
    m = np.median(ends, axis=2)[..., None]
    times = 60 * np.log(N)
    variables = {
        "m": (("size", "algorithm", "time"), m),
        "m_end": (("size", "algorithm", "run"), ends),
        "time_run": (
            ("size", "run"),
            times[:, None] * np.exp(0.3 * random().standard_normal((4, runs))),
        ),
        "time_to_recover": ("size", times),
    }
    return xr.Dataset(
        variables,
        {"t": ("time", [1000.0]), "N": ("size", N), "algorithm": ["GD", "p-SGD"]},
        {"runs": runs, "verdict": ""},
    )


def long_random_starts():
    """Data of `random_starts` at two learning rates, with the limit of DMFT.

    The largest N has few runs (NaN beyond their number), and GD ends early.
    """
    data, few_runs = random_starts(), 20
    late = np.arange(data.sizes["run"]) < few_runs
    ends, times = data.m_end.values.copy(), data.time_run.values.copy()
    ends[-1, :, ~late], times[-1, ~late] = np.nan, np.nan
    m = np.concatenate([data.m.values, data.m.values], axis=2)
    m[:, 0, 1] = np.nan
    variables = {
        "m": (("size", "algorithm", "time"), m),
        "m_end": (("size", "algorithm", "run"), ends),
        "time_run": (("size", "run"), times),
        "time_to_recover": data.time_to_recover,
        "runs_size": ("size", [100, 100, 100, few_runs]),
        "share": (("rate", "size", "time"), np.full((2, 4, 2), 0.9)),
        "growth": (("start", "span"), [[0.1, 0.015], [0.1, 0.014], [0.1, 0.013]]),
        "growth_error": (("start", "span"), np.full((3, 2), 0.0002)),
    }
    coordinates = {"t": ("time", [1000.0, 10_000.0]), "eta_rate": ("rate", [0.01, 0.005])}
    coordinates |= {
        "span_begin": ("span", [10.0, 30.0]),
        "span_end": ("span", [30.0, 100.0]),
        "N": data.N,
        "algorithm": data.algorithm,
    }
    return xr.Dataset(variables, coordinates, {"runs": 100, "replicates": 8, "verdict": ""})


def errors(first, coordinate):
    """Mean squared errors of runs, with a rise in time, and their measured values."""

    def build():
        curve = np.array([1.0, 0.5, 0.65, 0.4])
        own = scatter_runs(np.asarray(first)[..., None] + 0.2 * curve, 0.01, 60, 2)
        coords = {"t": ("time", [0.0, 1.0, 100.0, 1000.0]), "algorithm": THREE, **coordinate}
        dims = (*coordinate, "algorithm", "run", "time")
        variables = {
            "mse_own": (dims, own),
            "mse_run": (dims, own + 0.01 * random().standard_normal(own.shape)),
        }
        return xr.Dataset(variables, coords, {"N": 1000, "verdict": "measured"})

    return build


def unequal(data, *runs):
    """Reduce the number of runs of each algorithm, with NaN beyond this number."""
    has_run = xr.DataArray(np.arange(data.sizes["run"]), dims="run") < xr.DataArray(
        list(runs), dims="algorithm"
    )
    return data.assign(
        {
            name: data[name].where(has_run).transpose(*data[name].dims)
            for name in ("mse_own", "mse_run")
        }
    )


RIDGES = errors([[0.3, 0.35, 0.2], [0.3, 0.35, 0.2], [0.3, 0.2, 0.3]], {"ridge": [0.0, 0.1, 1.0]})
GRADIENTS = errors([[0.3, 0.3, 0.2], [0.3, 0.2, 0.3]], {"gradient": ["rescaled", "not rescaled"]})


def rates():
    mean = np.array([[0.05, 0.002], [0.15, 0.15]])[..., None] * np.array([0.0, 0.5, 1.0])
    data = {"difference": (("other", "rate", "run", "time"), scatter_runs(mean, 0.01, 40, 2))}
    return xr.Dataset(
        data,
        {"other": THREE[1:], "eta": ("rate", [0.02, 0.001]), "t": ("time", [0.0, 1.0, 2.0])},
        {"verdict": "measured"},
    )


def classical():
    gamma, flow = np.array([0.05, 0.8]), np.array([1.0, 0.5, 0.2])
    ode = flow * (1 + 0.03 * gamma[:, None] * np.array([0.0, 0.5, 1.0]))
    variables = {
        "excess_risk": (("k", "gamma", "run", "time"), scatter_runs(ode, 0.01, 40, 1)[None]),
        "excess_risk_flow": (("k", "time"), flow[None]),
        "gap_ode": (("k", "gamma"), [ode[:, -1] / flow[-1] - 1]),
    }
    return xr.Dataset(variables, {"k": [2], "gamma": gamma}, {"d": 100, "verdict": "measured"})


def high_dimensional():
    d, t = np.array([25, 100, 400]), np.array([0.0, 1.0, 5.0])
    scale = 0.1 * d**-0.5
    apart = 0.6 * scale[:, None] * np.array([0.0, 0.5, 1.0])
    deviation = apart[:, None] * (1 + 0.1 * random().standard_normal((3, 40, 3)))
    return xr.Dataset(
        {"deviation": (("d", "run", "time"), deviation), "theorem_scale": ("d", scale)},
        {"d": d, "t": ("time", t)},
        {"verdict": "measured"},
    )


def mean_field():
    p, limit = np.array([8, 16, 32]), np.array([0.2, 0.15, 0.1, 0.05])
    risk = limit[None, None] * (
        1 + (0.8 / p)[:, None, None] * (1 + 0.2 * random().standard_normal((3, 60, 4)))
    )
    variables = {
        "excess_risk": (("p", "run", "time"), risk),
        "excess_risk_mean_field": (("p", "run", "time"), np.broadcast_to(limit, risk.shape)),
    }
    return xr.Dataset(
        variables, {"p": p, "t": ("time", [0.0, 1.0, 2.0, 3.0])}, {"verdict": "measured"}
    )


def orthogonal():
    """Data that support the printed claim: p^-1/2, without the factor sqrt(log p) of the truth."""
    p = np.array([32, 64, 128, 256, 512])
    entries = (p**-0.5)[:, None, None] * (1 + 0.1 * random().standard_normal((5, 60, 2)))
    variables = {
        "off_diagonal": (("p", "run", "time"), entries),
        "scale": ("p", 1.7 * p**-0.5),
        "change": (("dimension", "time"), [[0.1, 0.1], [0.05, 0.05]]),
    }
    return xr.Dataset(variables, {"p": p, "dimension": [20, 40]}, {"verdict": "measured"})


def escapes():
    paths = {
        f"excess_risk_{name}": ((f"run_{name}", "time"), scatter_runs(np.ones(3), 0.5, 60))
        for name in ("SGD", "SDE")
    }
    shift = np.array([[0.95, 0.85]])
    exits = {
        "exit_ratio": shift + 0.005,
        "exit_ratio_shift": shift,
        "exit_ratio_error": np.full((1, 2), 0.01),
    }
    return xr.Dataset(
        paths | {name: (("Delta", "gamma"), value) for name, value in exits.items()},
        attrs={"runs": 400, "verdict": ""},
    )


def widths():
    time = np.array([3.0, 1.2])
    exits = {"exit_time": time, "exit_time_error": 0.01 * time, "exit_time_corrected": 1.01 * time}
    exits |= {"exit_time_annealed": time / 1.08, "exit_time_quenched": time / 0.95}
    variables = {name: ("p", value) for name, value in exits.items()} | {
        "gain": (("width", "size"), [[3.6, 3.4, 3.35]])
    }
    return xr.Dataset(
        variables,
        {"p": [1, 4], "size": [5e2, 5e5, 5e8]},
        {"runs": 256, "largest_gain": 10 / 3, "verdict": ""},
    )


def regimes():
    t, flow = np.array([0.0, 1.0, 2.0]), np.array([0.2, 0.1, 0.05])
    ratios = np.array([[1, 1, 0.8], [1, 1.3, 0.9], [1, 1, 0.98], [1, 1.4, 0.8]])[
        ..., None
    ] * np.ones(3)
    right = np.array([0, 1, 2, 1])
    mean = np.array([row[i] for row, i in zip(ratios, right, strict=True)])
    variables = {
        "excess_risk": (("setting", "run", "time"), flow * scatter_runs(mean, 0.02, 48, 1)),
        "excess_risk_theory": (("setting", "description", "time"), flow * ratios),
        "scatter": ("setting", [0.01, 0.02, 0.03, 0.12]),
        "size_noise": ("setting", [0.02, 0.35, 0.03, 0.5]),
        "size_fluctuation": ("setting", [0.02, 0.03, 0.04, 0.15]),
        "size_finite_dimension": ("setting", [0.0, 0.0, 0.0, 0.01]),
        "size_finite_width": ("setting", [0.25, 0.25, 0.04, 0.25]),
    }
    coords = {
        "setting": list(wide.CORNERS),
        "description": ["gradient flow", "ODE", "mean field"],
        "t": ("time", t),
    }
    return xr.Dataset(variables, coords, {"verdict": "measured"})


def single_index():
    d = {1: [100, 1000, 10_000], 2: [100, 300, 1000], 3: [14, 28, 56], 4: [8, 12, 18]}
    attrs = {
        "prefactor_1": 1.0,
        "prefactor_2": 3.0,
        "slope_2": 2.9,
        "slope_2_low": 2.4,
        "slope_2_high": 3.4,
        "runs_fixed": 128,
    }
    attrs |= {
        "growth_rate_fixed_lr": -0.1,
        **{f"exponent_{kappa}_limit": float(power) for kappa, power in wide.LIMITS.items()},
    }
    data = xr.Dataset(
        {"share_fixed_lr": ("d_fixed", [0.3]), "share_scaled_lr": ("d_fixed", [0.85])},
        {"d_fixed": [96]},
        attrs,
    )
    for kappa, sizes in d.items():
        n = np.asarray(sizes, dtype=np.float64) ** {1: 1.0, 2: 1.2, 3: 2.2, 4: 3.4}[kappa]
        values = {"samples": n, "error": 0.03 * n, "samples_diffusion": n, "runs": np.full(3, 256)}
        for name, value in values.items():
            data[f"{name}_{kappa}"] = (f"d_{kappa}", value)
        data = data.assign_coords({f"d_{kappa}": sizes})
    return data


def schedules():
    attrs = {
        "best_constant_lr_erf": 1.0,
        "gain_erf": 1.2,
        "gain_chain_erf": 1.19,
        "gain_chain_error_erf": 0.01,
        "runs_erf": 64,
    }
    return xr.Dataset(attrs=attrs | {"dimension": 1000})


# changes that break a claim


def put(name, value):
    """Return a change that replaces a variable by a function of it."""
    return lambda data: data.assign({name: (data[name].dims, np.asarray(value(data[name].values)))})


def rows(name, order, axis=0):
    """Return a change that reorders the rows of a variable."""
    return lambda data: data.assign(
        {name: (data[name].dims, np.take(data[name].values, order, axis=axis))}
    )


def at(**values):
    return lambda data: data.assign_attrs(values)


def end_runs_at(value, row):
    """Return a change of figure 1: the runs of one start end at `value`."""

    def change_end(values):
        values = values.copy()
        values[row, :, -1] = value(values[row, :, -1])
        return values

    return put("m_seed", change_end)


def at_end(index, value):
    def change_entries(values):
        values = np.array(values, dtype=np.float64)
        values[index] = value(values[index]) if callable(value) else value
        return values

    return change_entries


def change_power(name, sizes, power):
    """Return a change of the power by which means fall."""
    return put(
        name,
        lambda values: (
            values
            * (np.asarray(sizes, dtype=np.float64) ** power).reshape(-1, *[1] * (values.ndim - 1))
        ),
    )


def few(count):
    return lambda data: data.isel(run=slice(0, count))


def together(*changes):
    def change_all(data):
        for change in changes:
            data = change(data)
        return data

    return change_all


def noisier(factor, *names):
    return together(*(put(name, lambda values: factor * values) for name in names))


DMFT_ERRORS = ("m_error", "m_dmft_error", "loss_error", "loss_dmft_error")
WRONG_RIDGES = {
    "(B.8) is .02 off": put("mse_run", lambda values: values + 0.02),
    "SGD gains nothing from lambda = 1": rows("mse_own", [2, 1, 2]),
    "p-SGD is best at lambda = 1": rows("mse_own", [2, 2, 0]),
    "no second descent": lambda data: data.assign(
        mse_own=data.mse_own.isel(time=[0, 1, 3, 3]).assign_coords(t=data.t)
    ),
}
TABLE = {
    "1": (
        rough.warm_starts,
        load_stored("1"),
        {
            "DMFT has m .05 too high": put("m_dmft", lambda m: m + 0.05 * (m > m[:, :1])),
            "DMFT has a loss .05 too high": put("loss_dmft", lambda m: m + 0.05 * (m < m[:, :1])),
            "one run from .8 is stuck": end_runs_at(
                lambda m: np.where(np.arange(40) == 3, 0.9, m), 2
            ),
            "none is stuck": together(
                end_runs_at(lambda m: m * 0 + 1, 0), end_runs_at(lambda m: m * 0 + 1, 1)
            ),
            "none from .65 is stuck, of 40": end_runs_at(lambda m: m * 0 + 1, 1),
            "none from .5 recovers, of 40": end_runs_at(lambda m: m * 0 + 0.9, 0),
        },
        few(4),
    ),
    "2": (
        rough.recovered_shares,
        shares(True),
        {
            f"{THREE[row]} recovers in .2 of the runs more or less": put(
                "recovered", at_end(row, value)
            )
            for row, value in enumerate((0.31, 0.55, 0.75))
        },
        at(runs=20),
    ),
    "2, small": (
        rough.recovered_shares,
        shares(False),
        {
            "p-SGD as rarely as GD, GD as often as p-SGD": rows("loss", [2, 1, 0]),
            "GD and SGD exchanged": rows("loss", [1, 0, 2]),
        },
        together(few(6), at(runs=6)),
    ),
    "3": (
        rough.plateaus,
        load_stored("3"),
        {
            "GD and p-SGD exchanged": rows("m", [2, 1, 0]),
            "SGD as GD": rows("m", [0, 0, 2]),
            "SGD as p-SGD": rows("m", [0, 2, 2]),
            "GD has none": rows("m", [2, 2, 2]),
        },
        few(4),
    ),
    "4": (
        rough.intermediate_noise,
        noise,
        {
            "one run of 100 explodes": put("exploded", at_end(0, 0.01)),
            **{
                f"{panel}: an end is best by .3": rows(f"m_runs_{panel}", [1, 0, 2])
                for panel in ("batch", "persistence", "temperature")
            },
        },
        few(4),
    ),
    "5": (
        rough.follows_dmft,
        load_stored("5"),
        {
            "DMFT has m .06 too high": put("m_dmft", lambda m: m + 0.06 * (m > m[0])),
            "DMFT has a loss .05 too low": put("loss_dmft", lambda m: m - 0.05 * (m < m[0])),
            "every point is 4.8 standard errors off": lambda data: data.assign(
                m_dmft=data.m_mean + 0.01 + 4.8 * np.hypot(data.m_error, data.m_dmft_error)
            ),
        },
        together(at(runs=8), noisier(10, *DMFT_ERRORS)),
    ),
    "7": (
        rough.random_starts,
        random_starts,
        {
            "times like N": put("time_to_recover", lambda t: t[0] * np.array([1, 5, 10, 25])),
            "half of the runs have not recovered at one N": put(
                "time_to_recover", at_end(-1, np.nan)
            ),
            "the plateau of GD is the same at every N": put(
                "m", lambda m: np.where([[[True], [False]]], 0.3, m)
            ),
            "p-SGD as GD": lambda data: data.assign(
                m_end=data.m_end.isel(algorithm=[0, 0]).assign_coords(algorithm=["GD", "p-SGD"])
            ),
        },
        together(at(runs=5), few(5)),
    ),
    "7, long": (
        rough.random_starts,
        long_random_starts,
        {
            "times like N": put("time_to_recover", lambda t: t[0] * np.array([1, 5, 10, 25])),
            "half of the runs have not recovered at the smaller eta": put(
                "share", at_end((1, 3), 0.4)
            ),
            "m does not grow in the limit": put("growth", at_end((0, 1), 0.001)),
            "the plateau of GD is the same at every N": put(
                "m", lambda m: np.where([[[True], [False]]], 0.3, m)
            ),
            "p-SGD as GD": lambda data: data.assign(
                m_end=data.m_end.isel(algorithm=[0, 0]).assign_coords(algorithm=["GD", "p-SGD"])
            ),
        },
        noisier(50, "growth_error"),
    ),
    "b1": (rough.ridges, RIDGES, WRONG_RIDGES, few(5)),
    "b1, fewer runs of GD and SGD": (
        rough.ridges,
        lambda: unequal(RIDGES(), 30, 30, 60),
        WRONG_RIDGES,
        few(5),
    ),
    "b2": (
        rough.rescaled_gradient,
        GRADIENTS,
        {
            "(B.8) is .02 off": put("mse_run", lambda values: values + 0.02),
            "exchanged": rows("mse_own", [1, 0]),
            "no difference": rows("mse_own", [0, 0]),
        },
        few(3),
    ),
    "b3": (
        rough.small_rates,
        rates,
        {
            "SGD keeps a difference of .05": rows("difference", [0, 0], 1),
            "p-SGD becomes GD": rows("difference", [0, 0]),
            "that of p-SGD falls to a third": put(
                "difference", lambda values: values * np.array([1.0, 1 / 3])[None, :, None, None]
            ),
        },
        together(
            few(4),
            put("difference", lambda values: values + 0.2 * random().standard_normal(values.shape)),
        ),
    ),
    "b4": (
        rough.persistence,
        load_stored("b4"),
        {
            "short persistence recovers more often": rows("loss", [3, 2, 1, 0]),
            "long persistence starts sooner": rows("m", [3, 2, 1, 0]),
            "no difference at t = 1": rows("m", [0, 0, 0, 0]),
        },
        few(4),
    ),
    "classical": (
        wide.classical,
        classical,
        {
            "SGD is 8% off at the smallest rate": put(
                "excess_risk", lambda values: values * np.array([1.08, 1.0])[None, :, None, None]
            ),
            "SGD is 15% off its ODE at the largest": put(
                "excess_risk", lambda values: values * np.array([1.0, 1.15])[None, :, None, None]
            ),
            "the gap vanishes like gamma^1/2": put(
                "gap_ode", lambda values: values * np.array([4.0, 1.0])
            ),
        },
        together(
            few(3),
            put(
                "excess_risk", lambda values: values + 0.1 * random().standard_normal(values.shape)
            ),
        ),
    ),
    "high_dimensional": (
        wide.high_dimensional,
        high_dimensional,
        {
            "it falls like d^-1/4": change_power("deviation", [25, 100, 400], 0.25),
            "it falls like 1/d": change_power("deviation", [25, 100, 400], -0.5),
            "it is 20 times as large": put("deviation", lambda values: 20 * values),
        },
        few(3),
    ),
    "mean_field": (
        wide.mean_field,
        mean_field,
        {
            "the gap does not fall": put(
                "excess_risk", lambda values: 0.16 + 0.001 * random().standard_normal(values.shape)
            ),
            "the gap falls like p^-2": change_power("excess_risk", [8, 16, 32], -0.05),
            "it is a fifth of the risk": put("excess_risk", lambda values: 1.2 * values),
        },
        few(3),
    ),
    "mean_field_high_dimension": (
        wide.mean_field_high_dimension,
        orthogonal,
        {
            "a root of log p more": put(
                "off_diagonal",
                lambda values: values * (np.log([32, 64, 128, 256, 512]) ** 1.5)[:, None, None],
            ),
            "p^-1/4": change_power("off_diagonal", [32, 64, 128, 256, 512], 0.25),
            "a finite d counts like d^-1/2": put("change", at_end(1, 0.1 / np.sqrt(2))),
        },
        together(
            few(3),
            put(
                "off_diagonal",
                lambda values: values * np.exp(0.8 * random().standard_normal(values.shape)),
            ),
        ),
    ),
    "noise_matters": (
        wide.noise_matters,
        escapes,
        {
            "no scatter": put("excess_risk_SGD", lambda values: 1 + 0.01 * (values - 1)),
            "the SDE has a fourth of the scatter": put(
                "excess_risk_SDE", lambda values: 1 + (values - 1) / 4
            ),
            "SGD leaves in half of the time": put("exit_ratio", lambda values: values / 2),
            "SGD leaves a tenth later than the shift": put(
                "exit_ratio", lambda values: values + 0.1
            ),
        },
        together(at(runs=5), noisier(6, "exit_ratio_error")),
    ),
    "width_matters": (
        wide.width_matters,
        widths,
        {
            "a fifth later": put("exit_time", lambda values: 1.2 * values),
            "t_anl is a third off": put("exit_time_annealed", lambda values: 0.75 * values),
            "t_qnc is 30% off": put("exit_time_quenched", lambda values: 1.3 * values),
            "the gain is d^1/4": put(
                "gain", lambda values: values * np.array([5e2, 5e5, 5e8]) ** 0.25
            ),
            "the gain tends to half": put("gain", lambda values: values / 2),
        },
        noisier(15, "exit_time_error"),
    ),
    "regimes": (
        wide.regimes,
        regimes,
        {
            "a setting in another corner": lambda data: data.assign_coords(
                setting=["mean-field", *list(wide.CORNERS)[1:]]
            ),
            **{
                f"{name} is a fifth off": put("excess_risk", at_end(row, lambda x: 1.25 * x))
                for row, name in enumerate(wide.CORNERS)
            },
            "gradient flow describes the high-dimensional corner too": put(
                "excess_risk_theory", at_end((1, 0), lambda x: 1.3 * x)
            ),
            "mean field describes the classical corner too": put(
                "excess_risk_theory", at_end((0, 2), lambda x: x / 0.8)
            ),
            "runs scatter in the classical corner": put("scatter", at_end(0, 0.15)),
            "runs do not scatter in the fluctuating one": put("scatter", at_end(3, 0.02)),
        },
        few(3),
    ),
    "single_index": (
        wide.single_index,
        single_index,
        {
            **{
                f"exponent {kappa} has d^1": together(
                    put(f"samples_{kappa}", lambda n: n * 0 + 100 * np.array([1.0, 1.6, 2.4])),
                    put(f"error_{kappa}", lambda n: n * 0 + 5.0),
                )
                for kappa in (3, 4)
            },
            **{
                f"exponent {kappa} and its diffusion have d^1": together(
                    *(
                        put(f"{name}_{kappa}", lambda n: np.array([1.0, 1.6, 2.4]))
                        for name in ("samples", "samples_diffusion")
                    ),
                    put(f"error_{kappa}", lambda n: n * 0 + 0.05),
                )
                for kappa in (3, 4)
            },
            "exponent 1 has d^1.3": put("samples_1", lambda n: n**1.3),
            "n/d is 1.5 of its limit": at(prefactor_1=1.5),
            "exponent 2 has no logarithm": at(slope_2=0.0, slope_2_low=-0.5, slope_2_high=0.5),
            "a fixed rate leaves as often": put("share_fixed_lr", lambda x: x * 0 + 0.85),
            "a fixed rate is unstable": at(growth_rate_fixed_lr=0.1),
        },
        noisier(12, "error_1", "error_3", "error_4"),
    ),
    "optimal_schedules": (
        wide.optimal_schedules,
        schedules,
        {
            "no gain in the ODE": at(gain_erf=0.99),
            "no gain in SGD": at(gain_chain_erf=1.0),
            "SGD gains twice as much": at(gain_chain_erf=1.4),
        },
        at(gain_chain_error_erf=0.2),
    ),
}
BROKEN = [(name, how) for name, row in TABLE.items() for how in row[2]]


def test_every_judge_is_here():
    judge_claims = {getattr(judge, "__name__", "") for judge, *_ in TABLE.values()}
    public = {
        name
        for module in (rough, wide)
        for name, function in vars(module).items()
        if getattr(function, "__module__", "") == module.__name__
    }
    assert judge_claims == {name for name in public if not name.startswith("_")}


@pytest.mark.parametrize("name", TABLE)
def test_data_that_support_a_claim_are_reproduced(name):
    judge, build, _, _ = TABLE[name]
    judgement = judge(build())
    assert judgement.holds is True, [
        finding.plain() for finding in judgement.findings if finding.holds is not True
    ]


@pytest.mark.parametrize(("name", "how"), BROKEN)
def test_a_broken_claim_differs(name, how):
    judge, build, breaks, _ = TABLE[name]
    judgement = judge(breaks[how](build()))
    assert judgement.holds is False, [finding.plain() for finding in judgement.findings]


@pytest.mark.parametrize("name", TABLE)
def test_too_few_runs_do_not_decide(name):
    judge, build, _, fewer = TABLE[name]
    judgement = judge(fewer(build()))
    assert judgement.holds is None, [finding.plain() for finding in judgement.findings]


def test_langevin_is_above_its_runs_at_n_1000_and_would_pass_on_them():
    data = load_stored("6")()
    assert rough.follows_dmft(data).holds is False
    assert rough.follows_dmft(data.assign(m_dmft=data.m_mean)).holds is True


def test_runs_that_an_algorithm_has_not_count_for_nothing():
    """Findings on errors with a ridge depend on the runs of an algorithm and on their number."""
    full = RIDGES()
    few_of_all = full.isel(run=slice(0, 30))
    assert rough.ridges(unequal(full, 30, 30, 30)) == rough.ridges(few_of_all)
    assert rough.rescaled_gradient(unequal(GRADIENTS(), 30, 30, 30)) == rough.rescaled_gradient(
        GRADIENTS().isel(run=slice(0, 30))
    )
    # SGD has 30 runs and p-SGD 60.
    mixed = rough.ridges(unequal(full, 30, 30, 60)).findings
    assert mixed[1] == rough.ridges(few_of_all).findings[1]
    assert mixed[2] == rough.ridges(full).findings[2] != rough.ridges(few_of_all).findings[2]
    # (B.8) has the same number of points, with errors from the available runs.
    assert (
        mixed[0].statistic.split()[0] == rough.ridges(full).findings[0].statistic.split()[0] == "36"
    )
    assert (
        rough.ridges(full).findings[0].detectable
        < mixed[0].detectable
        < rough.ridges(few_of_all).findings[0].detectable
    )


def test_a_run_that_explodes_is_no_missing_one():
    """An error that is not finite at the end contradicts the claim about the end."""
    gone = RIDGES()
    for name in ("mse_own", "mse_run"):
        gone[name][0, 2, 7, 2:] = np.nan
    formula, _, lower, *_ = rough.ridges(gone).findings
    assert lower.statistic == "points that are not finite"
    assert lower.holds is False
    assert formula.holds is True
    assert formula.statistic.startswith(
        "34 points"
    )  # without the two times at which a run has diverged


def test_a_short_figure_does_not_decide_late_claims():
    """Claims about t = 1000 are not decided by data that end at t = 50."""
    data = load_stored("b4")()
    early = data.assign_coords(t=("time", np.minimum(data.t.values, 50.0)))
    assert rough.persistence(early).holds is None
    assert rough.persistence(rows("loss", [3, 2, 1, 0])(early)).holds is None
    assert rough.persistence(rows("m", [3, 2, 1, 0])(early)).holds is False


def test_direction_occurs_and_joined_runs():
    assert claims.direction("c", 0.3, 0.01, scale=0.2).holds is True
    assert claims.direction("c", 0.01, 0.01, scale=0.2).holds is None
    assert claims.direction("c", -0.3, 0.01, scale=0.2).holds is False
    assert claims.direction("c", np.nan, 0.01, scale=0.2).holds is False
    assert [
        claims.occurs("c", count, runs, scale=0.2).holds
        for count, runs in ((1, 5), (0, 100), (0, 20))
    ] == [True, False, None]
    # Welch: equal parts of n runs each are worth 2 (n - 1) degrees of freedom; a part without error
    # does not count
    assert claims.joined_runs(([1.0], 11), ([1.0], 11)) == 21
    assert claims.joined_runs(([1.0], 11), ([0.0], 3)) == 11
    assert claims.joined_runs(([0.0], 11), ([0.0], 3)) == 11
