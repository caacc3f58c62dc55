"""Run the notebooks and store them with their outputs.

docs/notebooks/NAME.py is the source of a notebook, with cells in the format of jupytext, and
NAME.ipynb is stored with its outputs. After a change of a source or of a number, run

    python docs/run_notebooks.py [NAME ...]

`make docs` runs the notebooks too, into output/notebooks. It compares what they print with the
stored notebooks, and builds the pages from that run.
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
TIMEOUT = 600  # seconds per cell, on a busy machine


def notebook(name: str) -> Any:
    """A notebook without outputs, from its source.

    Metadata that jupytext would draw at random or read from this machine are replaced.
    """
    content = jupytext.read(SOURCES / f"{name}.py", fmt="py:percent")
    content.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    )
    for number, cell in enumerate(content.cells):
        cell["id"], cell["metadata"] = f"{name}-{number}", nbformat.from_dict({})
    content.nbformat, content.nbformat_minor = 4, 5
    return content


def missing_torch(name: str) -> bool:
    """Whether a notebook needs PyTorch and PyTorch is not installed."""
    source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    return "import torch\n" in source and importlib.util.find_spec("torch") is None


def run(name: str, folder: Path) -> Any:
    """Run a notebook, and write it with its outputs to a folder.

    A notebook that imports PyTorch is copied as it is stored if PyTorch is not installed.
    """
    from nbclient import NotebookClient

    if missing_torch(name) and folder != SOURCES:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / f"{name}.ipynb", folder / f"{name}.ipynb")
        return nbformat.read(folder / f"{name}.ipynb", as_version=4)
    content = notebook(name)
    NotebookClient(content, timeout=TIMEOUT, kernel_name="python3", record_timing=False).execute()
    content.metadata.pop("language_info", None)  # contains the version of Python
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ipynb").write_text(nbformat.writes(content) + "\n", encoding="utf-8")
    return content


def printed_text(content: Any) -> str:
    """The text that the cells of a notebook print."""
    outputs = [output for cell in content.cells for output in cell.get("outputs", ())]
    return "".join(
        output["text"]
        for output in outputs
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        run(chosen, SOURCES)
        print(f"{chosen}: stored", flush=True)
