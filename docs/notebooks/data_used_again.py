# %% [markdown]
# # Data used again
#
# With a data set of fixed size, each example is used many times. The network starts to fit the
# noise of the labels, and the risk on new data increases again. How many passes over the data are
# best? This notebook answers by *dynamical mean-field theory* (DMFT), the limit of many dimensions
# with a proportional number of examples, and by runs of SGD.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The setting
#
# A linear network with noisy labels is the simplest case with this behaviour. The data set has 2 d
# examples. `EpochSGD` passes over it repeatedly, with one example per step and a new order in each
# pass (an *epoch*).

# %%
problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
algorithm = sgd.EpochSGD(lr=0.8, samples_per_dimension=2.0)
start = sgd.start(problem, M=[[0.0]], Q=[[0.1]])
epochs = np.arange(5)
alpha = 2.0 * epochs  # number of examples per dimension

# %% [markdown]
# ## Theory
#
# DMFT follows a typical weight and a typical example, each with its memory. It samples their
# paths, so the result has a standard error.

# %%
theory = sgd.solve_dmft(
    problem, algorithm, start, alpha=alpha, cells=16, paths=4096, replicates=8, progress=False
)
theory

# %% [markdown]
# ## Runs
#
# The same training in 150 dimensions, with 300 examples, on 64 data sets:

# %%
runs = sgd.simulate(
    problem, algorithm, start, alpha=alpha, dimension=150, runs=64, seed=0, progress=False
)
fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, color, label in (("risk", "C0", "new data"), ("train_risk", "C1", "the data set")):
    line, error = theory[name][0], theory[f"{name}_standard_error"][0]
    ax.plot(epochs, line, color=color, label=f"{label}, theory")
    ax.fill_between(epochs, line - 2 * error, line + 2 * error, color=color, alpha=0.25)
    ax.errorbar(
        epochs,
        runs[name].mean("run"),
        runs[name].std("run") / 8,
        fmt="o",
        mfc="white",
        color=color,
        label=f"{label}, runs",
    )
ax.axhline(0.125, color="0.6", ls=":")
ax.set(xlabel="epochs", ylabel="risk", xticks=epochs)
ax.legend(frameon=False)
plt.show()
comparison = sgd.compare(theory, runs)
print(
    "largest difference in standard errors:",
    "below 6" if float(abs(comparison.risk_z).max()) < 6 else "6 or more",
)

# %% [markdown]
# The dotted line is the noise of the labels, the smallest possible risk on new data. On the data
# set the risk falls below this line: the network memorises labels. On new data the risk decreases
# little after the second epoch, and then increases.
#
# ## The worth of a repeated example
#
# In the first epoch each example is new, and worth one fresh example (here up to the sampling
# error). `worth_of_repeats` computes how many *fresh* examples give the same progress as an
# example that is used again:

# %%
worth = sgd.worth_of_repeats(
    problem, algorithm, start, epochs=3, cells=16, paths=4096, replicates=8, progress=False
)
values = worth["worth"].values[0]
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
ax.bar([1, 2, 3], values)
ax.axhline(0, color="k", lw=0.8)
ax.set(xlabel="epoch", ylabel="worth in fresh examples", xticks=[1, 2, 3])
plt.show()
print("worth less every time:", bool(values[0] > values[1] > values[2]))

# %% [markdown]
# A repeated example is worth about a third of a fresh one in the second epoch, and almost nothing
# in the third. With clean labels, or with a smaller learning rate, repeats are worth more. See
# [the value of repeated data](../howto/epochs.md), and [fixed data sets](../howto/fixed_data.md)
# for gradient descent, persistent SGD and Langevin dynamics.
