"""`python -m sgdynamics.gallery`: every figure of the five documents."""

import sys

from sgdynamics.gallery import main

sys.exit(main())
