"""`python -m sgdynamics`: the command line."""

from sgdynamics.cli import main

main()
