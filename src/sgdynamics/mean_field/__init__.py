"""The wide limit: units as particles, and the forces between them."""
