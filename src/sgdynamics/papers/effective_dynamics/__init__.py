"""High-dimensional limit theorems for SGD (Ben Arous, Gheissari, Jagannath 2022).

Closed formulas for spiked tensors and Gaussian mixtures in the symbols and units of the paper: step
size c/n, time t = steps c/n, weight decay alpha, signal-to-noise ratio lambda.
"""

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
from sgdynamics.papers.effective_dynamics.outcomes import escape_rate, outcome
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
    "measured_success",
    "mixture_components",
    "optimum",
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
