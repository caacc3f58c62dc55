"""Algorithms that read a data set more than once: conditioning, direct runs, epochs and DMFT."""
