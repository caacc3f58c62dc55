"""Questions about a problem and an algorithm: exit times, fixed points, landscape."""
