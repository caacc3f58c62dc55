"""Questions about a problem and an algorithm, one file each."""
