# %% [markdown]
# # First steps
#
# A neural network learns from examples, one at a time. How does its error decrease, and why does
# it sometimes stay constant for a long time before it decreases further? In high dimensions this
# question has an exact answer. This notebook computes it from theory, without any training, then
# by runs of stochastic gradient descent (SGD), and compares the two.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The question
#
# A *student* with two hidden units learns from a *teacher*, a network of the same kind with
# unknown weights. An example is a random input of d numbers with the teacher's answer. The student
# uses each example once and takes a small step along the gradient of its squared error; `lr` is
# the learning rate.

# %%
problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
algorithm = sgd.OnePassSGD(lr=4.0)
d = 1000
start = sgd.random_start(problem, dimension=d, seed=3)
print("overlaps of the student's units with the teacher's:", start.M[0].round(3).tolist())

# %% [markdown]
# The start is random, so the student's weights are almost orthogonal to the teacher's. The matrix
# of *overlaps* M contains the inner products of the student's rows of weights with the teacher's.
# In a perfect student each row has the overlap 1 with one row of the teacher, and 0 with the
# other.
#
# ## Theory
#
# As d grows, the overlaps follow an ordinary differential equation. The time to solve it does not
# depend on d:

# %%
alpha = np.linspace(0, 120, 61)
theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha)
theory

# %% [markdown]
# A notebook displays a result as figures of the risk (half the mean squared error on new examples)
# and of the overlaps, with a table of both. The time is t = lr · steps/d, and `alpha` is the
# number of examples per dimension.
#
# The curve has three parts. First the risk decreases fast: both units learn what the units of the
# teacher have in common. Then it stays on a *plateau*, where both units are the same and no
# gradient separates them. Finally the small initial difference between the units has grown: each
# unit specialises on one unit of the teacher, and the risk decreases to zero.
#
# ## Simulation
#
# `simulate` runs SGD at d = 1000 without vectors of a thousand numbers: a few columns have exactly
# the same law. The cost of a step does not depend on d, even in a billion dimensions.

# %%
runs = sgd.simulate(
    problem, algorithm, start, alpha=np.linspace(0, 120, 13), dimension=d, runs=50, seed=1
)
comparison = sgd.compare(theory, runs)
comparison

# %% [markdown]
# The left figure shows the theory as a line, and the mean of 50 runs as points with standard
# errors. The right figure shows the difference in standard errors. Before the plateau the two
# agree. At the end of the plateau they differ, because each run leaves it at a random time, and
# the mean over early and late runs is not the curve of a typical run:

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.semilogy(runs.alpha, runs.risk.T, color="C0", lw=0.6, alpha=0.5)
ax.semilogy(theory.alpha, theory.risk[0], color="k", lw=2, label="theory, d → ∞")
ax.semilogy([], [], color="C0", label="50 runs, d = 1000")
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="risk")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Exit times
#
# `exit_time` computes the time at which the risk has decreased by a given fraction, in theory and
# in runs. Here the fraction is 99%, which is below the plateau.

# %%
options = {"threshold": 0.99, "max_time": 700}
in_theory = sgd.exit_time(problem, algorithm, start, **options)
measured = sgd.exit_time(
    problem, algorithm, start, method="exact", dimension=d, runs=50, seed=1, **options
)
print(f"theory:  alpha = {in_theory.alpha[0]:.0f}")
print(
    f"50 runs: alpha = {measured.alpha.mean():.0f} ± {measured.standard_error / algorithm.lr:.1f}"
)
print(f"the first left at {measured.alpha.min():.0f}, the last at {measured.alpha.max():.0f}")

# %% [markdown]
# Theory and runs agree to a few percent at d = 1000, and the difference decreases as d grows.
#
# Next: [phase diagrams](phase_diagrams.ipynb), or [a problem of your own](own_problem.ipynb).
