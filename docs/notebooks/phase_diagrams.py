# %% [markdown]
# # Phase diagrams
#
# Does a network learn at a given learning rate and label noise? A run answers for one pair of
# values. This notebook answers for a whole grid by theory, and compares a few points with runs of
# SGD.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## One point
#
# Three units learn a target of two units:

# %%
problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="erf", noise=0.01)
algorithm = sgd.OnePassSGD(lr=1.0)
start = sgd.random_start(problem, dimension=1000, seed=0)
sgd.solve_ode(problem, algorithm, start, times=np.linspace(0, 150, 61))

# %% [markdown]
# The risk decreases fast and then stays on a plateau, where all units have similar overlaps with
# both units of the target. We say that the network *has learned* once its excess risk (the risk
# above the label noise) has decreased by 90%, which is the fast part. `exit_time` computes the
# time:

# %%
point = sgd.exit_time(problem, algorithm, start, threshold=0.9, max_time=150)
print(f"t = {point.mean:.1f}, that is {point.alpha[0]:.1f} examples for each dimension")

# %% [markdown]
# ## A grid
#
# `sweep` computes the exit time at each point of a grid. Points that differ only in parameters are
# solved together, so the 150 points take about as long as a few. Points that have not learned by t
# = 150 are NaN and drawn grey.

# %%
import warnings

rates, noises = np.geomspace(0.25, 16, 15), np.geomspace(0.003, 1, 10)
with warnings.catch_warnings():
    # The sweep warns of points that have not learned, which are expected here.
    warnings.simplefilter("ignore")
    grid = sgd.sweep(
        "exit_time",
        problem=problem,
        algorithm=algorithm,
        start=start,
        over={"algorithm.lr": rates, "problem.noise": noises},
        threshold=0.9,
        max_time=150,
        progress=False,
    )
grid["alpha"] = grid["mean"] / grid["lr"]
grid["alpha"].attrs["long_name"] = "examples / d"
fig, ax = sgd.plot.phase_diagram(grid, x="lr", y="noise", value="alpha")
plt.show()
print("learned at", int(np.isfinite(grid["mean"]).sum()), "of", grid["mean"].size, "points")

# %% [markdown]
# In the coloured phase the network learns, and larger steps need fewer examples, up to a boundary.
# Beyond it SGD converges to an excess risk above the threshold: the noise of SGD grows with the
# product of learning rate and label noise. For clean labels the learning rate alone is too large.
#
# ## Comparison with runs
#
# Exit times of SGD at d = 500 along a row of the diagram, with standard errors over 30 runs:

# %%
row = 4
chosen = rates[[2, 5, 8]]
measured = [
    sgd.exit_time(
        problem.replace(noise=noises[row]),
        sgd.OnePassSGD(lr=lr),
        start,
        threshold=0.9,
        max_time=150,
        method="exact",
        dimension=500,
        runs=30,
        seed=1,
    )
    for lr in chosen
]
values, errors = (
    np.array([getattr(fit, name) for fit in measured]) / chosen
    for name in ("mean", "standard_error")
)
line = grid["alpha"].isel(noise=row).squeeze()
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.loglog(rates, line, label="theory")
ax.errorbar(chosen, values, errors, fmt="o", capsize=3, label="30 runs, d = 500")
ax.set(
    xlabel="learning rate",
    ylabel=r"examples / $d$ until learned",
    title=f"label noise {noises[row]:.2f}",
)
ax.set_xticks([0.3, 1, 3], ["0.3", "1", "3"])
ax.set_yticks([10, 20, 40], ["10", "20", "40"])
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()
for lr, value, error in zip(chosen, values, errors, strict=True):
    print(f"lr {lr:.2f}: theory {float(line.sel(lr=lr)):.2f}, runs {value:.2f} ± {error:.2f}")

# %% [markdown]
# For a grid that takes hours, use `store="folder"`: the sweep can be stopped, and the same call
# continues it. See `sgd.sweep`, and [sweeps on a cluster](../howto/cluster.md).
