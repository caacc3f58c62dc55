"""Training algorithms: one-pass SGD, fixed data sets, epochs, updates, conversions from PyTorch."""
