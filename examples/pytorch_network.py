"""Predict the rest of a PyTorch training from the network in the middle of it.

``torch.nn`` and ``torch.optim`` train a two-layer network with 1000 inputs by one-pass SGD on the
labels of a teacher. After a quarter of the training, ``sgd.from_training`` converts network, loss
and optimiser to a problem, an algorithm and an initial condition. The ODE then predicts the rest
of the training, and 100 simulated runs show how much single trainings differ at this dimension.

Run it with

    pip install "sgdynamics[torch]"              # adds PyTorch; its CPU build is enough
    python examples/pytorch_network.py [FOLDER]

It prints a table and writes ``pytorch_network.png`` to FOLDER, which defaults to ``output``. How to
install the CPU build of PyTorch is described in docs/howto/network.md.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import xarray as xr

import sgdynamics as sgd

INPUTS = 1000  # input dimension d
UNITS = 4  # hidden units of the network
TEACHER_UNITS = 2
RATE = 1.0  # the learning rate of the PyTorch optimiser is RATE / d
NOISE = 0.01  # variance of the label noise
SAMPLES = 24  # length of the training, in samples per input dimension
PREDICTION_START = 6  # the prediction starts here, in samples per input dimension
SAVES = 48  # measurements during the training
TEST_SAMPLES = 10_000
SEED = 3


class TrainingHistory(NamedTuple):
    """Measurements during the training of the network, one per save point."""

    alpha: np.ndarray  # samples per input dimension
    loss: np.ndarray  # test loss
    loss_error: np.ndarray  # standard error of the test loss
    trainings: list[sgd.Training]  # the network, converted by sgd.from_training


def train(torch, inputs: int, samples: int) -> TrainingHistory:
    """Train the network in PyTorch by one-pass SGD, and measure it SAVES times."""
    torch.manual_seed(SEED)
    teacher = torch.randn(TEACHER_UNITS, inputs, dtype=torch.float64) / math.sqrt(inputs)
    teacher_head = np.full(TEACHER_UNITS, 1 / TEACHER_UNITS)

    class Erf(torch.nn.Module):
        def forward(self, x):
            return torch.erf(x / math.sqrt(2))

    hidden = torch.nn.Linear(inputs, UNITS, bias=False, dtype=torch.float64)
    head = torch.nn.Linear(UNITS, 1, bias=False, dtype=torch.float64)
    network = torch.nn.Sequential(hidden, Erf(), head)
    with torch.no_grad():
        hidden.weight.normal_(0.0, 1 / math.sqrt(inputs))
        head.weight.fill_(1.0 / UNITS)

    def draw_labels(x):
        """Return the mean of the teacher's units with label noise."""
        noise = torch.randn(len(x), 1, dtype=x.dtype)
        output = torch.erf(x @ teacher.T / math.sqrt(2)).mean(dim=1, keepdim=True)
        return output + math.sqrt(NOISE) * noise

    loss = torch.nn.MSELoss()
    optimiser = torch.optim.SGD(hidden.parameters(), lr=RATE / inputs)  # the head stays fixed
    test_inputs = torch.randn(TEST_SAMPLES, inputs, dtype=torch.float64)
    test_labels = draw_labels(test_inputs)

    alphas, losses, loss_errors, trainings = [], [], [], []
    for step in range(samples * inputs + 1):
        if step % (samples * inputs // SAVES) == 0:
            with torch.no_grad():
                squared_errors = (network(test_inputs) - test_labels) ** 2
            alphas.append(step / inputs)
            losses.append(float(squared_errors.mean()))
            loss_errors.append(float(squared_errors.std()) / math.sqrt(TEST_SAMPLES))
            training = sgd.from_training(
                network,
                loss,
                optimiser,
                teacher=teacher,
                teacher_head=teacher_head,
                noise=NOISE,
                activation="erf",
            )
            trainings.append(training)
        x = torch.randn(1, inputs, dtype=torch.float64)  # one-pass SGD: a fresh sample per step
        optimiser.zero_grad()
        loss(network(x), draw_labels(x)).backward()
        optimiser.step()
    return TrainingHistory(np.array(alphas), np.array(losses), np.array(loss_errors), trainings)


def main(folder: Path, inputs: int = INPUTS, samples: int = SAMPLES) -> None:
    """Train the network, predict from its middle, print the table and write the figure."""
    try:
        import torch
    except ImportError:
        raise SystemExit(
            "This example trains a PyTorch network, and PyTorch is not installed."
            ' Install it with: pip install "sgdynamics[torch]"'
            " (the CPU build is enough, see docs/howto/network.md)"
        ) from None

    start_time = time.perf_counter()
    print(
        f"training a PyTorch network with {inputs} inputs and {UNITS} units"
        f" on {samples * inputs} samples, one pass ...",
        flush=True,
    )
    history = train(torch, inputs, samples)
    print(
        f"  {time.perf_counter() - start_time:.0f} s; now the theory,"
        f" from the network after {PREDICTION_START} d samples",
        flush=True,
    )

    # A converted training unpacks as problem, algorithm and start, the arguments of every solver.
    first = int(np.argmin(np.abs(history.alpha - PREDICTION_START)))
    training = history.trainings[first]
    alpha = history.alpha[first:] - history.alpha[first]
    theory = sgd.solve_ode(*training, alpha=alpha)
    runs = sgd.simulate(*training, alpha=alpha, dimension=training.dimension, runs=100, seed=SEED)

    # training.loss converts the risk of the library to the loss of PyTorch (here twice the risk).
    predicted = training.loss(theory.risk.values[0])
    spread = training.loss(runs.risk.values).std(axis=0, ddof=1)
    print_table(history, first, predicted, spread)

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "pytorch_network.png"
    draw(history, first, theory, predicted, spread, inputs, picture)
    print(f"\nwrote {picture} ({time.perf_counter() - start_time:.0f} s in total)")


def print_table(
    history: TrainingHistory, first: int, predicted: np.ndarray, spread: np.ndarray
) -> None:
    """Print measured and predicted losses, from the start of the prediction on.

    The difference is in units of its standard deviation, from the test set and between runs.
    """
    print(
        f"\n{'samples/d':>9}  {'test loss of the network':>24}  {'ODE':>8}"
        f"  {'s.d. of SGD':>13}  {'difference':>10}"
    )
    for index in range(0, len(predicted), max(1, len(predicted) // 9)):
        save = first + index
        deviation = math.hypot(history.loss_error[save], spread[index])
        difference = (history.loss[save] - predicted[index]) / deviation
        print(
            f"{history.alpha[save]:9.2f}"
            f"  {history.loss[save]:13.5f} ± {history.loss_error[save]:.5f}"
            f"  {predicted[index]:10.5f}  {spread[index]:13.5f}  {difference:+5.1f} s.d."
        )


def draw(
    history: TrainingHistory,
    first: int,
    theory: xr.Dataset,
    predicted: np.ndarray,
    spread: np.ndarray,
    inputs: int,
    picture: Path,
) -> None:
    """Draw the loss and the overlaps of the network with their predictions."""
    mpl.use("Agg")  # draws into a file, without a display
    import matplotlib.pyplot as plt

    fig, (loss_ax, overlap_ax) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    predicted_alpha = history.alpha[first:]

    loss_ax.errorbar(
        history.alpha,
        history.loss,
        history.loss_error,
        fmt="o",
        ms=3.5,
        color="tab:gray",
        label="PyTorch network, test loss",
    )
    loss_ax.plot(predicted_alpha, predicted, color="tab:red", label="ODE from the network")
    loss_ax.fill_between(
        predicted_alpha,
        predicted - 2 * spread,
        predicted + 2 * spread,
        color="tab:red",
        alpha=0.2,
        lw=0,
        label="± 2 s.d. of SGD at this $d$",
    )
    loss_ax.set(yscale="log", ylabel="mean squared error", title="loss")
    loss_ax.legend(frameon=False)

    overlaps = np.stack([training.start.M[0] for training in history.trainings])
    for unit in range(UNITS):
        for signal, (marker, line) in enumerate((("o", "-"), ("^", "--"))):
            measured = overlaps[:, unit, signal]
            color = f"C{unit}"
            overlap_ax.plot(history.alpha, measured, marker, ms=3, color=color, alpha=0.6)
            overlap_ax.plot(predicted_alpha, theory.M[0, :, unit, signal], line, color=color)
    overlap_ax.set(ylabel="$w_i \\cdot w^*_r$", title="overlaps (points: network, lines: ODE)")

    for ax in (loss_ax, overlap_ax):
        ax.axvline(history.alpha[first], color="black", lw=0.8, ls=":")
        ax.set_xlabel("samples / $d$")
    fig.suptitle(
        f"A PyTorch network with {inputs} inputs,"
        f" and the theory from {PREDICTION_START} $d$ samples on"
    )
    fig.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
