"""Effective dynamics of summary statistics, for a user's own loss, data and statistics.

`dynamics` has the public function at one point and dimension, `scaling` the one over a list of
dimensions. `task` validates the user's functions, `sampling` evaluates them on random draws, and
`estimates` turns the draws into unbiased estimates with standard errors.
"""
