"""Argument checks, pytrees, precision, random numbers, progress, files, resource limits and the support table."""
