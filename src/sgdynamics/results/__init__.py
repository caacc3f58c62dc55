"""Labelled results: datasets, clocks, observables, records of what was solved, files."""
