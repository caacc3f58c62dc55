# %% [markdown]
# # Scaling laws
#
# The loss of large networks decreases as a power of the compute. The simplest model with this
# property is a linear network whose inputs have a few directions of large variance and many of
# small variance: the variances follow a power law. All results for this model are exact, in a
# thousand dimensions or in a billion.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## A power law of inputs
#
# Direction j of the inputs has the variance j^-1.2, and its weight in the target is j^-0.3. The
# first thirty of the billion directions are treated one by one, and the others in bins.

# %%
law = sgd.power_law(1.2, 1e9, target=0.3)
problem = sgd.TeacherStudent(width=1, activation="linear", covariance=law)
start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
algorithm = sgd.OnePassSGD(lr=0.5, per="trace")
share = law.eigenvalues[0] / law.trace
print(
    f"{law.dimension:g} directions in {law.blocks} blocks;"
    f" the largest has {share:.0%} of all the variance"
)

# %% [markdown]
# ## The risk after a hundred million steps
#
# `solve_linear` computes the exact mean of SGD after any number of steps, without taking the
# steps:

# %%
steps = np.geomspace(1, 1e8, 33).round()
theory = sgd.solve_linear(problem, algorithm, start, steps=np.unique(steps))
late = theory.isel(time=slice(-12, None))
slope = sgd.fit_exponent(late, y="risk", x="step")
print(f"risk ~ steps^{slope.exponent:.3f}; predicted -(2·0.3 + 1.2 - 1)/1.2 = {-0.8 / 1.2:.3f}")
print(f"error of the bins: {theory.attrs['error_binning']:.1g} of the risk")
theory

# %% [markdown]
# A straight line on both logarithmic axes is a power law. The time is t = lr steps/D, where
# `per="trace"` sets D to the sum of all variances.

# %% [markdown]
# ## Runs of SGD
#
# The exact simulation takes the steps one by one, in the same billion dimensions, for sixty runs
# of a few thousand steps. All save points share these runs, so their differences from the mean are
# correlated:

# %%
measured = np.array([1, 3, 10, 30, 100, 300, 1000, 3000])
runs = sgd.simulate(problem, algorithm, start, steps=measured, runs=60, seed=0)
mean, error = runs.risk.mean("run"), runs.risk.std("run") / 60**0.5
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.loglog(theory.step, theory.risk[0], label="theory: exact mean")
ax.errorbar(measured, mean, error, fmt="o", ms=4, capsize=2, color="C1", label="60 runs of SGD")
ax.loglog(
    theory.step[12:],
    2 * float(theory.risk[0, -1]) * (theory.step[12:] / 1e8) ** (-2 / 3),
    "--",
    color="0.5",
    label="steps$^{-2/3}$",
)
ax.set(xlabel="steps", ylabel="risk", title="$d = 10^9$")
ax.legend(frameon=False)
plt.show()
exact = sgd.solve_linear(problem, algorithm, start, steps=measured).risk[0].values
z = (mean.values - exact) / error.values
print("difference in standard errors:", z.round(1))

# %% [markdown]
# ## The optimal use of compute
#
# Now the size of the network varies: it has `features` random combinations of the inputs. A budget
# of operations can be spent on more features or on more steps. Each budget has an optimal size,
# and the loss at this size is a power of the budget:

# %%
flops = np.geomspace(1e8, 1e12, 9)
fit = sgd.scaling.compute_optimal(0.7, 0.3, flops=flops)
print(f"loss ~ flops^-{fit.eta:.3f}, features ~ flops^{fit.xi:.3f}")
print(
    f"in the limit (phase {fit.predicted.name}): {fit.predicted.eta:.3f} and {fit.predicted.xi:.3f}"
)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.loglog(fit.flops, fit.loss, "o-")
left.set(xlabel="flops", ylabel="smallest loss")
right.loglog(fit.flops, fit.size, "o-", color="C1")
right.set(xlabel="flops", ylabel="features that reach it")
plt.show()

# %% [markdown]
# For nonlinear networks, real data and the seven phases of exponents, see [spectra and scaling
# laws](../howto/scaling_laws.md).
