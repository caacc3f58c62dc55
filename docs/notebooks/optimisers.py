# %% [markdown]
# # Optimisers
#
# Momentum, Adam and Muon change how a step uses the gradient, and each of them has its own limit
# in high dimensions. This notebook compares some optimisers in theory, and the theory with runs.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## One problem, three optimisers
#
# One unit learns another from noisy labels. An optimiser is an *update*, an argument of the
# algorithm. Its hyperparameters are in units in which d can grow: `memory=2` remembers the last
# d/2 steps.

# %%
problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
start = sgd.start(problem, M=[[0.4]], Q=[[1.0]])
alpha = np.linspace(0, 12, 25)
updates = {
    "plain SGD": (1.0, None),
    "momentum": (1.0, sgd.updates.momentum(memory=1.0)),
    "Adam": (0.3, sgd.updates.adam(memory=4.0)),
}
theory = {
    name: sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr, update=update), start, alpha=alpha)
    for name, (lr, update) in updates.items()
}
theory["Adam"]

# %% [markdown]
# ## Runs
#
# Momentum commutes with rotations of the inputs, so the fast exact simulation supports it, as it
# supports plain SGD. Adam acts on single coordinates and needs a simulation in d dimensions,
# `method="direct"`.

# %%
d, count = 200, 40
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, (lr, update) in updates.items():
    method = "direct" if name == "Adam" else "exact"
    algorithm = sgd.OnePassSGD(lr=lr, update=update)
    runs = sgd.simulate(
        problem, algorithm, start, alpha=alpha[::4], dimension=d, runs=count, seed=1, method=method
    )
    (line,) = ax.semilogy(alpha, theory[name].excess_risk[0], label=name)
    mean, error = runs.excess_risk.mean("run"), runs.excess_risk.std("run") / count**0.5
    ax.errorbar(runs.alpha, mean, error, fmt="o", ms=4, capsize=2, color=line.get_color())
    last = float(theory[name].excess_risk[0, -1])
    print(
        f"{name:10s} theory {last:.4f}, {count} runs {float(mean[-1]):.4f} ± {float(error[-1]):.4f}"
    )
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="excess risk")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Lines show the theory, points the means of 40 runs at d = 200 with standard errors.
#
# ## When is momentum a larger learning rate?
#
# A velocity that forgets within a few steps, such as PyTorch's `momentum=0.9`, is equivalent to a
# learning rate ten times larger in the limit. A velocity that remembers as long as the network
# learns has a dynamics of its own, and overshoots:

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
cases = {
    "plain, lr = 1": (1.0, None),
    "beta = 0.9, lr = 0.1": (0.1, sgd.updates.momentum(0.9)),
    "memory of 2 d steps": (1.0, sgd.updates.momentum(memory=0.5)),
    "memory of 5 d steps": (1.0, sgd.updates.momentum(memory=0.2)),
}
for style, (name, (lr, update)) in zip(("-", "--", "-", "-"), cases.items(), strict=True):
    result = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=lr, update=update), start, alpha=np.linspace(0, 30, 25)
    )
    ax.plot(result.alpha, result.M[0, :, 0, 0], style, label=name)
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="overlap with the teacher")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# For clipping, sharpness-aware steps, Muon and others, and for optimisers of your own, see
# [optimisers](../howto/optimisers.md).
