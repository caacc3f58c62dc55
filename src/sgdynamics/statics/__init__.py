"""Learning without dynamics: Bayes-optimal errors, minimisers of the empirical risk, thresholds."""
