"""A real PyTorch network in training, and the theory laid over it from the middle on.

A two-layer network with 1000 inputs learns from a teacher by one-pass SGD, by torch.nn and torch.optim. A quarter of the way its weights
are measured (`sgd.overlaps_of`: three small matrices); from these alone the ODE tells what the rest of the training does. Writes
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
from sgdynamics.problems.bridge import overlaps_of

INPUTS = 1000
UNITS, TEACHERS = 4, 2
LR = 2.0  # the library's: PyTorch's own is LR/INPUTS, for the loss (f - y)^2/2
NOISE = 0.01
SAMPLES = 24  # per input dimension
HANDOVER = 6  # the theory starts here
SAVES = 48
SEED = 3


def train(torch, inputs: int, samples: int):
    """Train, and measure: samples/d, the test risk on fresh data, and the weights at the save points; and the teacher."""
    torch.manual_seed(SEED)
    teacher = torch.randn(TEACHERS, inputs, dtype=torch.float64) / math.sqrt(inputs)
    first = torch.nn.Linear(inputs, UNITS, bias=False, dtype=torch.float64)
    second = torch.nn.Linear(UNITS, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        first.weight.normal_(0.0, 1 / math.sqrt(inputs))
        second.weight.fill_(1.0 / UNITS)  # the network's output is a sum: the 1/p of the mean is in its head

    def network(x):
        return second(torch.erf(first(x) / math.sqrt(2)))[:, 0]

    def label(x):
        return torch.erf(x @ teacher.T / math.sqrt(2)).mean(dim=1) + math.sqrt(NOISE) * torch.randn(len(x), dtype=x.dtype)

    optimizer = torch.optim.SGD(first.parameters(), lr=LR / inputs)
    test = torch.randn(10000, inputs, dtype=torch.float64)
    answers = label(test)
    alphas, risks, errors, states = [], [], [], []
    for step in range(samples * inputs + 1):
        if step % (samples * inputs // SAVES) == 0:
            with torch.no_grad():
                losses = (network(test) - answers) ** 2 / 2
            alphas.append(step / inputs)
            risks.append(float(losses.mean()))
            errors.append(float(losses.std()) / math.sqrt(len(losses)))
            states.append((first.weight.detach().clone(), second.weight.detach().clone()))
        x = torch.randn(1, inputs, dtype=torch.float64)
        loss = ((network(x) - label(x)) ** 2).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(alphas), np.array(risks), np.array(errors), states, teacher


def main(folder: Path, inputs: int = INPUTS, samples: int = SAMPLES) -> None:
    try:
        import torch
    except ImportError:
        missing = 'this example trains a PyTorch network, and PyTorch is not installed: pip install "sgdynamics[torch]"'
        raise SystemExit(f"{missing} (its build for the CPU is enough: docs/howto/network.md)") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    began = time.perf_counter()
    print(f"training a PyTorch network, {inputs} inputs, {UNITS} units, {samples * inputs} samples, one pass ...", flush=True)
    alphas, risks, errors, states, teacher = train(torch, inputs, samples)
    print(f"  {time.perf_counter() - began:.0f} s; now the theory, from the weights at {HANDOVER} d samples", flush=True)

    # output = sum_i a_i s(w_i.x): output_scale = 1, so that the library's head is UNITS times PyTorch's
    gram = (teacher @ teacher.T).numpy()
    problem = sgd.TeacherStudent(width=UNITS, teacher_width=TEACHERS, activation="erf", teacher_gram=gram, noise=NOISE)
    middle = int(np.argmin(np.abs(alphas - HANDOVER)))
    measured = [overlaps_of(rows, teacher, head, problem, output_scale=1.0) for rows, head in states]
    later = alphas[middle:] - alphas[middle]
    algorithm = sgd.OnePassSGD(lr=LR)
    theory = sgd.solve_ode(problem, algorithm, measured[middle], alpha=later)
    runs = sgd.simulate(problem, algorithm, measured[middle], alpha=later, dimension=inputs, runs=100, seed=SEED)
    predicted, spread = np.asarray(theory.risk)[0], np.asarray(runs.risk).std(axis=0, ddof=1)

    print(f"\n{'samples/d':>9}  {'test risk of the network':>24}  {'ODE':>8}  {'spread of SGD':>13}  {'apart':>10}")
    for index in range(0, len(later), max(1, len(later) // 9)):
        at = middle + index
        apart = (risks[at] - predicted[index]) / math.hypot(errors[at], spread[index])
        print(
            f"{alphas[at]:9.2f}  {risks[at]:13.5f} ± {errors[at]:.5f}  {predicted[index]:10.5f}  {spread[index]:13.5f}  {apart:+5.1f} s.d."
        )

    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.errorbar(alphas, risks, errors, fmt="o", ms=3.5, color="tab:gray", label="PyTorch network, test risk")
    left.plot(alphas[middle:], predicted, color="tab:red", label="ODE from the measured overlaps")
    band = predicted - 2 * spread, predicted + 2 * spread
    left.fill_between(alphas[middle:], *band, color="tab:red", alpha=0.2, lw=0, label="± 2 s.d. of SGD at this $d$")
    left.set(yscale="log", ylabel="risk", title="risk")
    M = np.stack([one.M[0] for one in measured])
    for unit in range(UNITS):
        for signal in range(TEACHERS):
            color = f"C{unit}"
            right.plot(alphas, M[:, unit, signal], "o" if signal == 0 else "^", ms=3, color=color, alpha=0.6)
            right.plot(alphas[middle:], theory.M[0, :, unit, signal], color=color, ls="-" if signal == 0 else "--")
    right.set(ylabel="$w_i \\cdot w^*_r$", title="overlaps (points: network, lines: ODE)")
    for ax in (left, right):
        ax.axvline(alphas[middle], color="black", lw=0.8, ls=":")
        ax.set_xlabel("samples / $d$")
    left.legend(frameon=False)
    fig.suptitle(f"A PyTorch network with {inputs} inputs, and the theory from {HANDOVER} $d$ samples on")
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "pytorch_network.png"
    unfinished = folder / ".pytorch_network.part.png"
    fig.savefig(unfinished, dpi=130)
    unfinished.replace(picture)
    print(f"\nwrote {picture} ({time.perf_counter() - began:.0f} s in all)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
