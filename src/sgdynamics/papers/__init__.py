"""Closed formulas and figures of the documents behind the library, one module each, in the document's own symbols and units."""

from sgdynamics.papers import escaping_mediocrity, quadratic_networks

__all__ = ["escaping_mediocrity", "quadratic_networks"]
