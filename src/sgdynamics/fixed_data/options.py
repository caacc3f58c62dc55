"""`DMFT`: the numerical options of `solve_dmft`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sgdynamics.base import checks

FORMS = ("auto", "projections", "response")
DTYPES = ("float64", "float32")


@dataclass(frozen=True, repr=False)
class DMFT:
    """Numerical options of ``solve_dmft``: basis of the data, storage precision and memory.

    Parameters
    ----------
    tolerance : float, default 1e-05
        Relative threshold for extending the basis of sample space: a gradient adds a direction only
        if its component orthogonal to the current basis exceeds ``tolerance`` times its norm. The
        gradients of smooth algorithms therefore span few directions; the attribute ``rank`` of the
        result is their number. Values below 1e-6 (1e-3 in float32) are below the rounding error and
        have the same effect as that value.
    rank : int, optional
        Largest number of directions for which memory is reserved. Defaults to the number that the
        steps can add.
    dtype : str, default "float64"
        Storage precision of the path arrays, "float64" or "float32". Single precision halves memory
        and memory traffic; sums are always in float64. The result then has the attribute
        ``error_storage``: the relative change of the training risk against double precision,
        measured on a quarter of the paths and included in the standard errors.
    memory : float, optional
        Limit of memory in gigabytes, above which the solution is rejected before it starts.
        Defaults to 80% of the free memory.
    memory_directions : int, optional
        Largest size of the basis. When the basis reaches it, all directions except those of
        ``keep`` summed gradients are discarded, so that the cost is linear in the number of steps.
        By default no direction is discarded, and the cost is quadratic.
    keep : int, optional
        Number of gradients, summed over bins of steps, that stay in the basis when directions are
        discarded. Defaults to half of ``memory_directions``.
    form : str, default "auto"
        Form of the equations. "projections" conditions on the data in each covariance block, at the
        cost of 1 + blocks. "response" evolves fields, overlaps and response functions, with mean
        derivatives from Stein's formula, at the cost of one block; it is available for ``EpochSGD``
        (except for ``order="fixed"``) and for ``MultiPassSGD`` with a ``batch_fraction`` of at most
        0.5, on centred samples of one input. "auto" selects "response" for four or more blocks if
        the paths are sufficient. The attribute ``form`` of the result contains the selected form.

    Raises
    ------
    ValueError
        If a value is out of range, or if two options exclude each other.

    Notes
    -----
    With ``form="response"`` nothing is discarded and ``tolerance`` is not used, so that ``rank``
    and ``memory_directions`` cannot be set.

    Examples
    --------
    >>> sgd.DMFT(dtype="float32", memory_directions=128)
    DMFT(dtype='float32', memory_directions=128)
    >>> sgd.DMFT(memory_directions=128).replace(keep=32).keep
    32
    """

    tolerance: float = 1e-5
    rank: int | None = None
    dtype: str = "float64"
    memory: float | None = None
    memory_directions: int | None = None
    keep: int | None = None
    form: str = "auto"

    def __post_init__(self) -> None:
        checks.choice("dtype", self.dtype, DTYPES)
        checks.choice("form", self.form, FORMS)
        validated: dict[str, Any] = {
            "tolerance": checks.number("tolerance", self.tolerance, above=0.0)
        }
        if self.memory is not None:
            validated["memory"] = checks.number("memory", self.memory, above=0.0)
        for name in ("rank", "memory_directions", "keep"):
            if getattr(self, name) is not None:
                validated[name] = checks.integer(name, getattr(self, name), 1)
        # Validated values are stored with their plain types; the class is frozen.
        for name, value in validated.items():
            object.__setattr__(self, name, value)
        self._reject_conflicts()

    def _reject_conflicts(self) -> None:
        """Raise ValueError if two options exclude each other."""
        # Bounds that depend on the width are checked by `Memory.from_options`.
        if self.keep is not None and self.memory_directions is None:
            raise checks.reject(
                "keep",
                self.keep,
                "only used together with memory_directions. Set both, or omit keep.",
            )
        if self.rank is not None and self.memory_directions is not None:
            raise checks.reject(
                "rank",
                self.rank,
                "memory_directions limits the number of directions as well. Set one of the two.",
            )
        if self.form != "response":
            return
        for name in ("rank", "memory_directions"):
            if getattr(self, name) is not None:
                raise checks.reject(
                    "form",
                    self.form,
                    f"this form has no basis of directions. Omit {name}, or use "
                    "form='projections'.",
                )

    def describe(self) -> dict[str, Any]:
        """Return the options by name, as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def replace(self, **changes: Any) -> DMFT:
        """Return the same options with some of them changed.

        Parameters
        ----------
        **changes
            New values by name.

        Returns
        -------
        DMFT
            The changed options, validated again.
        """
        return checks.replace_fields(self, changes)

    def __repr__(self) -> str:
        # Only options that differ from their defaults, as users write them
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"DMFT({', '.join(changed)})"
