"""The version, where the build, results and users read it."""

__version__ = "0.1.0"
