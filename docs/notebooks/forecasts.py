# %% [markdown]
# # Forecasting a training run
#
# Two training runs of a language model have been measured: one at a constant learning rate, and
# one with a cosine. After this notebook you can predict the loss of other schedules and of longer
# runs from such curves, with error bands, compare the prediction with measured runs, and find the
# schedule with the lowest predicted final loss. The model behind it is the theory of SGD on
# power-law spectra; the last section shows the connection.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import sgdynamics as sgd

# %load_ext sgdynamics

# %% [markdown]
# ## Nine runs of one model
#
# A file of the repository contains the losses of nine runs of a model with 124 million parameters
# at learning rates of up to 0.001 (F. Schaipp et al., ICML 2025; MIT licence). The schedules
# are in `sgd.schedules`: constant, cosine, and WSD, which is constant and then falls linearly, here
# over the last 20% to 80% of the run.

# %%
folders = [folder / "examples/loss_curves" for folder in (Path.cwd(), *Path.cwd().parents)]
loss_curves = next(folder for folder in folders if folder.is_dir())
table = pd.read_csv(loss_curves / "124M_lr0.001.csv")
runs = {name: rows.drop(columns="run") for name, rows in table.groupby("run", sort=False)}

peak, warmup = 1e-3, 300
schedules = {
    "const_T50000": sgd.schedules.constant(peak, 50000, warmup=warmup),
    "cos0_T25000": sgd.schedules.cosine(peak, 25000, warmup=warmup),
    "wsd0.2_T25000": sgd.schedules.wsd(peak, 25000, warmup=warmup, decay=0.2),
    "wsd0.4_T15000": sgd.schedules.wsd(peak, 15000, warmup=warmup, decay=0.4),
    "wsd0.6_T15000": sgd.schedules.wsd(peak, 15000, warmup=warmup, decay=0.6),
    "wsd0.8_T25000": sgd.schedules.wsd(peak, 25000, warmup=warmup, decay=0.8),
    "cos10_T25000": sgd.schedules.cosine(peak, 25000, warmup=warmup, final=0.1),
    "wsd0.8_T50000": sgd.schedules.wsd(peak, 50000, warmup=warmup, decay=0.8),
    "cos0_T50000": sgd.schedules.cosine(peak, 50000, warmup=warmup),
}
for name, run in runs.items():
    first, last = run.iloc[0], run.iloc[-1]
    print(f"{name:14} steps {first.step:5.0f} to {last.step:.0f}, last loss {last.loss:.3f}")

# %% [markdown]
# One run starts at step 20000: it was resumed from a checkpoint of the constant run. Its rows do
# not contain the learning rate before that step; its schedule does.
#
# ## The fit
#
# Two curves are fitted: the constant run up to step 25000, and the cosine of 25000 steps.

# %%
constant, cosine = runs["const_T50000"], runs["cos0_T25000"]
two_runs = pd.concat(
    [constant[constant.step <= 25000].assign(run="constant"), cosine.assign(run="cosine")]
)
two_schedules = [schedules["const_T50000"], schedules["cos0_T25000"]]
fit = sgd.forecast(two_runs, schedule=two_schedules, warn=False)
fit

# %% [markdown]
# The exponent q is 1 for plain SGD; it is an empirical correction for optimisers such as Adam. The
# warning matters. Without a fast decay, the data hardly determine how fast the noise of SGD is
# forgotten. The fit then relies on typical values, which were chosen on collections of runs that
# include the present ones. The following test is therefore not blind.
#
# ## Runs of 50000 steps, predicted
#
# The three runs of 50000 steps are twice as long as the fitted curves. Only their schedules enter
# the prediction. The lower row shows the difference of measured and predicted losses:

# %%
longer = {
    "const_T50000": "constant",
    "cos0_T50000": "cosine to 0",
    "wsd0.8_T50000": "WSD, decay over 80%",
}
fig, axes = plt.subplots(
    2, 3, figsize=(9, 5), sharex=True, sharey="row", height_ratios=[3, 2], layout="constrained"
)
for (upper, lower), (name, title) in zip(axes.T, longer.items(), strict=True):
    run = runs[name][runs[name].step >= 3000]
    prediction = fit.predict(schedules[name], run.step)
    band = {"alpha": 0.3, "lw": 0, "label": "90% band"}
    upper.fill_between(run.step, prediction.lower, prediction.upper, **band)
    upper.plot(run.step, prediction.loss, label="prediction")
    lower.fill_between(
        run.step, prediction.lower - prediction.loss, prediction.upper - prediction.loss, **band
    )
    lower.axhline(0)
    is_fitted = (run.step <= 25000) & (name == "const_T50000")
    for chosen, colour, label in ((is_fitted, "0.6", "fitted"), (~is_fitted, "k", "not fitted")):
        if chosen.any():
            style = {"marker": ".", "ls": "", "ms": 3, "color": colour, "label": label}
            upper.plot(run.step[chosen], run.loss[chosen], **style)
            lower.plot(run.step[chosen], (run.loss - prediction.loss.values)[chosen], **style)
    upper.set(title=title, ylim=(2.87, 3.45), xticks=[0, 20000, 40000])
    upper.legend(frameon=False)
    lower.set(xlabel="step", ylim=(-0.035, 0.035))
axes[0, 0].set_ylabel("loss")
axes[1, 0].set_ylabel("measured - predicted")
plt.show()

# %% [markdown]
# ## Errors and coverage
#
# The table compares the prediction of each run with its measured points that were not fitted: those
# after the first 6% of the run, of the constant run those after step 25000, and of the resumed run
# its own. The last column is the share of points in the 90% band.


# %%
def errors_of(fit, names):
    """Errors of the predicted losses on the points of these runs that were not fitted."""
    rows = {}
    for name in names:
        run, schedule = runs[name], schedules[name]
        first = 25000 if name == "const_T50000" else 0.06 * run.step.max()
        points = run[run.step > first]
        prediction = fit.predict(schedule, points.step)
        error = prediction.loss.values - points.loss.values
        half_width = (prediction.upper.values - prediction.lower.values) / 2
        is_inside = (points.loss >= prediction.lower.values) & (
            points.loss <= prediction.upper.values
        )
        rows[name] = {
            "mean error": np.abs(error).mean(),
            "final error": error[-1],
            "final band": half_width[-1],
            "in band": is_inside.mean(),
        }
    return pd.DataFrame(rows).T


others = [name for name in runs if name != "cos0_T25000"]
errors = errors_of(fit, others)
print(errors.round({"mean error": 4, "final error": 4, "final band": 3, "in band": 2}).to_string())
print(f"mean over the runs: {errors['mean error'].mean():.4f}")

# %% [markdown]
# "mean error" is the mean absolute error, "final error" the predicted minus the measured loss at
# the last point, and "final band" half the width of the band there. Two runs of one schedule differ
# by 0.001 to 0.004; the larger errors here are errors of the model. A band combines this
# difference, the uncertainty of the parameters, and the disagreement of four models. Here the bands
# contain more than their nominal share of points, but these points are not independent: as the
# figure shows, the error of a run changes slowly.
#
# ## Models compared
#
# `model=` selects a rival of the theory: `theory6` is the theory of plain SGD, q = 1; `multi_power`
# is the law of Luo et al. (ICLR 2025), and `annealing` that of Tissue et al. (2024). All are fitted
# to the same two curves and predict the same points:

# %%
models = ["theory", "theory6", "multi_power", "annealing"]
rows = {}
for model in models:
    rival = sgd.forecast(two_runs, schedule=two_schedules, model=model, warn=False)
    rival_errors = errors_of(rival, others)
    rows[model] = {"fitted": rival.residual, "predicted": rival_errors["mean error"].mean()}
print(pd.DataFrame(rows).T.round(4).to_string())

# %% [markdown]
# The multi-power law fits both curves best and predicts the others worst: a good fit is no evidence
# for a prediction. `compare()` needs no further runs, because it leaves out each measured curve in
# turn (`left_out`). Of two curves it would leave a single one for the fit, which is too few. With
# all nine:

# %%
all_runs = sgd.forecast(
    list(runs.values()), schedule=[schedules[name] for name in runs], warn=False
)
print(all_runs.compare().to_dataframe().round(4).to_string())

# %% [markdown]
# ## The best schedule
#
# `optimal_schedule` finds the schedule with the lowest predicted final loss for a given peak and
# number of steps. More runs narrow the band of its gain over a cosine:

# %%
for title, predictor in (("two runs", fit), ("all runs", all_runs)):
    best = predictor.optimal_schedule(50000, warmup=warmup)
    print(
        f"from {title}: final loss {best.loss:.3f}, gain over a cosine {best.gain:.3f},"
        f" band {best.gain_lower:.3f} to {best.gain_upper:.3f}"
    )
print(f"the decay starts at {100 * best.decay_start:.0f}% of the run")

# %%
candidates = {
    "best": best.schedule,
    "WSD, decay over 80%": schedules["wsd0.8_T50000"],
    "cosine to 0": schedules["cos0_T50000"],
}
measured_runs = {"WSD, decay over 80%": "wsd0.8_T50000", "cosine to 0": "cos0_T50000"}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for index, (title, schedule) in enumerate(candidates.items()):
    prediction = all_runs.predict(schedule, np.linspace(50, 50000, 1000))
    left.plot(prediction.step, 1e3 * prediction.lr, color=f"C{index}")
    right.plot(prediction.step, prediction.loss, color=f"C{index}", label=title)
    if title in measured_runs:
        run = runs[measured_runs[title]]
        right.plot(run.step, run.loss, ".", ms=2, color=f"C{index}")
left.set(xlabel="step", ylabel="learning rate / 0.001")
right.set(xlabel="step", ylabel="loss", xlim=(20000, 50500), ylim=(2.88, 3.19))
right.set_title("model (lines) and measured runs (points)", fontsize=10)
right.legend(frameon=False)
plt.show()

# %% [markdown]
# No run has the best schedule, so that its gain is not tested here. Predicted gains are optimistic:
# for other models, WSD was predicted to gain 0.036 to 0.041 over a cosine, and gained 0.017 to
# 0.028. A gain that can be tested here is that of WSD with a decay over 80% of the run:

# %%
for title, predictor in (("two runs", fit), ("all runs", all_runs)):
    ends = [
        predictor.predict(schedules[name], [49800.0]).loss.item()
        for name in ("cos0_T50000", "wsd0.8_T50000")
    ]
    print(f"gain of WSD over a cosine, predicted from {title}: {ends[0] - ends[1]:.3f}")
ends = [runs[name].loss.iloc[-1] for name in ("cos0_T50000", "wsd0.8_T50000")]
print(f"measured: {ends[0] - ends[1]:.3f}")

# %% [markdown]
# The order of the two schedules is predicted. The gain is predicted too small by 0.005, which is
# not much more than the difference between two runs of one schedule.
#
# ## One cosine alone
#
# If only the cosine of 25000 steps has been measured, the forecast of the longer runs is:

# %%
single = sgd.forecast(cosine, schedule=schedules["cos0_T25000"], warn=False)
names = ["const_T50000", "cos0_T50000", "wsd0.8_T50000"]
errors = errors_of(single, names)
print(errors.round({"mean error": 4, "final error": 4, "final band": 2, "in band": 2}).to_string())

# %% [markdown]
# In this case the longer cosine and WSD are predicted as well as from two runs, and the constant
# run worse. The bands are about ten times as wide, because one cosine does not separate signal and
# noise: typical values of the parameters decide, and the models disagree. A second run need not be
# long: a short decay from a checkpoint is enough.
#
# ## From theory to forecast
#
# The forecast is derived from the mean risk of SGD on a linear student whose inputs have a
# power-law spectrum, which `solve_linear` computes exactly. In this last section the data come from
# there: curves of a constant rate, a cosine and WSD with a fast decay, under strong label noise.
# Solvers count the length of a schedule in samples per dimension, `alpha=`, and forecasts count it
# in steps.

# %%
law = sgd.power_law(1.5, 1e5, target=0.0)
problem = sgd.TeacherStudent(width=1, activation="linear", noise=4.0, covariance=law)
start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
steps = np.linspace(100, 10000, 100).round()
length = steps[-1] / law.dimension


def risk_of(schedule):
    """The exact mean risk under this learning rate."""
    algorithm = sgd.OnePassSGD(lr=schedule, per="trace")
    return sgd.solve_linear(problem, algorithm, start, steps=steps)


def loss_curve(schedule):
    """Steps, learning rates and losses, as a training run would record them."""
    rates = [float(schedule(alpha)) for alpha in steps / law.dimension]
    return pd.DataFrame({"step": steps, "lr": rates, "loss": risk_of(schedule).risk.values[0]})


measured = {
    "constant": sgd.schedules.constant(0.05, alpha=length),
    "cosine": sgd.schedules.cosine(0.05, alpha=length, final=0.1),
    "WSD, decay over 10%": sgd.schedules.wsd(0.05, alpha=length, decay=0.1, final=0.1),
}
curves = pd.concat([loss_curve(schedule).assign(run=name) for name, schedule in measured.items()])
student = sgd.forecast(curves, warn=False)
parameters = student.parameters
print(f"floor {parameters['floor']:.2f}, exact {problem.noise / 2:.2f}")
print(f"alpha {parameters['alpha']:.2f}, exact {(1.5 - 1) / 1.5:.2f}")
print(f"beta  {parameters['beta']:.2f}, exact {1 - 1 / 1.5:.2f}")
print(f"q     {parameters['q']:.2f}, plain SGD 1")

# %% [markdown]
# The fit has no information about spectrum and noise. It finds the noise floor, the exponent alpha
# of the signal, and q = 1. It does not find beta, the exponent of forgetting: curves of this length
# determine it weakly, and the fit prefers its typical value for language models, 0.6. The forecast
# of a schedule with a long decay is precise nevertheless. The multi-power law is as precise here,
# and the annealing law is not:

# %%
schedule = sgd.schedules.wsd(0.05, alpha=length, decay=0.5)
theory = risk_of(schedule)
exact = loss_curve(schedule)
late = exact[exact.step > 600]
for model in models:
    rival = sgd.forecast(curves, model=model, warn=False)
    prediction = rival.predict((exact.step, exact.lr), late.step)
    error = np.abs(prediction.loss.values - late.loss)
    share = (error / (late.loss - problem.noise / 2)).max()
    print(
        f"{model:12} largest error {(error / late.loss).max():.2%} of the loss,"
        f" {share:.1%} of the loss above the noise floor"
    )

# %%
fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
student.plot(student.predict((exact.step, exact.lr), late.step), ax=ax)
ax.plot(late.step, late.loss, "k.", ms=3, label="WSD, decay over 50%, not fitted")
ax.legend(frameon=False, fontsize=8)
plt.show()
theory

# %% [markdown]
# [The theory page](../theory.md#forecasts) derives the model of the forecast from this recursion;
# [forecasts of training runs](../howto/forecast.md) describes data, bands, accuracy and limits.
