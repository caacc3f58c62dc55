"""`python -m sgdynamics_reproductions.gallery`: every figure of the documents."""

import sys

from sgdynamics_reproductions.gallery import main

sys.exit(main())
