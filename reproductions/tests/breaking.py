"""How a judge is tried: data that it calls reproduced are altered, one claim at a time by a stated
amount, until it must say "differs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import xarray as xr

from sgdynamics_reproductions.gallery.claims import Judgement


class Break(NamedTuple):
    """One claim broken: the judge, its data, the claim (part of its words), by how much, and how."""

    judge: Callable[[xr.Dataset], Judgement]
    data: Callable[[], xr.Dataset]
    claim: str
    amount: str
    alter: Callable[[xr.Dataset], xr.Dataset]

    @property
    def name(self) -> str:
        return f"{self.judge.__name__}: {self.amount}"


def told(found: Judgement) -> str:
    return "\n".join(
        [
            found.words,
            *(
                f"{one.word}: {one.claim}: {one.statistic} ({one.value:.3g}); {one.power}"
                for one in found.findings
            ),
        ]
    )


def breaks(one: Break) -> None:
    """Reproduced before, "differs" after, because of the claim that was broken."""
    whole = one.data()
    before = one.judge(whole)
    assert before.holds is True, told(before)
    after = one.judge(one.alter(whole.copy(deep=True)))
    assert after.holds is False, told(after)
    named = [finding for finding in after.findings if one.claim in finding.claim]
    assert named, f"no claim has {one.claim!r}:\n{told(after)}"
    assert any(finding.holds is False for finding in named), told(after)


def thins(judge: Callable[[xr.Dataset], Judgement], data: xr.Dataset, fewer: xr.Dataset) -> None:
    """Reproduced with the runs there are, not decided with a few of them."""
    assert judge(data).holds is True, told(judge(data))
    found = judge(fewer)
    assert found.holds is None, told(found)
    assert any(
        "would decide" in one.power or "no wrong" in one.power
        for one in found.findings
        if one.holds is None
    ), told(found)


def scaled(name: str, by: Any) -> Callable[[xr.Dataset], xr.Dataset]:
    """One variable multiplied."""
    return lambda data: data.assign({name: data[name] * by})


def moved(name: str, by: Any) -> Callable[[xr.Dataset], xr.Dataset]:
    """Something added to one variable."""
    return lambda data: data.assign({name: data[name] + by})
