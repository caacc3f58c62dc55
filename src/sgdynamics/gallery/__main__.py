"""`python -m sgdynamics.gallery`: every figure of the documents."""

import sys

from sgdynamics.gallery import main

sys.exit(main())
