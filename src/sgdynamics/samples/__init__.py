"""Data distributions: inputs and their spectra, tokens, means and named draws."""
