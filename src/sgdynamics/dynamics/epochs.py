"""A data set that is used epoch after epoch, as a solver sees it: a step is a batch at finite d, a cell of an epoch at d -> infinity."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import numpy as np

from sgdynamics.dynamics.fields import FixedDataDynamics
from sgdynamics.fixed_data.direct_epochs import DirectEpochs
from sgdynamics.problems.starts import Start
from sgdynamics.simulation.running import Simulator


class EpochDynamics(FixedDataDynamics):
    """A `Problem` under `EpochSGD`. The exact law of runs costs as much as the runs themselves, which are direct for that reason."""

    only_direct: ClassVar[bool] = True
    assumptions: ClassVar[str] = "Gaussian inputs, epochs over a fixed data set"

    def in_steps(self, dimension: int | None, cells: int | None) -> EpochDynamics:
        algorithm, found = self.algorithm, copy(self)
        if cells is None:
            assert dimension is not None
            algorithm.samples(dimension)  # refuses a data set that is too small
            found.algorithm = algorithm.in_steps(
                algorithm.batch / (algorithm.samples_per_dimension * dimension)
            )
        else:
            found.algorithm = algorithm.in_steps(1 / cells)
        return found

    def simulator(
        self,
        method: str,
        initial_state: Start,
        dimension: int,
        sizes: np.ndarray,
        *,
        seed: int = 0,
        **more: Any,
    ) -> Simulator:
        given = (more.get("dtype", "float64"), seed, more.get("shared_data", False))
        return DirectEpochs(
            self.definition, self.algorithm, initial_state, dimension, sizes, *given
        )
