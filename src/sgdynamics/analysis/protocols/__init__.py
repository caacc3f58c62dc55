"""Optimal protocols: controls as functions of alpha, found by gradient descent through the ODE."""
