"""Results in notebooks: a picture and a table with errors; any other Dataset as xarray shows it."""

from __future__ import annotations

import base64
import re
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.analysis.comparison import compare
from sgdynamics.plotting import display
from sgdynamics.results import datasets


def make_result(method: str, risks: np.ndarray, **extra) -> xr.Dataset:
    """A result as solvers make it, without one: (run, time) risks of one unit and one signal."""
    runs, count = risks.shape
    problem, algorithm = sgd.TeacherStudent(width=1), sgd.OnePassSGD(lr=0.5)
    variables = {
        "risk": (("run", "time"), risks),
        "excess_risk": (("run", "time"), risks),
        "M": (("run", "time", "unit", "signal"), 1 - risks[:, :, None, None]),
        **extra,
    }
    t = np.arange(count, dtype=float)
    coordinates = {
        "t": ("time", t, {"long_name": "time t = lr steps/d"}),
        "diverged_at": ("run", np.full(runs, np.nan)),
    }
    return xr.Dataset(
        variables,
        coordinates,
        datasets.record(problem, algorithm, method, {"dimension": 200, "error_integrator": 2e-9}),
    )


THEORY = make_result("solve_ode", np.geomspace(1, 0.01, 9)[None])
RUNS = make_result(
    "simulate-exact", np.geomspace(1, 0.01, 9) * np.array([[0.9], [1.1], [1.0], [1.0]])
)


def pictures(shown: str) -> list[bytes]:
    return [
        base64.b64decode(data) for data in re.findall(r"src='data:image/png;base64,([^']+)'", shown)
    ]


def columns(shown: str) -> dict[str, list[str]]:
    """The table: the cells of each column by its head."""
    table = re.search(r"<table.*?</table>", shown, flags=re.DOTALL)
    assert table is not None
    lines = [
        re.findall(r"<t[dh] [^>]*>(.*?)</t[dh]>", line)
        for line in re.findall(r"<tr>(.*?)</tr>", table[0])
    ]
    return {head: list(column) for head, *column in zip(*lines, strict=True)}


def test_a_solution_has_a_picture_a_table_and_its_errors():
    shown = display.html(THEORY)
    assert [image[:4] for image in pictures(shown)] == [b"\x89PNG"]
    table = columns(shown)
    assert table["t"] == ["0", "2", "3", "5", "6", "8"]
    assert table["excess risk"] == [
        f"{value:.4g}" for value in np.geomspace(1, 0.01, 9)[[0, 2, 3, 5, 6, 8]]
    ]
    assert float(table["M11"][-1]) == pytest.approx(0.99)
    assert "risk" not in table
    assert "solve_ode, TeacherStudent, OnePassSGD, d = 200" in shown
    assert "error integrator 2e-09" in shown
    assert "xr-wrap" in shown  # all the rest, folded


def test_runs_have_standard_errors_and_those_that_diverged_are_counted():
    lost = RUNS.copy(deep=True).assign_coords(diverged_at=("run", [np.nan, np.nan, np.nan, 3.0]))
    lost["excess_risk"][3, 4:] = np.nan
    for result, runs in ((RUNS, 4), (lost, 3)):
        shown = display.html(result)
        spread = np.std([0.9, 1.1, 1.0, 1.0][:runs], ddof=1) / np.sqrt(runs)
        assert columns(shown)["excess risk"][-1] == f"0.01 ± {0.01 * spread:.1g}"
        assert f"standard error over {runs} runs" in shown
    assert "1 of 4 runs diverged and are left out" in shown


def test_the_error_of_dmft_is_its_own():
    error = (("run", "time"), np.full((1, 9), 3e-3))
    shown = display.html(
        make_result(
            "solve_dmft",
            THEORY.risk.values,
            risk_standard_error=error,
            train_risk=(("run", "time"), THEORY.risk.values),
        )
    )
    assert columns(shown)["excess risk"][-1] == "0.01 ± 0.003"
    assert columns(shown)["train risk"][-1] == "0.01"


def scales(monkeypatch, result: xr.Dataset) -> set[str]:
    """Those of the time axes of the picture."""
    drawn = []
    image = display._image
    monkeypatch.setattr(display, "_image", lambda fig: drawn.append(fig) or image(fig))
    display.html(result)
    return {ax.get_xscale() for ax in drawn[-1].axes}


@pytest.mark.slow
def test_times_that_grow_by_factors_have_a_logarithmic_axis(monkeypatch):
    """Save points that grow by factors have a logarithmic axis, evenly spaced ones a linear axis.

    If the first save point is zero, the axis is linear up to the next one.
    """
    by_factors, late = np.geomspace(10, 1000, 9), np.linspace(0.1, 1e6, 9)
    from_zero, even = np.array([0, *np.geomspace(0.1, 1e6, 8)]), np.linspace(0, 10, 9)
    for times, scale in (
        (by_factors, "log"),
        (late, "linear"),
        (from_zero, "symlog"),
        (even, "linear"),
    ):
        theory, runs = (
            result.assign_coords(t=("time", times, result.t.attrs)) for result in (THEORY, RUNS)
        )
        assert scales(monkeypatch, theory) == scales(monkeypatch, compare(theory, runs)) == {scale}


@pytest.mark.parametrize(
    ("clock", "label"),
    [
        ("time t = lr steps/d", "$t$ = lr steps / $d$"),
        ("time t = lr steps/D", "$t$ = lr steps / $D$"),
        ("time t = lr steps/n", "$t$ = lr steps / $n$"),
        ("time t = lr steps", "$t$ = lr steps"),
        ("mean-field time t/p = lr steps/(p d)", "$t/p$ = lr steps / $(p d)$"),
        ("", "$t$ = lr steps / $d$"),
    ],
)
def test_the_time_axis_divides_by_what_the_clock_divides_by(clock, label):
    own = THEORY.assign_coords(t=("time", THEORY.t.values, {"long_name": clock}))
    axes = [draw(own, x="t")[1] for draw in (sgd.plot.risk, sgd.plot.overlaps)]
    assert [ax.get_xlabel() for ax in axes] == [label, label]
    plt.close("all")


@pytest.mark.slow
def test_the_table_and_the_picture_show_the_requested_clock_and_epochs(monkeypatch):
    drawn = []
    image = display._image
    monkeypatch.setattr(display, "_image", lambda fig: drawn.append(fig) or image(fig))
    clocks = {"alpha": ("time", 2.0 * THEORY.t.values), "epoch": ("time", 0.5 * THEORY.t.values)}
    theory, runs = (
        result.assign_coords(clocks).assign_attrs(clock="alpha") for result in (THEORY, RUNS)
    )
    for result in (theory, runs, compare(theory, runs)):
        table = columns(display.html(result))
        assert list(table)[:2] == ["alpha", "epoch"]
        assert "t" not in table
        assert (table["alpha"][-1], table["epoch"][-1]) == ("16", "4")
        for ax in drawn[-1].axes:
            assert ax.get_xlabel() == r"$\alpha$ = samples / $d$"
            (upper,) = ax.child_axes
            assert upper.get_xlabel() == "epochs"
            assert np.array(upper.get_xlim()) == pytest.approx(np.array(ax.get_xlim()) / 4)
    # a schedule makes t another function of epochs: no second axis
    bent = theory.assign_coords(epoch=("time", np.sqrt(THEORY.t.values))).assign_attrs(clock="t")
    assert list(columns(display.html(bent)))[:2] == ["t", "epoch"]
    assert not drawn[-1].axes[0].child_axes


def test_theory_beside_runs():
    shown = display.html(compare(THEORY, RUNS))
    assert len(pictures(shown)) == 1
    table = columns(shown)
    assert table["theory"][-1] == "0.01"
    assert table["4 runs"][-1].startswith("0.01 ± 0.0004")
    assert len(table["difference / error"]) == 6


@pytest.mark.parametrize(
    "other",
    [
        xr.Dataset({"x": ("time", [1.0, 2.0])}),
        THEORY.isel(time=0),
        THEORY.drop_vars(["risk", "excess_risk"]),
        THEORY.isel(time=slice(0)),
    ],
    ids=["not a result", "one time", "no risk", "no times"],
)
def test_what_cannot_be_drawn_looks_as_xarray_shows_it(other):
    shown = display.html(other)
    assert pictures(shown) == []
    assert shown.startswith(other._repr_html_()[:40])


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import xarray as xr
import sgdynamics as sgd
sgd.load
formatter = shell.display_formatter.formatters["text/html"]

def displayed_by():
    try:
        return formatter.lookup_by_type(xr.Dataset).__module__
    except KeyError:
        return "xarray"

print(displayed_by())
shell.run_line_magic("load_ext", "sgdynamics")
print(displayed_by())
shell.run_line_magic("unload_ext", "sgdynamics")
print(displayed_by())
"""


@pytest.mark.slow  # a fresh process, which imports everything
def test_the_notebook_display_is_opt_in():
    pytest.importorskip("IPython")
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["xarray", "sgdynamics", "xarray"], done.stderr
