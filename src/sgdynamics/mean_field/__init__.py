"""The limit of wide networks: units as particles, and the forces between them."""
