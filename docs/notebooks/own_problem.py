# %% [markdown]
# # A problem of your own
#
# You have a loss that no paper has treated. If it depends on the inputs only through a few projections, its theory is a
# few lines away: write the loss of *one example* as a function of these projections, and the library makes the
# equations, the exact simulation and the direct one.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The loss of one example
#
# Ours is a classifier that does not trust its labels. The label is the sign of one hidden direction, but it is wrong
# with probability 0.1. The loss is the chance that the network gives to the wrong answer: unlike the logistic loss, it is
# bounded, so that a confident mistake costs no more than 1.
#
# `fields` are the projections of the input on the rows of weights, `signals` those on the hidden directions. `draws`
# are whatever else is random in an example: here whether the label is flipped.


# %%
def loss(fields, signals, head, draws, parameters):
    """One minus the chance that the network gives to the label."""
    label = jnp.tanh(2.0 * signals[0]) * (1.0 - 2.0 * draws["flip"])
    margin = label * fields[0] / parameters["temperature"]
    return 1.0 - 1.0 / (1.0 + jnp.exp(-margin))


problem = sgd.Problem(
    loss, width=1, signals=1, draws={"flip": [0.9, 0.1]}, parameters={"temperature": 1.0}
)

# %% [markdown]
# The sign is a soft one, tanh(2 s), so that everything is smooth. Sharp edges are fine too, if they are named: `kinks=`.
#
# ## Theory
#
# The start: a row of weights of length 1 with a small overlap with the hidden direction.

# %%
algorithm = sgd.OnePassSGD(lr=1.0)
start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
times = np.linspace(0, 30, 31)
theory = sgd.solve_ode(problem, algorithm, start, times=times)
theory

# %% [markdown]
# The overlap M grows and never stops: a classifier that is sure of itself has long weights, and what counts is their
# direction. `error quadrature` says how well the expectations over examples are known, relative to the largest value: the
# library knows nothing of this loss, looked at it, and chose how to integrate it.
#
# ## Runs

# %%
runs = sgd.simulate(problem, algorithm, start, times=times[3::3], dimension=400, runs=100, seed=0)
comparison = sgd.compare(theory, runs)
comparison

# %% [markdown]
# Both agree within a few standard errors at d = 400. As a last check, a run that makes the vectors of 400 numbers,
# draws every input and differentiates the loss, with no theory in it:

# %%
direct = sgd.simulate(
    problem, algorithm, start, times=times[3::3], dimension=400, runs=20, seed=5, method="direct"
)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for result, label in ((theory, "ODE"), (runs, "100 exact runs"), (direct, "20 direct runs")):
    sgd.plot.risk(result, left, log=False, label=label)
    sgd.plot.overlaps(result, right, label=label)
plt.show()
last = {
    name: float(comparison[f"risk_{name}"][-1])
    for name in ("theory", "simulation", "standard_error")
}
print(
    f"risk at the end: theory {last['theory']:.4f}, runs {last['simulation']:.4f} ± {last['standard_error']:.4f}"
)

# %% [markdown]
# ## Other numbers, nothing to compile
#
# `parameters` are numbers that may change: how does the direction that is found depend on the temperature of the loss?

# %%
for temperature in (1.0, 2.0, 4.0):
    other = problem.replace(parameters={"temperature": temperature})
    end = sgd.solve_ode(other, algorithm, start, times=times).isel(run=0, time=-1)
    cosine = float(end.M[0, 0] / end.Q[0, 0] ** 0.5)
    print(f"temperature {temperature}: cosine with the hidden direction {cosine:.3f}")

# %% [markdown]
# To have every claim tested on your own problem, with a paragraph for the appendix: [a
# certificate](../howto/certify.md).
