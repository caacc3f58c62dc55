"""Seeded results of every solver, stored: what a change that means to keep every number is held against."""
