"""The deterministic limit: drift of the order parameters, integrators, updates."""
