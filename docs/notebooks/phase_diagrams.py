# %% [markdown]
# # Phase diagrams
#
# Does a network learn at this learning rate, with labels this noisy? One run answers for one pair of numbers. This
# notebook answers for all of them at once, by theory, and then checks a few points with runs of SGD.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## One point
#
# Three units learn a target made of two:

# %%
problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="erf", noise=0.01)
algorithm = sgd.OnePassSGD(lr=1.0)
start = sgd.random_start(problem, dimension=1000, seed=0)
sgd.solve_ode(problem, algorithm, start, times=np.linspace(0, 150, 61))

# %% [markdown]
# The risk falls fast, and then rests on a plateau where all units do the same: their overlaps with both units of the
# target stay close. We say that the network *has learned* once its excess risk, what is above the noise of the labels,
# has fallen by 90%: the fast part. `exit_time` finds when:

# %%
point = sgd.exit_time(problem, algorithm, start, threshold=0.9, max_time=150)
print(f"t = {point.mean:.1f}, that is {point.alpha[0]:.1f} examples for each dimension")

# %% [markdown]
# ## A grid
#
# `sweep` asks the same question at every point of a grid. Points that differ in numbers only are solved together: the
# 150 here take about as long as a few. A point that has not learned by t = 150 is NaN, and is drawn grey.

# %%
import warnings

rates, noises = np.geomspace(0.25, 16, 15), np.geomspace(0.003, 1, 10)
with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # it says that some points have not learned, which is what we want to see
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
# In the coloured phase the network learns, and larger steps need fewer examples, up to a border. Beyond it SGD settles
# above the mark: its own noise keeps it there, and grows with the product of the learning rate and the noise of the
# labels. Where labels are clean, the rate alone becomes too large.
#
# ## Do runs agree?
#
# Along one row of the diagram, exit times of SGD at d = 500, with standard errors over 30 runs:

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
# For a grid that takes hours give `store="folder"`: it can be stopped, and the same call continues from there. See
# `sgd.sweep`, and [on a cluster](../howto/cluster.md).
