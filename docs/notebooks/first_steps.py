# %% [markdown]
# # First steps
#
# A neural network learns from examples, one at a time. How does its error fall, and why does it sometimes stand still
# for a long while before it falls on? In many dimensions there is an exact answer, and this notebook gets it: first
# from theory, without training anything, then from runs of stochastic gradient descent (SGD) itself, and then both side
# by side.

# %%
import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## The question
#
# A *student* with two hidden units learns from a *teacher*, a network of the same kind whose weights it does not know.
# An example is a random input of d numbers with the teacher's answer. The student sees each example once and takes a
# small step along the gradient of its squared error; `lr` is the learning rate.

# %%
problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
algorithm = sgd.OnePassSGD(lr=4.0)
d = 1000
start = sgd.random_start(problem, dimension=d, seed=3)
print("overlaps of the student's units with the teacher's:", start.M[0].round(3).tolist())

# %% [markdown]
# The start is random: the student's weights have nearly nothing in common with the teacher's. How much they do is the
# matrix of *overlaps* M, the inner products of the student's rows of weights with the teacher's. M = 1 for one of them
# and 0 for the other would be perfect.
#
# ## What theory says
#
# As d grows, the overlaps follow an ordinary differential equation. Solving it takes a moment, whatever d is:

# %%
alpha = np.linspace(0, 120, 61)
theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha)
theory

# %% [markdown]
# Displayed in a notebook, a result shows itself: the risk (the mean squared error on new examples, halved), the
# overlaps, and a table of both. Time is counted in t = lr · steps/d; `alpha` is the number of examples for each
# dimension.
#
# Three things happen. At first the risk falls fast: both units learn what the teacher's units have in common. Then it
# stands still. On this *plateau* both units are the same, and nothing tells them which should learn which. At last the
# small difference that they had at the start has grown large enough: they share the work, and the risk falls to zero.
#
# ## What SGD does
#
# `simulate` runs SGD at d = 1000. It never makes vectors of a thousand numbers: a few columns have exactly the same
# law, so that a billion dimensions would cost no more a step.

# %%
runs = sgd.simulate(
    problem, algorithm, start, alpha=np.linspace(0, 120, 13), dimension=d, runs=50, seed=1
)
comparison = sgd.compare(theory, runs)
comparison

# %% [markdown]
# The left picture has the theory as a line and the mean of 50 runs as points with standard errors. The right one says
# by how many standard errors they differ: on the way down to the plateau, hardly. The end of the plateau is another
# matter. When a run leaves it depends on its luck, and the mean over early and late runs is not the curve of a typical
# one:

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.semilogy(runs.alpha, runs.risk.T, color="C0", lw=0.6, alpha=0.5)
ax.semilogy(theory.alpha, theory.risk[0], color="k", lw=2, label="theory, d → ∞")
ax.semilogy([], [], color="C0", label="50 runs, d = 1000")
ax.set(xlabel=r"$\alpha$ = examples / $d$", ylabel="risk")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## When does it leave?
#
# `exit_time` asks theory and runs for the moment at which the risk has fallen by a given share; here by 99%, which is
# below the plateau.

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
# The two agree to a few percent at d = 1000, and the difference shrinks as d grows.
#
# Next: [a whole phase diagram](phase_diagrams.ipynb), or [a problem of your own](own_problem.ipynb).
