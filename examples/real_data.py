"""Real data: how SGD learns to tell odd from even digits, foretold from the spectrum of the images alone.

A linear student sees 1797 images of 8 x 8 pixels, one at a time, drawn with replacement, in plain NumPy. `sgd.spectrum_of` takes from the
images what the theory needs; `sgd.solve_linear` gives the mean risk at any step, for Gaussian inputs of this covariance, and with kappa,
which corrects for how much the lengths of real images vary. Writes output/real_data.png and prints a table. Needs scikit-learn, which has
the digits: pip install "sgdynamics[data]".
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import sgdynamics as sgd

RATES = (0.2, 1.0)  # steps are these over the mean of |x|^2
STEPS = (1, 3, 10, 30, 100, 300, 1000)
RUNS = 400
SEED = 5


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Centred pixels between 0 and 1, and +1 for odd and -1 for even digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "this example looks at scikit-learn's digits, and it is not installed: pip install 'sgdynamics[data]'"
        ) from None
    found: Any = load_digits()
    x = found.data / 16
    return x - x.mean(axis=0), np.where(found.target % 2 == 1, 1.0, -1.0)


def train(x: np.ndarray, y: np.ndarray, step: float, runs: int) -> np.ndarray:
    """Plain SGD from zero, many runs at once: the risk over all images, (runs, steps)."""
    rng = np.random.default_rng(SEED)
    w, risks = np.zeros((runs, x.shape[1])), []
    for done in range(1, STEPS[-1] + 1):
        one = rng.integers(len(x), size=runs)  # each run sees an image of its own
        error = np.sum(w * x[one], axis=1) - y[one]
        w -= step * error[:, None] * x[one]
        if done in STEPS:
            risks.append(np.mean((w @ x.T - y) ** 2, axis=1) / 2)
    return np.stack(risks, axis=1)


def main(folder: Path, runs: int = RUNS) -> None:
    x, y = digits()
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    began = time.perf_counter()
    spectrum = sgd.spectrum_of(x, y)
    print(
        f"{len(x)} images, {spectrum.dimension} directions, of which {spectrum.effective_dimension:.1f} carry the noise of a step"
    )
    print(
        f"labels are linear in the pixels but for a noise of {spectrum.noise:.3f}; kappa = {spectrum.kappa:.3f} (1 for Gaussian inputs)"
    )
    limits = spectrum.largest_step * spectrum.trace, spectrum.gaussian_step * spectrum.trace
    print(
        f"SGD settles up to lr = {limits[0]:.2f} on these images, up to {limits[1]:.2f} on Gaussian ones of their covariance"
    )

    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=spectrum, noise=spectrum.noise
    )
    zero = np.zeros((spectrum.blocks, 1, 1))
    start = sgd.start(problem, M=zero, Q=zero)
    grid = np.union1d(STEPS, np.round(np.geomspace(STEPS[0], STEPS[-1], 61))).astype(int)
    at = np.searchsorted(grid, STEPS)
    fig, axes = plt.subplots(1, len(RATES), figsize=(10, 4), layout="constrained", sharey=True)
    for ax, lr in zip(axes, RATES, strict=True):
        algorithm = sgd.OnePassSGD(lr=lr, per="trace")
        gaussian, repaired = (
            sgd.solve_linear(problem, algorithm, start, steps=grid, kappa=kappa).risk.values[0]
            for kappa in (1.0, spectrum.kappa)
        )
        risks = train(x, y, lr / spectrum.trace, runs)
        mean, error = risks.mean(axis=0), risks.std(axis=0, ddof=1) / np.sqrt(runs)
        print(
            f"\nlr = {lr:g}\n{'steps':>5}  {'SGD on the images':>17}  {'Gaussian':>8}  {'apart':>6}  {'with kappa':>10}  {'apart':>6}"
        )
        for index, step in enumerate(STEPS):
            one, other = gaussian[at[index]], repaired[at[index]]
            shares = [f"{line / mean[index] - 1:+6.1%}" for line in (one, other)]
            print(
                f"{step:5d}  {mean[index]:8.4f} ± {error[index]:.4f}  {one:8.4f}  {shares[0]}  {other:10.4f}  {shares[1]}"
            )
        ax.errorbar(
            STEPS,
            mean,
            2 * error,
            fmt="o",
            ms=5,
            mfc="white",
            color="tab:gray",
            capsize=2,
            label=f"SGD on the images, {runs} runs",
        )
        ax.plot(grid, gaussian, color="tab:blue", ls="--", label="Gaussian inputs")
        ax.plot(grid, repaired, color="tab:red", label=f"with $\\kappa$ = {spectrum.kappa:.3f}")
        ax.set(xscale="log", xlabel="steps", title=f"lr = {lr:g}")
        ax.legend(frameon=False)
    axes[0].set_ylabel("risk")
    fig.suptitle(
        "Odd or even digits: SGD on the images, and the theory from their spectrum (bars: 2 standard errors)"
    )
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "real_data.png"
    unfinished = folder / ".real_data.part.png"
    fig.savefig(unfinished, dpi=130)
    unfinished.replace(picture)
    print(f"\nwrote {picture} ({time.perf_counter() - began:.0f} s in all)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
