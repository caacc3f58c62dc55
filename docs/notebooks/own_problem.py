# %% [markdown]
# # A problem of your own
#
# You have a loss that no paper has treated. If it depends on the inputs only through a few
# projections, write the loss of *one example* as a function of these projections. The library
# derives the equations, the exact simulation and the direct simulation from it.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The loss of one example
#
# The example is a classifier that is robust to wrong labels. The label is the sign of the
# projection on a hidden direction, and it is wrong with probability 0.1. The loss is the
# probability that the network assigns to the wrong answer. Unlike the logistic loss it is bounded:
# a confident mistake costs at most 1.
#
# `fields` are the projections of the input on the rows of weights, and `signals` those on the
# hidden directions. `draws` contains the other random variables of an example, here whether the
# label is flipped.


# %%
def loss(fields, signals, head, draws, parameters):
    """One minus the probability that the network assigns to the label."""
    label = jnp.tanh(2.0 * signals[0]) * (1.0 - 2.0 * draws["flip"])
    margin = label * fields[0] / parameters["temperature"]
    return 1.0 - 1.0 / (1.0 + jnp.exp(-margin))


problem = sgd.Problem(
    loss, width=1, signals=1, draws={"flip": [0.9, 0.1]}, parameters={"temperature": 1.0}
)

# %% [markdown]
# The sign is replaced by tanh(2 s), so that the loss is smooth. Losses with kinks are supported
# too, if their positions are declared by `kinks=`.
#
# ## Theory
#
# The start is a row of weights of length 1 with a small overlap with the hidden direction.

# %%
algorithm = sgd.OnePassSGD(lr=1.0)
start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
times = np.linspace(0, 30, 31)
theory = sgd.solve_ode(problem, algorithm, start, times=times)
theory

# %% [markdown]
# The overlap M grows without bound: the weights of a confident classifier are long, and only their
# direction matters. `error quadrature` is the estimated error of the expectations over examples,
# relative to the largest value. The library analyses the loss and chooses the quadrature.
#
# ## Runs

# %%
runs = sgd.simulate(problem, algorithm, start, times=times[3::3], dimension=400, runs=100, seed=0)
comparison = sgd.compare(theory, runs)
comparison

# %% [markdown]
# Theory and runs agree within a few standard errors at d = 400. As a last check, `method="direct"`
# draws inputs of 400 numbers and differentiates the loss, without any theory:

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
    f"risk at the end: theory {last['theory']:.4f},"
    f" runs {last['simulation']:.4f} ± {last['standard_error']:.4f}"
)

# %% [markdown]
# ## Parameters that change without compiling
#
# `parameters` contains numbers that may change without a new compilation. How does the learned
# direction depend on the temperature of the loss?

# %%
for temperature in (1.0, 2.0, 4.0):
    other = problem.replace(parameters={"temperature": temperature})
    end = sgd.solve_ode(other, algorithm, start, times=times).isel(run=0, time=-1)
    cosine = float(end.M[0, 0] / end.Q[0, 0] ** 0.5)
    print(f"temperature {temperature}: cosine with the hidden direction {cosine:.3f}")

# %% [markdown]
# [A certificate](../howto/certify.md) tests all claims on your own problem, and writes a paragraph
# for the appendix of a paper.
