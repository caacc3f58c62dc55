"""Effective dynamics of summary statistics and its scaling with the dimension."""
