"""The public solve functions and `simulate`, with shared validation, clock and results."""
