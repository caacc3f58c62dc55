"""Simulations at finite dimension.

The exact chain runs in the compressed space (`exact`), direct simulations in d dimensions
(`direct`, `real_data`). Spiked tensors and the dynamics of users have simulators of their own.
`running` drives all of them.
"""
