# %% [markdown]
# # From PyTorch to theory
#
# You train a two-layer network with PyTorch. If its inputs are close to Gaussian and every example is used once, the
# whole learning curve follows from a few overlaps of its weights. After this notebook you can compute that curve from
# your network, your loss and your optimiser, in one call, before or during the training.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## A training
#
# An ordinary network of 200 inputs and four ReLU units, the mean squared error, SGD on all weights, batches of eight.
# The labels come from a network of two units, with noise of variance 0.01. The layers have no biases: the theory does
# not contain trained biases, and `from_training` says so if it finds any.

# %%
d, batch, noise = 200, 8, 0.01
torch.manual_seed(0)
torch.set_num_threads(1)


def two_layers(units):
    return torch.nn.Sequential(
        torch.nn.Linear(d, units, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(units, 1, bias=False),
    )


network, teacher = two_layers(4), two_layers(2).requires_grad_(False)
teacher[0].weight.normal_(0, d**-0.5)
teacher[2].weight.fill_(1.0)
loss = torch.nn.MSELoss()
optimiser = torch.optim.SGD(network.parameters(), lr=0.02)


def draw(count):
    x = torch.randn(count, d)
    return x, teacher(x) + noise**0.5 * torch.randn(count, 1)


# %% [markdown]
# ## The same training in the units of the theory
#
# `from_training` reads the network, the loss and the optimiser, and returns problem, algorithm and start. The
# conversion contains the factors that are easy to forget: the library's loss is $(f - y)^2/2$, half of PyTorch's; its
# output is a mean over units, PyTorch's a sum; its learning rate counts per input dimension.

# %%
training = sgd.from_training(network, loss, optimiser, teacher=teacher, noise=noise, batch=batch)
problem, algorithm, start = training
print(
    f"PyTorch: lr = {optimiser.param_groups[0]['lr']}; library: lr = {algorithm.lr:g}, head_rate = {algorithm.head_rate:g}"
)
print("overlaps with the teacher:", start.M[0].round(2).tolist())

# %% [markdown]
# ## The learning curve, predicted
#
# The ODE is the limit of many inputs; `simulate` draws runs of SGD with exactly 200 inputs, and shows how much one
# training deviates from another. `training.alpha` converts optimiser steps to the clock of the library, samples per
# dimension. Results contain the risk, which is half the mean squared error; `training.loss` converts it.

# %%
steps = np.array([0, 50, 100, 200, 300, 500, 700, 1000, 1400, 2000, 3000])
alpha = training.alpha(steps)
theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha, dimension=d)
runs = sgd.simulate(problem, algorithm, start, alpha=alpha, dimension=d, runs=100, seed=1)
sgd.compare(theory, runs)

# %% [markdown]
# ## The learning curve, measured
#
# Now the network is trained, and its mean squared error is measured on 20,000 fresh examples.


# %%
def train(steps):
    """Train up to each of these steps, and measure the mean squared error there."""
    errors, test = [], draw(20_000)
    for step in range(steps[-1] + 1):
        if step in steps:
            with torch.no_grad():
                errors.append(float(loss(network(test[0]), test[1])))
        x, y = draw(batch)
        optimiser.zero_grad()
        loss(network(x), y).backward()
        optimiser.step()
    return np.array(errors)


measured = train(steps)
predicted = training.loss(theory.risk.values[0])
for step in (0, 100, 300, 3000):
    at = list(steps).index(step)
    print(
        f"step {step:4d}: mean squared error {measured[at]:.3f} of the network, {predicted[at]:.3f} of the ODE"
    )

# %%
fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
low, high = (training.loss(runs.risk.quantile(share, "run")) for share in (0.025, 0.975))
ax.fill_between(steps, low, high, alpha=0.3, label="95% of runs of SGD with 200 inputs")
ax.plot(steps, predicted, label="ODE")
ax.plot(steps, measured, "k*", ms=9, label="PyTorch network")
ax.set(xlabel="optimiser steps", ylabel="mean squared error", yscale="log")
ax.legend(frameon=False)
plt.show()
inside = (measured > 0.97 * low.values) & (measured < 1.03 * high.values)
print(
    f"{int(inside.sum())} of {len(steps)} measurements lie within the band (widened by 3%, the error of a measurement)"
)

# %% [markdown]
# ## Other networks and optimisers
#
# | your training | what to do |
# | --- | --- |
# | momentum, Nesterov, weight decay, separate parameter groups of the two layers | pass the optimiser as it is |
# | a frozen head | `requires_grad_(False)`, or leave it out of the optimiser; Adam, AdamW, RMSprop, Adagrad and Muon need it |
# | a loss of your own that is a multiple of the squared error | pass the function; the factor is measured |
# | a module of your own with `first` and `second` layers | pass it, with `activation=` if its forward calls a function |
# | in the middle of a training | call `from_training` then: weights and velocities are read as they are |
# | biases | `bias=False`, or set them to 0 and freeze them |
#
# What is not supported raises an error that names the layer or the option:

# %%
with_biases = torch.nn.Sequential(torch.nn.Linear(d, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
try:
    sgd.from_training(
        with_biases, loss, torch.optim.SGD(with_biases.parameters(), lr=0.02), teacher=teacher
    )
except ValueError as error:
    print(error)

# %% [markdown]
# `examples/pytorch_network.py` predicts the rest of a training from its middle, at 1000 inputs; [the
# how-to](../howto/network.md) has the rules for networks that are not PyTorch's.
