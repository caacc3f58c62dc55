"""High-dimensional limit theorems for SGD (Ben Arous, Gheissari, Jagannath 2022): effective dynamics, spiked tensors, Gaussian mixtures.

In the paper's symbols and units: step size c/n, time t = steps c/n, weight decay alpha, snr lambda.
"""

from sgdynamics.papers.effective_dynamics.mixture_figures import (
    escape_rate,
    figure_2,
    figure_3,
    order_of_limits,
    outcome,
)
from sgdynamics.papers.effective_dynamics.mixtures import (
    MeasuredSuccess,
    MixtureComponent,
    active_types_probability,
    arc_paths,
    arc_variance,
    measured_success,
    mixture_components,
    optimum,
    rescaled_diffusion,
    ring_radius,
    success_probability,
)
from sgdynamics.papers.effective_dynamics.spiked_figures import figure_1
from sgdynamics.papers.effective_dynamics.spiked_formulas import (
    barrier,
    correlated_fixed_points,
    critical_snr,
    eigenvalues,
    rescaled_drift,
    rescaled_noise,
    rescaled_paths,
    saddle_variance,
    stationary_variance,
)

__all__ = [
    "MeasuredSuccess",
    "MixtureComponent",
    "active_types_probability",
    "arc_paths",
    "arc_variance",
    "barrier",
    "correlated_fixed_points",
    "critical_snr",
    "eigenvalues",
    "escape_rate",
    "figure_1",
    "figure_2",
    "figure_3",
    "measured_success",
    "mixture_components",
    "optimum",
    "order_of_limits",
    "outcome",
    "rescaled_diffusion",
    "rescaled_drift",
    "rescaled_noise",
    "rescaled_paths",
    "ring_radius",
    "saddle_variance",
    "stationary_variance",
    "success_probability",
]
