"""`python -m sgdynamics`: the command line."""

from sgdynamics.cli.main import main

main()
