"""Figures of results and their display in notebooks."""
