"""How it is learned: one file a family of algorithms, updates, and numbers that change in time."""
