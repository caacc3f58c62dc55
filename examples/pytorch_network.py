"""A PyTorch network in training, and the theory of the rest of its training.

A two-layer network with 1000 inputs learns from a teacher by one-pass SGD, with torch.nn and torch.optim. A quarter of the way
`sgd.from_training` converts the network, its loss and its optimiser; from that the ODE predicts the rest of the training. Writes
output/pytorch_network.png and prints a table. Needs PyTorch, whose build for the CPU is
enough (docs/howto/network.md says how to get it): pip install "sgdynamics[torch]".
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

import sgdynamics as sgd

INPUTS = 1000
UNITS, TEACHERS = 4, 2
RATE = 1.0  # the learning rate is RATE / inputs
NOISE = 0.01
SAMPLES = 24  # per input dimension
HANDOVER = 6  # the theory starts here
SAVES = 48
SEED = 3


def train(torch, inputs: int, samples: int):
    """Train and measure.

    Returns samples/d, the test loss with its standard error and the conversion of the network at each save point, and the teacher.
    """
    torch.manual_seed(SEED)
    teacher = torch.randn(TEACHERS, inputs, dtype=torch.float64) / math.sqrt(inputs)

    class Erf(torch.nn.Module):
        def forward(self, x):
            return torch.erf(x / math.sqrt(2))

    first = torch.nn.Linear(inputs, UNITS, bias=False, dtype=torch.float64)
    second = torch.nn.Linear(UNITS, 1, bias=False, dtype=torch.float64)
    network = torch.nn.Sequential(first, Erf(), second)
    with torch.no_grad():
        first.weight.normal_(0.0, 1 / math.sqrt(inputs))
        second.weight.fill_(1.0 / UNITS)

    def label(x):
        return torch.erf(x @ teacher.T / math.sqrt(2)).mean(dim=1, keepdim=True) + math.sqrt(
            NOISE
        ) * torch.randn(len(x), 1, dtype=x.dtype)

    loss = torch.nn.MSELoss()
    optimiser = torch.optim.SGD(first.parameters(), lr=RATE / inputs)  # the head is frozen
    head = np.full(TEACHERS, 1 / TEACHERS)
    test = torch.randn(10000, inputs, dtype=torch.float64)
    answers = label(test)
    alphas, losses, errors, trainings = [], [], [], []
    for step in range(samples * inputs + 1):
        if step % (samples * inputs // SAVES) == 0:
            with torch.no_grad():
                squares = (network(test) - answers) ** 2
            alphas.append(step / inputs)
            losses.append(float(squares.mean()))
            errors.append(float(squares.std()) / math.sqrt(len(squares)))
            trainings.append(
                sgd.from_training(
                    network,
                    loss,
                    optimiser,
                    teacher=teacher,
                    teacher_head=head,
                    noise=NOISE,
                    activation="erf",
                )
            )
        x = torch.randn(1, inputs, dtype=torch.float64)
        optimiser.zero_grad()
        loss(network(x), label(x)).backward()
        optimiser.step()
    return np.array(alphas), np.array(losses), np.array(errors), trainings


def main(folder: Path, inputs: int = INPUTS, samples: int = SAMPLES) -> None:
    try:
        import torch
    except ImportError:
        missing = 'this example trains a PyTorch network, and PyTorch is not installed: pip install "sgdynamics[torch]"'
        raise SystemExit(
            f"{missing} (its build for the CPU is enough: docs/howto/network.md)"
        ) from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    began = time.perf_counter()
    print(
        f"training a PyTorch network, {inputs} inputs, {UNITS} units, {samples * inputs} samples, one pass ...",
        flush=True,
    )
    alphas, losses, errors, trainings = train(torch, inputs, samples)
    print(
        f"  {time.perf_counter() - began:.0f} s; now the theory, from the network at {HANDOVER} d samples",
        flush=True,
    )

    middle = int(np.argmin(np.abs(alphas - HANDOVER)))
    training = trainings[middle]
    later = alphas[middle:] - alphas[middle]
    theory = sgd.solve_ode(*training, alpha=later)
    runs = sgd.simulate(*training, alpha=later, dimension=training.dimension, runs=100, seed=SEED)
    predicted = training.loss(np.asarray(theory.risk)[0])
    spread = training.loss(np.asarray(runs.risk)).std(axis=0, ddof=1)

    print(
        f"\n{'samples/d':>9}  {'test loss of the network':>24}  {'ODE':>8}  {'spread of SGD':>13}  {'apart':>10}"
    )
    for index in range(0, len(later), max(1, len(later) // 9)):
        at = middle + index
        apart = (losses[at] - predicted[index]) / math.hypot(errors[at], spread[index])
        print(
            f"{alphas[at]:9.2f}  {losses[at]:13.5f} ± {errors[at]:.5f}  {predicted[index]:10.5f}  {spread[index]:13.5f}  {apart:+5.1f} s.d."
        )

    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.errorbar(
        alphas,
        losses,
        errors,
        fmt="o",
        ms=3.5,
        color="tab:gray",
        label="PyTorch network, test loss",
    )
    left.plot(alphas[middle:], predicted, color="tab:red", label="ODE from the network")
    band = predicted - 2 * spread, predicted + 2 * spread
    left.fill_between(
        alphas[middle:],
        *band,
        color="tab:red",
        alpha=0.2,
        lw=0,
        label="± 2 s.d. of SGD at this $d$",
    )
    left.set(yscale="log", ylabel="mean squared error", title="loss")
    M = np.stack([measurement.start.M[0] for measurement in trainings])
    for unit in range(UNITS):
        for signal in range(TEACHERS):
            color = f"C{unit}"
            right.plot(
                alphas,
                M[:, unit, signal],
                "o" if signal == 0 else "^",
                ms=3,
                color=color,
                alpha=0.6,
            )
            right.plot(
                alphas[middle:],
                theory.M[0, :, unit, signal],
                color=color,
                ls="-" if signal == 0 else "--",
            )
    right.set(ylabel="$w_i \\cdot w^*_r$", title="overlaps (points: network, lines: ODE)")
    for ax in (left, right):
        ax.axvline(alphas[middle], color="black", lw=0.8, ls=":")
        ax.set_xlabel("samples / $d$")
    left.legend(frameon=False)
    fig.suptitle(
        f"A PyTorch network with {inputs} inputs, and the theory from {HANDOVER} $d$ samples on"
    )
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "pytorch_network.png"
    unfinished = folder / ".pytorch_network.part.png"
    fig.savefig(unfinished, dpi=130)
    unfinished.replace(picture)
    print(f"\nwrote {picture} ({time.perf_counter() - began:.0f} s in all)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
