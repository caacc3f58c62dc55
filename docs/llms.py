"""Write docs/llms.txt, an index of the pages for language models: python docs/llms.py.

The build copies the file to the root of the pages, where such tools look for it (llmstxt.org).
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent
FILE = DOCS / "llms.txt"
TOCTREE = re.compile(r"```\{toctree\}\n(?P<body>.*?)```", flags=re.DOTALL)
LONGEST = 200  # characters of a description

HEAD = """# sgdynamics

> A Python library for the exact high-dimensional dynamics of SGD: state a learning problem and an
> algorithm, and compute the theory (ODE, SDE, dynamical mean-field theory, statics), a
> finite-dimensional simulation with the law of SGD, and their comparison.

A typical use:

    import sgdynamics as sgd
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.01)
    algorithm = sgd.OnePassSGD(lr=0.5)
    start = sgd.random_start(problem, dimension=1000, seed=0)
    theory = sgd.solve_ode(problem, algorithm, start, times=[0, 1, 2])
    runs = sgd.simulate(problem, algorithm, start, times=[0, 1, 2], dimension=1000, runs=100)
    table = sgd.compare(theory, runs)

Results are `xarray.Dataset`. Inputs are normal with covariance I_d, a step is lr/d times the
gradient, the loss is (f - y)^2/2, and f is the mean over units. `sgd.supported()` prints which
function accepts which problem. Pages end in .html on the site; the paths below are those of the
sources in docs/.
"""


def sections() -> list[tuple[str, list[str]]]:
    """Captions of the landing page with the names of their pages, and of the pages below them."""
    result = []
    for tree in TOCTREE.finditer((DOCS / "index.md").read_text(encoding="utf-8")):
        caption = re.findall(r":caption: (.*)", tree["body"])[0]
        names = [name for name in _entries(tree["body"]) if name]
        result.append((caption, [page for name in names for page in (name, *_children(name))]))
    return result


def _entries(body: str) -> list[str]:
    return [line for line in body.split("\n") if line and not line.startswith(":")]


def _children(name: str) -> list[str]:
    """The pages below an index page."""
    file = DOCS / f"{name}.md"
    if not name.endswith("/index") or not file.is_file():
        return []
    folder = name.removesuffix("index")
    trees = TOCTREE.finditer(file.read_text(encoding="utf-8"))
    return [f"{folder}{entry}" for tree in trees for entry in _entries(tree["body"])]


def describe(name: str) -> tuple[str, str, str]:
    """Path, title and first sentence of a page."""
    path = f"{name}.md" if (DOCS / f"{name}.md").is_file() else f"{name}.py"
    text = (DOCS / path).read_text(encoding="utf-8")
    if "{include}" in text:
        target = re.findall(r"\{include\} (\S+)", text)[0]
        text = (DOCS / path).parent.joinpath(target).read_text(encoding="utf-8")
    text = re.sub(r"^# %% ?(\[markdown\])?\n", "", text, flags=re.MULTILINE)
    if path.endswith(".py"):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    title = re.findall(r"^# (.*)", text, flags=re.MULTILINE)[0]
    body = re.sub(r"```.*?```", "", text.split(title, 1)[1], flags=re.DOTALL)
    paragraphs = [text.strip() for text in body.split("\n\n") if text.strip()]
    prose = next((paragraph for paragraph in paragraphs if paragraph[0] not in "#|-!<"), "")
    prose = re.sub(r"\{\w+\}`([^`<]*?)( <[^>]*>)?`", r"\1", " ".join(prose.split()))
    prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose)
    sentence = re.split(r"(?<=[.:])\s(?=[A-Z`])", prose, maxsplit=1)[0].rstrip(":")
    return path, title, sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."


def llms_text() -> str:
    """The text of the file."""
    text, written = HEAD, set()
    for caption, names in sections():
        text += f"\n## {caption}\n\n"
        for name in names:
            if name in written:
                continue
            written.add(name)
            path, title, sentence = describe(name)
            text += f"- [{title}]({path}): {sentence}\n" if sentence else f"- [{title}]({path})\n"
    return text


if __name__ == "__main__":
    FILE.write_text(llms_text(), encoding="utf-8")
