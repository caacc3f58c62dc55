# %% [markdown]
# # Protocols
#
# How should the learning rate change during the training? When should an old task be practised
# again? A *protocol* is a hyperparameter as a function of time. Theory finds the optimal protocol
# by differentiating the final risk through the differential equations, and runs of SGD confirm the
# gain.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The optimal learning rate
#
# One unit learns from 8 d examples with noisy labels. Large steps learn fast; small steps average
# over the noise.

# %%
problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.2)
start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
best = sgd.optimal_protocol(
    problem,
    sgd.OnePassSGD(lr=1.0),
    start,
    alpha=8.0,
    controls={"lr": (0.0, 6.0)},
    pieces=20,
    progress=False,
)
print(f"best constant rate {best.constant['lr']:.2f}: excess risk {best.constant['risk']:.4f}")
print(f"best protocol: {best.value:.4f}, {best.gain:.2f} times less")
fig, axes = sgd.plot.protocol(best)
plt.show()

# %% [markdown]
# ## Confirmation by runs
#
# `confirm` runs SGD with the protocol and with the best constant rate, on the same random numbers:

# %%
confirmation = best.confirm(dimension=500, runs=100)
print(
    f"gain in theory {best.gain:.3f},"
    f" of SGD at d = 500: {confirmation.gain:.3f} ± {confirmation.gain_error:.3f}"
)

# %% [markdown]
# The risk as a function of the number of examples:

# %%
alpha = np.linspace(0, 8, 33)
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, algorithm in (
    ("constant", sgd.OnePassSGD(lr=best.constant["lr"])),
    ("protocol", best.algorithm),
):
    line = sgd.solve_ode(problem, algorithm, start, alpha=alpha)
    runs = sgd.simulate(
        problem, algorithm, start, alpha=alpha[::4], dimension=500, runs=100, seed=1
    )
    mean, error = runs.excess_risk.mean("run"), runs.excess_risk.std("run") / 10
    (curve,) = ax.semilogy(alpha, line.excess_risk[0], label=f"{name}, theory")
    ax.errorbar(
        alpha[::4], mean, error, fmt="o", ms=4, color=curve.get_color(), label=f"{name}, runs"
    )
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="excess risk")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The figure hides small differences. `compare` shows them in standard errors of the runs, here for
# the protocol:

# %%
sgd.compare(line, runs)

# %% [markdown]
# ## Two tasks, one after the other
#
# `contexts` combines several tasks, and each example belongs to one of them; here each task has a
# head of its own on shared weights. `phases` trains the first task and then the second, and the
# result contains the risks of both:

# %%
task = sgd.TeacherStudent(
    width=2, teacher_width=2, activation="erf", head="trained", teacher_head=[2.0, 0.0]
)
tasks = sgd.contexts({"old": task, "new": task.replace(teacher_head=[0.0, 2.0])}, heads="own")
initial = sgd.start(tasks, M=[[0.3, 0.1], [0.1, 0.3]], Q=np.eye(2), a=[[1.0, 0.5], [0.5, 1.0]])
rate, grid = sgd.OnePassSGD(lr=2.0), np.linspace(0, 15, 31)
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained", sharey=True)
for ax, share in zip(axes, (0.0, 0.2), strict=True):
    phases = [
        (tasks.replace(probabilities=[1.0, 0.0]), rate, grid),
        (tasks.replace(probabilities=[share, 1 - share]), rate, grid[1:]),
    ]
    result = sgd.phases(sgd.solve_ode, phases, initial)
    for name in ("old", "new"):
        ax.semilogy(result.alpha, result.context_risk.sel(context=name)[0], label=f"{name} task")
    ax.axvline(15, color="0.6", ls=":")
    title = "no replay" if share == 0 else f"{share:.0%} of the old task"
    ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="risk of the task", title=title)
    old_risk = float(result.context_risk.sel(context="old")[0, -1])
    print(f"share {share:.1f}: risk of the old task at the end {old_risk:.4f}")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# Without replay the network forgets the old task; with a fifth of the examples from the old task
# it keeps most of it. `optimal_protocol` also finds the best fraction as a function of time: see
# [schedules, tasks and phases](../howto/controls.md).
