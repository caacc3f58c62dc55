"""Problem x algorithm as a solver sees it: the mean step, one step, observables; and the table of what is supported."""
