# %% [markdown]
# # From PyTorch to theory
#
# You train a two-layer network with PyTorch. If its inputs are close to Gaussian and each example
# is used once, a few overlaps of the weights determine the whole learning curve. After this
# notebook you can compute that curve from your network, your loss and your optimiser, in one call,
# before or during the training.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## A training
#
# An ordinary network with 200 inputs and four ReLU units, the mean squared error, SGD on all
# weights, and batches of eight. The labels come from a network of two units, with noise of
# variance 0.01. The layers have no biases: the theory does not contain trained biases, and
# `from_training` raises an error if the network has any.

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
# `from_training` reads the network, the loss and the optimiser, and returns problem, algorithm and
# start. It converts three factors that are easy to forget. The library's loss is $(f - y)^2/2$,
# half of PyTorch's. Its output is a mean over units, PyTorch's a sum. Its learning rate is per
# input dimension.

# %%
training = sgd.from_training(network, loss, optimiser, teacher=teacher, noise=noise, batch=batch)
problem, algorithm, start = training
torch_lr = optimiser.param_groups[0]["lr"]
print(
    f"PyTorch: lr = {torch_lr}; library: lr = {algorithm.lr:g}, head_rate = {algorithm.head_rate:g}"
)
print("overlaps with the teacher:", start.M[0].round(2).tolist())

# %% [markdown]
# ## The learning curve, predicted
#
# The ODE is the limit of many inputs. `simulate` draws runs of SGD with exactly 200 inputs, and
# shows how much two trainings differ. `training.alpha` converts optimiser steps to the clock of
# the library, samples per dimension. Results contain the risk, which is half the mean squared
# error; `training.loss` converts it.

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
    index = list(steps).index(step)
    print(
        f"step {step:4d}: mean squared error {measured[index]:.3f} of the network,"
        f" {predicted[index]:.3f} of the ODE"
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
    f"{int(inside.sum())} of {len(steps)} measurements lie within the band"
    " (widened by 3%, the error of a measurement)"
)

# %% [markdown]
# ## Other networks and optimisers
#
# | your training | what to do |
# | --- | --- |
# | momentum, Nesterov, weight decay, parameter groups per layer | pass the optimiser as it is |
# | a frozen head (required by Adam, AdamW, RMSprop, Adagrad, Muon) | `requires_grad_(False)` |
# | a loss of your own, a multiple of the squared error | pass it; the factor is measured |
# | a module of your own with layers `first` and `second` | pass it, with `activation=` if needed |
# | in the middle of a training | call `from_training` then; it reads weights and velocities |
# | biases | `bias=False`, or set them to 0 and freeze them |
#
# A frozen head may also be left out of the optimiser. A module needs `activation=` if its forward
# method calls a function instead of a layer. Unsupported networks and options raise an error that
# names them:

# %%
with_biases = torch.nn.Sequential(torch.nn.Linear(d, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
try:
    sgd.from_training(
        with_biases, loss, torch.optim.SGD(with_biases.parameters(), lr=0.02), teacher=teacher
    )
except ValueError as error:
    print(error)

# %% [markdown]
# `examples/pytorch_network.py` predicts the second half of a training with 1000 inputs. [The
# how-to](../howto/network.md) describes the rules for networks of other libraries.
