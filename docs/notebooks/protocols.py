# %% [markdown]
# # Protocols
#
# How should the learning rate change while a network learns? When should an old task be practised again? A *protocol*
# is any number of the training as a function of time, and theory can find the best one: the gradient of the final risk
# goes through the differential equations. Runs of SGD then tell whether the gain is real.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The best learning rate
#
# One unit learns from noisy labels, from 8 d examples in all. Large steps learn fast; small ones average the noise
# away.

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
# ## Is it true?
#
# `confirm` runs SGD itself, with the protocol and with the best constant, on the same random numbers:

# %%
confirmation = best.confirm(dimension=500, runs=100)
print(
    f"gain in theory {best.gain:.3f}, of SGD at d = 500: {confirmation.gain:.3f} ± {confirmation.gain_error:.3f}"
)

# %% [markdown]
# and the whole course of the risk:

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
    (drawn,) = ax.semilogy(alpha, line.excess_risk[0], label=f"{name}, theory")
    ax.errorbar(
        alpha[::4], mean, error, fmt="o", ms=4, color=drawn.get_color(), label=f"{name}, runs"
    )
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="excess risk")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Such points hide small differences. `compare` gives them in standard errors of the runs, here for the protocol:

# %%
sgd.compare(line, runs)

# %% [markdown]
# ## Two tasks, one after the other
#
# `contexts` are several tasks of which an example draws one; here each has a head of its own on common weights.
# `phases` trains the one, then the other, and the result has the risk of both all along:

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
    print(
        f"share {share:.1f}: risk of the old task at the end {float(result.context_risk.sel(context='old')[0, -1]):.4f}"
    )
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# Without replay the old task is forgotten; a fifth of the examples keeps most of it. The best share as a function
# of time is one more `optimal_protocol`: [numbers that change, tasks and phases](../howto/controls.md).
