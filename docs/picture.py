"""The directives `{picture}` and `{opening}`: figures of the code blocks, with a caption.

`{picture}` shows the figure of the block before it, `{opening}` at the top of a page that of the
block which is followed by the sentence `examples.DRAWN`.

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
        blocks = list(examples.blocks(env.docname, source.read_text(encoding="utf-8")))
        opening = self.name == "opening"
        names = [block.picture for block in blocks if block.picture and block.opening == opening]
        number = env.temp_data[self.name] = env.temp_data.get(self.name, 0) + 1
        if number > len(names):
            raise self.error(
                "A picture must follow directly after the block that draws it, or after its output."
                f" The block of an opening is followed by: {examples.DRAWN}"
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
    app.add_directive("opening", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
