"""Judges of the figures, one module per document: they test the claims on the data."""
