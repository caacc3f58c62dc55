"""The directives `{picture}` and `{opening}` show the figures of their blocks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import examples  # noqa: E402

PAGE = f"""# Page

```{{opening}} The second figure.
```

```python
fig = first
```

```{{picture}} The first figure.
```

```python
fig = second
```

{examples.DRAWN}
"""
CONF = f"""import sys
from pathlib import Path
sys.path.insert(0, {str(DOCS)!r})
import examples
examples.FOLDER = Path(__file__).parent / "drawn"
extensions = ["myst_parser", "picture"]
"""


def test_each_directive_shows_the_figure_of_its_block(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    (tmp_path / "conf.py").write_text(CONF, encoding="utf-8")
    (tmp_path / "index.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "drawn").mkdir()
    first, second = examples.blocks("index", PAGE)
    assert (first.opening, second.opening) == (False, True)
    for block in (first, second):
        figure = plt.figure(figsize=(1, 1))
        figure.savefig(tmp_path / "drawn" / str(block.picture))
        plt.close(figure)
    command = [sys.executable, "-m", "sphinx", "-W", "-q", tmp_path, tmp_path / "html"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    html = (tmp_path / "html/index.html").read_text(encoding="utf-8")
    shown = re.findall(r'src="_images/([^"]+)"', html)
    assert shown == [second.picture, first.picture]
