"""Predict SGD on real data: odd against even digits, from the spectrum of the images alone.

A linear student learns whether a digit is odd or even. Plain SGD in NumPy draws one of 1797 images
(8 x 8 pixels) per step, with replacement. The theory needs only the eigenvalues of the covariance
of the pixels and the linear target in this basis, which ``sgd.spectrum_of`` computes. From these,
``sgd.solve_linear`` predicts the mean risk at any step:

- for Gaussian inputs with this covariance (``kappa=1``), and
- with the kurtosis ratio ``kappa`` of the data, because the norms of real images vary more than
  those of Gaussian vectors and make the steps noisier.

Run it with

    pip install "sgdynamics[data]"              # adds scikit-learn, which contains the images
    python examples/real_data.py [FOLDER]

It takes a few seconds, prints a table for two learning rates, and writes ``real_data.png`` to
FOLDER, which defaults to ``output``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

import sgdynamics as sgd

RATES = (0.2, 1.0)  # learning rates; the step size is lr divided by the mean of |x|^2
STEPS = (1, 3, 10, 30, 100, 300, 1000)  # steps after which the risk is measured
RUNS = 400
SEED = 5


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Load centred pixels, scaled to [0, 1], and labels: +1 for odd digits and -1 for even ones."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            "This example uses the digits of scikit-learn, which is not installed."
            " Install it with: pip install 'sgdynamics[data]'"
        ) from None
    pixels, digit = (np.asarray(array) for array in load_digits(return_X_y=True))
    x = pixels / 16  # the pixels are integers from 0 to 16
    return x - x.mean(axis=0), np.where(digit % 2 == 1, 1.0, -1.0)


def train(x: np.ndarray, y: np.ndarray, step: float, runs: int) -> np.ndarray:
    """Run plain SGD from zero weights; return the risk over all images, of shape (runs, STEPS)."""
    rng = np.random.default_rng(SEED)
    weights = np.zeros((runs, x.shape[1]))
    risks = []
    for completed_steps in range(1, STEPS[-1] + 1):
        drawn = rng.integers(len(x), size=runs)  # each run draws its own image
        residuals = np.sum(weights * x[drawn], axis=1) - y[drawn]
        weights -= step * residuals[:, None] * x[drawn]
        if completed_steps in STEPS:
            risks.append(np.mean((weights @ x.T - y) ** 2, axis=1) / 2)
    return np.stack(risks, axis=1)


def predict(
    spectrum: sgd.DataSpectrum, lr: float, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predict the mean risk at the given steps, for Gaussian inputs and with kappa of the data."""
    problem = sgd.TeacherStudent(
        width=1, activation="linear", covariance=spectrum, noise=spectrum.noise
    )
    # per="trace": the step size is lr / trace of the covariance, which is the mean of |x|^2.
    algorithm = sgd.OnePassSGD(lr=lr, per="trace")
    zero = np.zeros((spectrum.blocks, 1, 1))
    start = sgd.start(problem, M=zero, Q=zero)
    gaussian = sgd.solve_linear(problem, algorithm, start, steps=steps, kappa=1.0)
    corrected = sgd.solve_linear(problem, algorithm, start, steps=steps, kappa=spectrum.kappa)
    return gaussian.risk.values[0], corrected.risk.values[0]


def main(folder: Path, runs: int = RUNS) -> None:
    """Train on the images, predict from their spectrum, print the table and write the figure."""
    mpl.use("Agg")  # draws into a file, without a display
    import matplotlib.pyplot as plt

    x, y = digits()
    start_time = time.perf_counter()
    spectrum = sgd.spectrum_of(x, y)
    print_summary(len(x), spectrum)

    grid = np.union1d(STEPS, np.round(np.geomspace(STEPS[0], STEPS[-1], 61))).astype(int)
    measured = np.searchsorted(grid, STEPS)  # positions of STEPS in the grid
    fig, axes = plt.subplots(1, len(RATES), figsize=(10, 4), layout="constrained", sharey=True)
    for ax, lr in zip(axes, RATES, strict=True):
        gaussian, corrected = predict(spectrum, lr, grid)
        risks = train(x, y, lr / spectrum.trace, runs)
        mean = risks.mean(axis=0)
        error = risks.std(axis=0, ddof=1) / np.sqrt(runs)

        print(f"\nlr = {lr:g}")
        print_table(mean, error, gaussian[measured], corrected[measured])

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
        ax.plot(grid, corrected, color="tab:red", label=f"with $\\kappa$ = {spectrum.kappa:.3f}")
        ax.set(xscale="log", xlabel="steps", title=f"lr = {lr:g}")
        ax.legend(frameon=False)
    axes[0].set_ylabel("risk")
    fig.suptitle(
        "Odd or even digits: SGD on the images, and the theory from their spectrum"
        " (bars: 2 standard errors)"
    )
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "real_data.png"
    fig.savefig(picture, dpi=130)
    print(f"\nwrote {picture} ({time.perf_counter() - start_time:.0f} s in total)")


def print_summary(images: int, spectrum: sgd.DataSpectrum) -> None:
    """Print the quantities of the spectrum that determine the dynamics."""
    largest_lr = spectrum.largest_step * spectrum.trace
    largest_gaussian_lr = spectrum.gaussian_step * spectrum.trace
    print(
        f"{images} images in {spectrum.dimension} dimensions;"
        f" effective dimension of the gradient noise: {spectrum.effective_dimension:.1f}"
    )
    print(
        f"variance of the labels that no linear function explains: {spectrum.noise:.3f};"
        f" kappa = {spectrum.kappa:.3f} (1 for Gaussian inputs)"
    )
    print(
        f"SGD is stable up to lr = {largest_lr:.2f} on these images,"
        f" and up to lr = {largest_gaussian_lr:.2f} on Gaussian inputs with their covariance"
    )


def print_table(
    mean: np.ndarray, error: np.ndarray, gaussian: np.ndarray, corrected: np.ndarray
) -> None:
    """Print the measured and the predicted risks at STEPS, with relative differences."""
    print(
        f"{'steps':>5}  {'SGD on the images':>17}  {'Gaussian':>8}  {'diff.':>6}"
        f"  {'with kappa':>10}  {'diff.':>6}"
    )
    for index, step in enumerate(STEPS):
        print(
            f"{step:5d}  {mean[index]:8.4f} ± {error[index]:.4f}"
            f"  {gaussian[index]:8.4f}  {gaussian[index] / mean[index] - 1:+6.1%}"
            f"  {corrected[index]:10.4f}  {corrected[index] / mean[index] - 1:+6.1%}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
