"""Argument checks, arrays and pytrees, precision, random numbers, progress, files and limits."""
