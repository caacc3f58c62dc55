"""A problem under an algorithm, as the solvers see it; the user's own dynamics."""
