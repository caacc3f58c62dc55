"""Optimal protocols: controls as functions of alpha, optimised by gradients through the dynamics.

`optimise` has the public function, `schedules` its special case of one learning rate. The ODE as a
differentiable function of the controls is in `program`, the search in `search`. The learning rate
of linear students on a spectrum follows the exact mean of SGD instead (`linear`, `linear_rates`,
`linear_recursion`). `confirm` measures a gain in simulations.
"""
