"""Figure 4: SGD on real samples, and the theory of Gaussian ones with the same covariance."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import DataSpectrum, OnePassSGD, TeacherStudent, solve_linear, spectrum_of, start
from sgdynamics.base import checks
from sgdynamics_reproductions.drawing import draw_runs, finish, panels

RATES = (0.2, 1.0)  # lr: steps are lr over the mean of |x|^2
LAST = 1000


def figure_4(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """Odd or even digits, a linear student: SGD on the samples themselves (points), Gaussian
    theory, and theory with their kappa.

    Parameters
    ----------
    quick : bool, default False
        400 runs in place of 4000, in less than half a minute.
    seed : int, default 0
        Seed of the order of the samples.

    Returns
    -------
    fig : matplotlib.figure.Figure
        The picture.
    data : xarray.Dataset
        The data of the figure.

    Raises
    ------
    ImportError
        If scikit-learn, which contains the digits, is not installed.

    Notes
    -----
    1797 images of 8 x 8 pixels, as they are, centred, and standardised (each pixel over its
    standard deviation; those that never vary are left out). Samples are drawn with replacement, so
    that the mean over all of them is the risk. ``sgd.spectrum_of`` has the eigenvalues, the target
    and kappa; ``sgd.solve_linear`` the mean risk, for Gaussian inputs (kappa = 1) or elliptical
    ones of the same E|x|^4. At lr = 1 raw pixels are stable, where Gaussian ones would not be:
    their lengths vary less. Standardised ones are not, where Gaussian ones would be: pixels that
    are hardly ever on are then enormous where they are. ``largest_step``, from the samples' own
    fourth moments, says both beforehand.

    Examples
    --------
    >>> from sgdynamics_reproductions import scaling_laws
    >>> fig, data = scaling_laws.figure_4(quick=True)  # doctest: +SKIP
    """
    seed, runs = checks.integer("seed", seed, 0), 400 if quick else 4000
    views, labels = pixels()
    steps = np.unique(np.round(np.geomspace(1, LAST, 31))).astype(int)
    some = np.array([3, 10, 30, 100, 300, 1000])
    gauss, repaired = (np.zeros((len(views), len(RATES), len(steps))) for _ in range(2))
    at = np.zeros((2, len(views), len(RATES), len(some)))
    real, results = np.zeros((len(views), len(RATES), runs, len(some))), []
    for row, x in enumerate(views.values()):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # that theory fails here and there is what is drawn
            spectrum = spectrum_of(x, labels)
            results.append(spectrum)
            for column, lr in enumerate(RATES):
                for which, kappa in enumerate((1.0, spectrum.kappa)):
                    line = _theory(spectrum, lr, np.concatenate([steps, some]), kappa)
                    (gauss, repaired)[which][row, column] = line[: len(steps)]
                    at[which, row, column] = line[len(steps) :]
                real[row, column] = sgd_on_samples(
                    x, labels, spectrum, lr, some, runs, len(RATES) * seed + column
                )
    of = {
        name: ("view", [getattr(entry, name) for entry in results])
        for name in ("kappa", "trace", "noise", "residual_ratio", "effective_dimension")
    }
    stable = {
        name: ("view", [getattr(item, f"{name}_step") * item.trace for item in results])
        for name in ("largest", "gaussian")
    }
    data = xr.Dataset(
        {
            "gaussian": (
                ("view", "lr", "step"),
                gauss,
                {"long_name": "mean risk for Gaussian inputs"},
            ),
            "repaired": (
                ("view", "lr", "step"),
                repaired,
                {"long_name": "mean risk with the samples' kappa"},
            ),
            "gaussian_at": (("view", "lr", "point"), at[0]),
            "repaired_at": (("view", "lr", "point"), at[1]),
            "risk": (
                ("view", "lr", "run", "point"),
                real,
                {"long_name": "risk of SGD on the samples"},
            ),
            **of,
            **{f"{name}_lr": value for name, value in stable.items()},
        },
        {"view": list(views), "lr": list(RATES), "step": steps, "point": some},
        {
            "samples": len(labels),
            "start": float(0.5 * np.mean(labels**2)),
            "runs": runs,
            "seed": seed,
        },
    )
    return _draw(data), data


def pixels() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Load the pixels in three ways, and the labels: +1 for odd digits, -1 for even ones."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        missing = (
            "The digits of this figure come with scikit-learn, which is not installed."
            ' Install it with: pip install "sgdynamics[data]"'
        )
        raise ImportError(missing, name="sklearn") from None
    result: Any = load_digits()
    x, labels = (
        np.asarray(result.data, dtype=float) / 16,
        np.where(result.target % 2 == 1, 1.0, -1.0),
    )
    centred, spread = x - x.mean(axis=0), x.std(axis=0)
    return {
        "raw": x,
        "centred": centred,
        "standardised": centred[:, spread > 0] / spread[spread > 0],
    }, labels


def _theory(spectrum: DataSpectrum, lr: float, steps: np.ndarray, kappa: float) -> np.ndarray:
    problem = TeacherStudent(
        width=1, activation="linear", covariance=spectrum, noise=spectrum.noise
    )
    none = np.zeros((spectrum.blocks, 1, 1))
    return solve_linear(
        problem,
        OnePassSGD(lr=lr, per="trace"),
        start(problem, M=none, Q=none),
        steps=steps,
        kappa=kappa,
    ).risk.values[0]


def sgd_on_samples(
    x: np.ndarray,
    labels: np.ndarray,
    spectrum: DataSpectrum,
    lr: float,
    steps: np.ndarray,
    runs: int,
    seed: int,
) -> np.ndarray:
    """Risks (run, step) of plain SGD from 0, samples drawn with replacement."""
    rng, g = np.random.default_rng(seed), lr / spectrum.trace
    w, risks = np.zeros((runs, x.shape[1])), []
    covariance, cross, power = x.T @ x / len(x), x.T @ labels / len(x), float(np.mean(labels**2))
    for step in range(1, int(steps[-1]) + 1):
        which = rng.integers(len(x), size=runs)
        w -= g * (np.sum(w * x[which], axis=1) - labels[which])[:, None] * x[which]
        if step in steps:
            risks.append(0.5 * (np.einsum("ri,ij,rj->r", w, covariance, w) - 2 * w @ cross + power))
    return np.stack(risks, axis=1)


def _draw(data: xr.Dataset) -> Any:
    fig, axes = panels(3, 4.5, 4.0)
    for row, (ax, view) in enumerate(zip(axes, data.view.values, strict=True)):
        for column, lr in enumerate(data.lr.values):
            colour = f"C{column}"
            ax.plot(
                data.step,
                data.gaussian.values[row, column],
                color=colour,
                label=f"lr = {lr:g}: Gaussian",
            )
            ax.plot(
                data.step,
                data.repaired.values[row, column],
                color=colour,
                ls="--",
                label=f"lr = {lr:g}: with $\\kappa$",
            )
            runs = data.risk.values[row, column]
            settles = lr < float(data.largest_lr[row])
            # where the mean does not settle it is carried by rare runs, and a mean over runs means
            # nothing
            if settles:
                draw_runs(ax, data.point, runs, colour, f"lr = {lr:g}: SGD, mean")
            else:
                low, middle, high = np.quantile(runs, [0.1, 0.5, 0.9], axis=0)
                bars = [middle - low, high - middle]
                ax.errorbar(
                    data.point,
                    middle,
                    bars,
                    fmt="s",
                    ms=4,
                    mfc="white",
                    color=colour,
                    capsize=2,
                    lw=1,
                    label=f"lr = {lr:g}: SGD, median",
                )
        words = f"{view}: $\\kappa$ = {float(data.kappa[row]):.2f}"
        stable = (
            f"stable up to lr = {float(data.largest_lr[row]):.2g}\n(Gaussian:"
            f" {float(data.gaussian_lr[row]):.2g})"
        )
        ax.text(0.03, 0.03, stable, transform=ax.transAxes, fontsize="small", va="bottom")
        ax.set(xscale="log", yscale="log", xlabel="steps", ylabel="risk", title=words)
        ax.set_ylim((0.1, 3.0) if row < 2 else (2e-2, 1e4))
        if row < 2:
            ax.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
            ax.set_yticks([], minor=True)
    words = (
        "odd or even digits: SGD on the {samples} samples ({runs} runs; bars 2 standard errors, of"
        " medians 10% to 90% of runs) and theory"
    )
    finish(fig, axes, words.format(**data.attrs), loc="upper right")
    axes[2].legend(frameon=False, fontsize="small", loc="upper left")
    return fig
