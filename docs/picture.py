"""The directive `{picture}`: the figure of the block before it, with a caption.

`make docs` draws the figures when it runs the examples (see `examples.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import examples
from docutils import nodes
from PIL import Image
from sphinx.util.docutils import SphinxDirective


class Picture(SphinxDirective):
    """Insert the figure that the code block before the directive has drawn."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        env = self.env
        source = Path(env.doc2path(env.docname))
        blocks = examples.blocks(env.docname, source.read_text(encoding="utf-8"))
        names = [block.picture for block in blocks if block.picture]
        number = env.temp_data["pictures"] = env.temp_data.get("pictures", 0) + 1
        if number > len(names):
            raise self.error(
                "A picture must follow directly after the block that draws it, or after its output."
            )
        caption = nodes.caption("", "", *self.parse_inline(self.arguments[0])[0])
        if not env.config.pictures:
            return [nodes.figure("", caption)]
        file = examples.FOLDER / names[number - 1]
        if not file.is_file():
            raise self.error(
                "The figure of this code is missing. Run `make docs`, which draws the figures."
            )
        env.note_dependency(str(file))
        with Image.open(file) as figure:
            width = round(figure.width * examples.PAGE_DPI / examples.DPI)
        image = nodes.image(
            uri=os.path.relpath(file, source.parent), alt=caption.astext(), width=f"{width}px"
        )
        return [nodes.figure("", image, caption)]


def setup(app: Any) -> dict[str, Any]:
    # False builds the pages without figures, if the examples have not been run.
    app.add_config_value("pictures", True, "env", bool)
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
