"""What happens as d grows."""
