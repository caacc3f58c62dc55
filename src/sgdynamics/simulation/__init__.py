"""Finite dimension: the exact chain in the compressed space, and SGD itself in d dimensions; fresh samples or a fixed data set."""
