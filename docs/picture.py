"""The directive `{picture}`: what the block before it drew when `make docs` ran the examples, with a caption (see `examples.py`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import examples
from docutils import nodes
from PIL import Image
from sphinx.util.docutils import SphinxDirective


class Picture(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        env = self.env
        source = Path(env.doc2path(env.docname))
        names = [
            one.picture
            for one in examples.blocks(env.docname, source.read_text(encoding="utf-8"))
            if one.picture
        ]
        number = env.temp_data["pictures"] = env.temp_data.get("pictures", 0) + 1
        if number > len(names):
            raise self.error(
                "a picture stands right behind the block that draws it, or behind what that block prints"
            )
        caption = nodes.caption("", "", *self.parse_inline(self.arguments[0])[0])
        if not env.config.pictures:
            return [nodes.figure("", caption)]
        file = examples.FOLDER / names[number - 1]
        if not file.is_file():
            raise self.error(
                "the picture of this code has not been drawn: `make docs` runs the examples before it builds the pages"
            )
        env.note_dependency(str(file))
        with Image.open(file) as drawn:
            width = round(drawn.width * examples.SHOWN / examples.DPI)
        image = nodes.image(
            uri=os.path.relpath(file, source.parent), alt=caption.astext(), width=f"{width}px"
        )
        return [nodes.figure("", image, caption)]


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value(
        "pictures", True, "env", bool
    )  # False: pages without them, for a build that has not run the examples
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
