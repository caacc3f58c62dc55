"""The notebooks: docs/notebooks/NAME.py is the source of each (cells as jupytext writes them), NAME.ipynb is stored with its outputs.

    python docs/run_notebooks.py [NAME ...]            runs them and stores what they show: after a change of a source or of a number

`make docs` runs them too, into output/notebooks: what they print is compared with what is stored, and the pages are made of that run.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

SOURCES = Path(__file__).parent / "notebooks"
RUN = Path(__file__).parents[1] / "output/notebooks"
NAMES = sorted(path.stem for path in SOURCES.glob("*.py"))
LIMIT = 600  # seconds for one cell, on a busy machine


def notebook(name: str) -> Any:
    """A notebook without outputs, from its source; what jupytext would make up at random or read off this machine is fixed."""
    found = jupytext.read(SOURCES / f"{name}.py", fmt="py:percent")
    found.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    )
    for number, cell in enumerate(found.cells):
        cell["id"], cell["metadata"] = f"{name}-{number}", nbformat.from_dict({})
    found.nbformat, found.nbformat_minor = 4, 5
    return found


def missing_torch(name: str) -> bool:
    """Whether a notebook needs PyTorch and PyTorch is not installed."""
    source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    return "import torch\n" in source and importlib.util.find_spec("torch") is None


def run(name: str, folder: Path) -> Any:
    """A notebook with its outputs, written to a folder as well.

    A notebook that imports PyTorch is taken as it is stored where PyTorch is not installed.
    """
    from nbclient import NotebookClient

    if missing_torch(name) and folder != SOURCES:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / f"{name}.ipynb", folder / f"{name}.ipynb")
        return nbformat.read(folder / f"{name}.ipynb", as_version=4)
    found = notebook(name)
    NotebookClient(found, timeout=LIMIT, kernel_name="python3", record_timing=False).execute()
    found.metadata.pop("language_info", None)  # has the version of Python that ran it
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ipynb").write_text(nbformat.writes(found) + "\n", encoding="utf-8")
    return found


def printed(found: Any) -> str:
    """What the cells of a notebook print."""
    return "".join(
        one["text"]
        for cell in found.cells
        for one in cell.get("outputs", ())
        if one["output_type"] == "stream" and one["name"] == "stdout"
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        run(chosen, SOURCES)
        print(f"{chosen}: stored", flush=True)
