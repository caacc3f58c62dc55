# %% [markdown]
# # From PyTorch to theory
#
# You are training a two-layer network. What will its risk be after the next hundred thousand examples? If the inputs
# are close to Gaussian and every example is seen once, theory can tell, from the weights as they are now.
#
# This notebook runs without PyTorch: the network is a few lines of NumPy that do exactly what PyTorch would. Where
# yours is a `torch.nn.Module`, hand over `model.first.weight` in place of the array `weights`, and your optimiser in
# place of `SGD` below; everything else stays.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import erf

import sgdynamics as sgd

# %% [markdown]
# ## The network
#
# 300 inputs, 3 hidden units, output f = (1/3) Σ erf(w·x/√2); the labels come from a network of two units, with noise.
# Written with PyTorch it would be
#
# ```text
# model = TwoLayers(inputs=300, units=3)
# optimiser = torch.optim.SGD(model.first.parameters(), lr=0.005)
# loss = 0.5 * (model(x) - y).pow(2).mean()
# ```

# %%
d, p, k, noise, rate = 300, 3, 2, 0.01, 0.005
rng = np.random.default_rng(0)
teacher = rng.standard_normal((k, d)) / np.sqrt(d)
weights = rng.standard_normal((p, d)) / np.sqrt(d)


def output(rows, x):
    return erf(x @ rows.T / np.sqrt(2)).mean(axis=-1)


def train(weights, examples):
    """Plain SGD, one example a step: what loss.backward() and optimiser.step() do."""
    for _ in range(examples):
        x = rng.standard_normal(d)
        error = output(weights, x) - output(teacher, x) - np.sqrt(noise) * rng.standard_normal()
        slope = np.sqrt(2 / np.pi) * np.exp(-((weights @ x) ** 2) / 2) / p
        weights = weights - rate * error * slope[:, None] * x
    return weights


def risk(weights, count=20_000):
    """On fresh examples, with its standard error."""
    x = rng.standard_normal((count, d))
    losses = (output(weights, x) - output(teacher, x)) ** 2 / 2
    return losses.mean(), losses.std() / np.sqrt(count)


weights = train(weights, 5 * d)
print(f"after {5 * d} examples: risk {risk(weights)[0]:.3f}")

# %% [markdown]
# ## The optimiser, in the units of the theory
#
# PyTorch's learning rate is the whole step; the library counts it for each dimension, so that it survives the limit of
# many. `from_torch` converts, for SGD with or without momentum, Adam, AdamW, RMSprop, Adagrad and Muon. It reads
# `param_groups`, which every optimiser of PyTorch has:


# %%
class SGD:  # torch.optim.SGD(model.first.parameters(), lr=0.005)
    def __init__(self, lr):
        self.param_groups = [{"lr": lr, "momentum": 0.0, "dampening": 0.0, "nesterov": False}]


algorithm = sgd.from_torch(SGD(rate), dimension=d)
print(f"lr = {algorithm.lr:.2f}")

# %% [markdown]
# ## The weights, in the words of the theory
#
# All that counts are two small matrices: the overlaps of the rows of weights with each other and with the directions
# that the labels depend on. `overlaps_of` reads them off; arrays may be NumPy, JAX or PyTorch, on any device.

# %%
problem = sgd.TeacherStudent(width=p, teacher_width=k, activation="erf", teacher_gram=teacher @ teacher.T, noise=noise)
now = sgd.overlaps_of(weights, teacher, problem=problem)
print("M =", now.M[0].round(2).tolist())

# %% [markdown]
# ## What comes next
#
# The ODE from here on, and how far a single run of this size strays from it:

# %%
alpha = np.linspace(0, 60, 31)
theory = sgd.solve_ode(problem, algorithm, now, alpha=alpha)
runs = sgd.simulate(problem, algorithm, now, alpha=alpha, dimension=d, runs=100, seed=1)
sgd.compare(theory, runs)

# %% [markdown]
# ## And the network?
#
# It is trained on, and asked for its risk six times on the way, on 20,000 fresh examples each:

# %%
asked = alpha[::5]
measured = [risk(weights)]
for _ in asked[1:]:
    weights = train(weights, int(10 * d))
    measured.append(risk(weights))
values, errors = np.array(measured).T
fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
low, high = (runs.excess_risk.quantile(share, "run") for share in (0.025, 0.975))
ax.fill_between(alpha, low, high, alpha=0.3, label="95% of exact runs")
ax.semilogy(alpha, theory.excess_risk[0], label="ODE from the weights")
ax.errorbar(asked, values, 2 * errors, fmt="k*", ms=9, capsize=3, label="the network, two standard errors")
ax.set(xlabel=r"examples / $d$ from now", ylabel="excess risk", yscale="log")
ax.legend(frameon=False)
plt.show()
inside = (values + 2 * errors > low.values[::5]) & (values - 2 * errors < high.values[::5])
print(f"{int(inside.sum())} of {len(asked)} measurements within the band of runs and their own error")

# %% [markdown]
# `examples/pytorch_network.py` does this with a real `torch.nn.Module` of 1000 inputs; [the
# how-to](../howto/network.md) has the rules for other scales of weights and outputs.
