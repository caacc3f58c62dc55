"""Helpers that break the claims of a judge.

Data that a judge calls reproduced are altered, one claim at a time by a stated amount, so that the
verdict must become "differs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import xarray as xr

from sgdynamics_reproductions.gallery.claims import Judgement


class Break(NamedTuple):
    """A change of the data that breaks one claim of a judge."""

    judge: Callable[[xr.Dataset], Judgement]
    data: Callable[[], xr.Dataset]
    claim: str  # part of the text of the claim
    amount: str  # description of the change
    alter: Callable[[xr.Dataset], xr.Dataset]

    @property
    def name(self) -> str:
        return f"{self.judge.__name__}: {self.amount}"


def describe(judgement: Judgement) -> str:
    """Describe a judgement with all its findings, for the messages of failing tests."""
    lines = [
        f"{finding.word}: {finding.claim}: {finding.statistic} ({finding.value:.3g});"
        f" {finding.power}"
        for finding in judgement.findings
    ]
    return "\n".join([judgement.words, *lines])


def check_break(case: Break) -> None:
    """Check for "reproduced" before and "differs" after the change, because of the broken claim."""
    data = case.data()
    before = case.judge(data)
    assert before.holds is True, describe(before)
    after = case.judge(case.alter(data.copy(deep=True)))
    assert after.holds is False, describe(after)
    broken = [finding for finding in after.findings if case.claim in finding.claim]
    assert broken, f"no claim contains {case.claim!r}:\n{describe(after)}"
    assert any(finding.holds is False for finding in broken), describe(after)


def check_few_runs(
    judge: Callable[[xr.Dataset], Judgement], data: xr.Dataset, few: xr.Dataset
) -> None:
    """Check that data are reproduced with all runs, and not decided with a few of them."""
    assert judge(data).holds is True, describe(judge(data))
    judgement = judge(few)
    assert judgement.holds is None, describe(judgement)
    undecided = [finding.power for finding in judgement.findings if finding.holds is None]
    assert any("would decide" in power or "no error would" in power for power in undecided), (
        describe(judgement)
    )


def scale(name: str, factor: Any) -> Callable[[xr.Dataset], xr.Dataset]:
    """A change that multiplies one variable."""
    return lambda data: data.assign({name: data[name] * factor})


def shift(name: str, amount: Any) -> Callable[[xr.Dataset], xr.Dataset]:
    """A change that adds an amount to one variable."""
    return lambda data: data.assign({name: data[name] + amount})
