"""Expectations over Gaussian fields: closed forms, series, quadrature, sampling, each with its error estimate."""
