"""What the gallery lists: a judge says by `judge_of` which figure it judges, what that shows and
what the document claims of it.
"""

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
    """A figure: where its function is, one line of what it shows, what the document claims, and the
    judge of that.
    """

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

    def claimed(self, data: xr.Dataset) -> str:
        return str(data.attrs.get("claim", self.claim))

    def verdict(self, data: xr.Dataset) -> str:
        """ "reproduced: ...", "differs: ..." or "not decided at this size: ...", with the numbers
        measured.
        """
        return self.judge(data).verdict


LISTED: list[Entry] = []


def judge_of(name: str, line: str, claim: str) -> Callable[[Judge], Judge]:
    """Lists a figure of the document that the judge's file is named after."""

    def listed(judge: Judge) -> Judge:
        LISTED.append(Entry(judge.__module__.rpartition(".")[2], name, line, claim, judge))
        return judge

    return listed
