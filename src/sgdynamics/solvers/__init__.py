"""The front doors: one signature, one clock and one end for every solver."""
