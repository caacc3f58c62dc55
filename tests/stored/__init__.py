"""Stored seeded results of all solvers, with which results after a change are compared."""
