"""The part of a problem or of a user's own dynamics that an algorithm reads."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sgdynamics.base.arrays import Parameters


@runtime_checkable
class Trainable(Protocol):
    """A problem, or a user's own dynamics."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds in the support table."""
        ...

    @property
    def parameters(self) -> Parameters:
        """Values that JAX traces."""
        ...
