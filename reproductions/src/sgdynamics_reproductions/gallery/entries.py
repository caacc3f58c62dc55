"""Entries of the gallery: a judge registers its figure, its content and its claim."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xarray as xr

from sgdynamics_reproductions.gallery.claims import Judgement

Judge = Callable[[xr.Dataset], Judgement]


@dataclass(frozen=True)
class Entry:
    """A figure: its document and function, a line on its content, its claim, and the judge."""

    document: str
    name: str
    line: str
    claim: str
    judge: Judge

    @property
    def number(self) -> str:
        return self.name.removeprefix("figure_")

    @property
    def function(self) -> Callable[..., tuple[Any, xr.Dataset]]:
        return getattr(
            importlib.import_module(f"sgdynamics_reproductions.{self.document}"), self.name
        )

    def claim_of(self, data: xr.Dataset) -> str:
        """The claim in the data, which may be more specific than that of the entry."""
        return str(data.attrs.get("claim", self.claim))

    def verdict(self, data: xr.Dataset) -> str:
        """Verdict with the measured numbers: "reproduced: ...", "differs: ..." or undecided."""
        return self.judge(data).verdict


LISTED: list[Entry] = []


def judge_of(name: str, line: str, claim: str) -> Callable[[Judge], Judge]:
    """Register a figure of the document after which the file of the judge is named."""

    def register(judge: Judge) -> Judge:
        LISTED.append(Entry(judge.__module__.rpartition(".")[2], name, line, claim, judge))
        return judge

    return register
