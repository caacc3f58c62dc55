"""`cite`: BibTeX of the papers behind results, problems, algorithms and functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.references import REFERENCES, references_of, software_entry
from sgdynamics.results.datasets import read_record
from sgdynamics.version import __version__


def cite(*subjects: object) -> str:
    """Return BibTeX of the library and of the papers behind results, problems and algorithms.

    Parameters
    ----------
    *subjects : xarray.Dataset, Problem, OnePassSGD, Update, callable or str
        Results (of a solver, or of ``sgd.load``), problems, algorithms, updates, public functions
        such as ``sgd.leap_complexity``, or their names.

    Returns
    -------
    str
        BibTeX entries: the library first, then the papers, each once.

    Raises
    ------
    ValueError
        If a subject is none of these.

    Notes
    -----
    A result names the papers behind its solver, its problem (also a covariance with several
    eigenvalues, and the closed or sampled expectations of its loss), its algorithm and its
    optimiser. The page "How to cite" lists all of them.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2, activation="erf")
    >>> algorithm = sgd.OnePassSGD(lr=0.1, update=sgd.updates.adam(4.0))
    >>> entries = sgd.cite(problem, algorithm)
    >>> [line.partition("{")[2] for line in entries.splitlines() if line.startswith("@")]
    ['sgdynamics,', 'saad1995line,', 'goldt2019dynamics,', 'kingma2015adam,', \
'loshchilov2019decoupled,', 'xiao2025exact,']
    """
    keys: dict[str, None] = {}
    for subject in subjects:
        for name in _names(subject):
            keys |= dict.fromkeys(references_of(name))
    entries = [software_entry(__version__), *(REFERENCES[key].bibtex(key) for key in keys)]
    return "\n\n".join(entries)


def _names(subject: Any) -> Iterator[str]:
    """The public names that a subject uses: its solver, problem, algorithm and update."""
    if isinstance(subject, str):
        yield subject.removeprefix("sgd.").removeprefix("sgdynamics.")
    elif isinstance(subject, xr.Dataset):
        for record in ("problem", "algorithm"):
            if record in subject.attrs:
                yield from _names_of_record(read_record(subject, record))
        yield from _names_of_method(str(subject.attrs.get("method", "")))
    elif isinstance(subject, Mapping):
        for result in subject.values():
            yield from _names(result)
    elif callable(getattr(subject, "describe", None)):
        yield from _names_of_record(subject.describe())
    elif callable(subject) and hasattr(subject, "__name__"):
        module = str(getattr(subject, "__module__", ""))
        if module.startswith("sgdynamics.papers."):
            # a module of one paper names it for all its functions
            paper = ".".join(module.split(".")[1:3])
            yield paper
            yield f"{paper}.{subject.__name__}"
        else:
            yield subject.__name__
    else:
        raise checks.reject(
            "subject", subject, "give a result, a problem, an algorithm or a public function"
        )


def _names_of_method(method: str) -> Iterator[str]:
    """The function that made a result; simulations are the exact law of the ODE's problem."""
    yield method.partition(" ")[0]


def _names_of_record(record: object) -> Iterator[str]:
    """The kinds in the record of a problem or an algorithm, also of nested ones."""
    if not isinstance(record, Mapping):
        return
    if isinstance(record.get("kind"), str):
        yield record["kind"]
    if record.get("covariance") is not None:
        yield "covariance"
    # the Gaussian expectations: closed forms of some activations, Sobol points of other losses
    for name in ("activation", "teacher_activation"):
        if isinstance(record.get(name), str):
            yield f"activation {record[name]}"
    if record.get("kind") == "Problem":
        yield "expectation sampled"
    for name in ("update", "of", "problems"):
        value = record.get(name)
        if name == "problems" and isinstance(value, Mapping):
            for problem in value.values():
                yield from _names_of_record(problem)
        else:
            yield from _names_of_record(value)
