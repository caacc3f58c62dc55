# %% [markdown]
# # What is the best possible?
#
# A learning curve says how good a method is. It does not say how good it could be. For Gaussian
# inputs the best possible error on a given number of samples is known exactly. This notebook draws
# it as a *floor* under the curves of stochastic gradient descent (SGD), gradient descent on a fixed
# data set, ridge regression and message passing.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## A curve with its floor
#
# Labels are the erf of one signal plus noise. The student is one erf unit, and one-pass SGD uses
# each sample once.

# %%
problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
start = sgd.start(problem, M=[[0.0]], Q=[[1e-4]])
alpha = np.linspace(0, 20, 41)
curve = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, alpha=alpha)
fig, ax = sgd.plot.risk(curve, x="alpha", floor=True)
plt.show()
floor = sgd.bayes_optimal(problem, alpha[1:])
ratio = curve.excess_risk.values[0, -1] / floor.excess_risk.values[-1]
print(f"excess risk of SGD over the floor at alpha = 20: {ratio:.1f}")

# %% [markdown]
# The dashed line is the least risk that any learner reaches on `alpha` samples per dimension, with
# any amount of computation. `floor=True` computes it with `sgd.bayes_optimal`. With a constant
# learning rate SGD stops at a risk that its own noise keeps above 0; the floor decreases further.
#
# ## A fixed data set
#
# On a fixed data set the floor is a horizontal line. Gradient descent without weight decay passes
# its best point and then fits the noise of the labels:

# %%
linear = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
start = sgd.start(linear, M=[[0.0]], Q=[[1e-4]])
algorithm = sgd.GradientDescent(lr=0.4, samples_per_dimension=1.5)
steps = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 50]
path = sgd.solve_dmft(linear, algorithm, start, steps=steps, paths=4096, progress=False)
path

# %%
fig, ax = sgd.plot.risk(path, excess=False, floor=True, log=False)
ax.axhline(
    sgd.erm(linear, 1.5, weight_decay="best").risk.item(), color="C2", ls=":", label="best ridge"
)
ax.legend(frameon=False)
plt.show()
stopped = float(sgd.early_stopping(path).risk[0])
print(f"best stopping: {stopped:.2f}, floor: {sgd.bayes_optimal(linear, 1.5).risk.item():.2f}")

# %% [markdown]
# For linear labels the best ridge regression is on the floor: no method of any kind is better. The
# best stopping time comes close to it.
#
# ## Classification
#
# For labels +1 and -1 the error is the share of wrong labels. `samples_needed` gives the number of
# samples per dimension that each method needs for an error of 20%:

# %%
sign = sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign())
methods = ["bayes", "amp", "erm", "max_margin", "one_pass", "sgd"]
needed = sgd.samples_needed(sign, risk=0.2, by=methods)
print(needed.to_series().round(2).to_string())

# %% [markdown]
# "bayes" is the floor, and approximate message passing ("amp") reaches it in polynomial time.
# "erm" is ridge regression with the best weight decay, "one_pass" the best of all rules that use
# each sample once, "sgd" one-pass SGD with its best schedule.
#
# ## A hard phase
#
# Fast algorithms do not always reach the floor. In phase retrieval, y = abs(z), the signal is
# determined from one sample per dimension on, and message passing needs 1.128:

# %%
phase = sgd.TeacherStudent(width=1, activation="linear", teacher_activation="abs")
alpha = np.linspace(0.4, 1.3, 37)
optimum = sgd.bayes_optimal(phase, alpha)
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.plot(alpha, optimum.q[:, 0, 0], "k--", label="Bayes-optimal")
ax.plot(alpha, optimum.q_amp[:, 0, 0], label="message passing")
ax.fill_between(alpha, 0, 1, where=optimum.hard, color="0.9", label="hard")
ax.set(xlabel="samples/d", ylabel="overlap with the signal")
ax.legend(frameon=False)
plt.show()
print("hard between 1 and", round(optimum.attrs["spinodals"][0], 3))

# %% [markdown]
# See [What is the best possible?](../howto/statics.md) for runs of message passing, other losses
# and thresholds, and [the equations](../theory.md#statics).
