"""The six small pictures of the README and the landing page: theory on runs.

`python docs/pictures/capabilities.py` writes docs/pictures/capability_NAME.png for each capability,
or for those named as arguments, and stores the data in the files. A test computes the data again
and compares. The first picture shows the data of plateau.png.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import sgdynamics as sgd

FOLDER = Path(__file__).parent
LOSS_CURVES = FOLDER.parents[1] / "examples/loss_curves"
COLOURS = ("#4477aa", "#cc6677", "#228833")
SIZE, DPI = (3.2, 2.4), 100

Panel = dict[str, Any]  # title, axes and curves of a picture, as plain values


def panel(title: str, xlabel: str, ylabel: str, curves: list[dict[str, Any]], **axes: Any) -> Panel:
    """A picture as plain values, with the digits that it shows."""
    text = json.dumps(
        {"title": title, "xlabel": xlabel, "ylabel": ylabel, "axes": axes, "curves": curves},
        default=lambda array: np.round(np.asarray(array, float), 6).tolist(),
    )
    return json.loads(text)


def curve(label: str, x: Any, theory: Any, runs: Any = None, runs_x: Any = None) -> dict[str, Any]:
    """A theory as a line; runs are shown by their mean and twice its standard error."""
    entry = {"label": label, "x": x, "theory": theory}
    if runs is not None:
        entry["runs_x"] = x if runs_x is None else runs_x
        entry["mean"] = runs.mean(0)
        entry["error"] = 2 * runs.std(0, ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else None
    return entry


def plateaus() -> Panel:
    """Two units leave a plateau: the ODE and single runs, from the picture of the README."""
    stored = json.loads(Image.open(FOLDER / "plateau.png").text["data"])
    curves = []
    for d, values in list(stored.items())[:2]:
        entry = curve(f"d = {int(d):,}".replace(",", " "), values["alpha"], values["theory"])
        curves.append(entry | {"paths": values["runs"]})
    labels = ("samples / $d$", "risk")
    return panel("Plateaus and escape times", *labels, curves, yscale="log")


def optimisers() -> Panel:
    """Plain SGD, momentum and Adam on inputs with two eigenvalues."""
    problem = sgd.TeacherStudent(
        width=1, activation="erf", noise=0.1, covariance=[(3.0, 0.2), (0.5, 0.8)]
    )
    start = sgd.random_start(problem, dimension=400, seed=0)
    algorithms = {
        "SGD": (sgd.OnePassSGD(lr=1.0), "exact"),
        "momentum": (sgd.OnePassSGD(lr=1.0, update=sgd.updates.momentum(memory=2.0)), "exact"),
        "Adam": (sgd.OnePassSGD(lr=0.5, update=sgd.updates.adam(memory=4.0, eps=0.01)), "direct"),
    }
    alpha, curves = np.linspace(0, 8, 17), []
    for label, (algorithm, method) in algorithms.items():
        theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha)
        runs = sgd.simulate(
            problem, algorithm, start, alpha=alpha, dimension=400, runs=40, seed=1, method=method
        )
        curves.append(curve(label, alpha, theory.excess_risk.values[0], runs.excess_risk.values))
    return panel("Optimisers", "samples / $d$", "excess risk", curves, yscale="log")


def repeated_data() -> Panel:
    """Full-batch gradient descent on n = 1.5 d samples: DMFT, and runs on data sets."""
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.3)
    algorithm = sgd.GradientDescent(lr=0.2, samples_per_dimension=1.5)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    steps = np.arange(0, 41, 4)
    theory = sgd.solve_dmft(problem, algorithm, start, steps=steps, seed=0)
    runs = sgd.simulate(problem, algorithm, start, steps=steps, dimension=500, runs=40, seed=1)
    curves = [
        curve(label, steps, theory[name].values.mean(0), runs[name].values)
        for label, name in (("fresh data", "risk"), ("data set", "train_risk"))
    ]
    return panel("Data used again", "steps of gradient descent", "risk", curves)


def power_laws() -> Panel:
    """A linear student on power-law spectra in a million dimensions."""
    steps = np.unique(np.geomspace(1, 3000, 15).round()).astype(int)
    curves = []
    for exponent in (1.2, 1.5, 2.0):
        spectrum = sgd.power_law(exponent, 1_000_000, target=0.5)
        problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.001, covariance=spectrum)
        algorithm = sgd.OnePassSGD(lr=0.3, per="trace")
        start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
        theory = sgd.solve_linear(problem, algorithm, start, steps=steps)
        runs = sgd.simulate(problem, algorithm, start, steps=steps, runs=20, seed=1)
        excess = theory.excess_risk.values[0], runs.excess_risk.values
        curves.append(curve(f"eigenvalues $j^{{-{exponent}}}$", steps, *excess))
    axes = {"xscale": "log", "yscale": "log"}
    return panel("Spectra and scaling laws", "steps", "excess risk", curves, **axes)


def attention() -> Panel:
    """An attention head learns from another one."""
    problem = sgd.models.attention(tokens=2, noise=0.1, token_correlation=0.4)
    algorithm = sgd.OnePassSGD(lr=0.5)
    start = sgd.random_start(problem, dimension=500, seed=0)
    alpha = np.linspace(0, 30, 16)
    theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha)
    runs = sgd.simulate(problem, algorithm, start, alpha=alpha, dimension=500, runs=40, seed=1)
    curves = [curve("risk", alpha, theory.risk.values[0], runs.risk.values)]
    return panel("Attention and your own loss", "samples / $d$", "risk", curves)


def forecasts() -> Panel:
    """The loss of a language model under a fourth schedule, predicted from three measured runs."""
    names = ("25M_cosine_24000", "25M_constant_24000", "25M_wsdcon_9")
    fit = sgd.forecast([LOSS_CURVES / f"{name}.csv" for name in names], warn=False)
    measured = np.genfromtxt(LOSS_CURVES / "25M_wsd_20000_24000.csv", delimiter=",", names=True)
    late = measured["step"] > 5000
    steps, losses = measured["step"][late], measured["loss"][late]
    schedule = sgd.schedules.wsd(
        3e-4, 24000, warmup=2160, decay=1 / 6, final=0.1, shape="exponential"
    )
    prediction = fit.predict(schedule, steps=steps)
    curves = [curve("predicted", steps / 1000, prediction.loss, losses[None, :])]
    labels = ("steps / 1000", "loss of a language model")
    return panel("Forecasts of real runs", *labels, curves)


CAPABILITIES: dict[str, Callable[[], Panel]] = {
    "plateaus": plateaus,
    "optimisers": optimisers,
    "repeated_data": repeated_data,
    "power_laws": power_laws,
    "attention": attention,
    "forecasts": forecasts,
}


def file_of(name: str) -> Path:
    return FOLDER / f"capability_{name}.png"


def draw(values: Panel, file: Path) -> None:
    """Draw a picture, and store its values as metadata of the file."""
    fig, ax = plt.subplots(figsize=SIZE, layout="constrained")
    for colour, entry in zip(COLOURS, values["curves"], strict=False):
        for path in entry.get("paths", ()):
            ax.plot(entry["x"], path, color=colour, lw=0.6, alpha=0.5)
        ax.plot(entry["x"], entry["theory"], color=colour, lw=1.8, label=entry["label"])
        if entry.get("error"):
            points = (entry["runs_x"], entry["mean"], entry["error"])
            ax.errorbar(*points, fmt="o", ms=2.6, color=colour, lw=0.8)
        elif "mean" in entry:
            ax.plot(entry["runs_x"], entry["mean"], "k.", ms=1.5, zorder=3, label="measured")
    ax.set(xlabel=values["xlabel"], ylabel=values["ylabel"], **values["axes"])
    ax.set_title(values["title"], fontsize=10)
    ax.legend(frameon=False, fontsize=7)
    fig.savefig(file, dpi=DPI, metadata={"data": json.dumps(values)})
    plt.close(fig)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CAPABILITIES:
        draw(CAPABILITIES[chosen](), file_of(chosen))
        print(file_of(chosen).name)
