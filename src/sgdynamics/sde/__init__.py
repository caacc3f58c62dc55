"""The diffusive limit: covariance of one increment and the integration scheme."""
