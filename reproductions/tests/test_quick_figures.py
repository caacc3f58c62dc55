"""The quick figures that belong to no single document reproduce their claims."""

from __future__ import annotations

import pytest

from sgdynamics_reproductions import gallery

DOCUMENTS = (
    "depth",
    "epochs",
    "optimisers",
    "protocols",
    "scaling_laws",
    "several_inputs",
    "sparsity",
    "stages",
    "statics",
    "tops",
)
FIGURES = [
    (entry.document, entry.number) for entry in gallery.ENTRIES if entry.document in DOCUMENTS
]


@pytest.mark.slow
@pytest.mark.parametrize(("document", "number"), FIGURES)
def test_quick_figure_reproduces_its_claim(document, number, tmp_path):
    if (document, number) == ("scaling_laws", "4"):
        pytest.importorskip("sklearn")
    record = gallery.make(gallery.find(document, number), tmp_path)
    assert not record["error"]
    assert record["verdict"].startswith("reproduced"), record["verdict"]
    assert (tmp_path / f"{document}-{number}.png").stat().st_size > 20_000


def test_all_documents_have_figures():
    assert {document for document, _ in FIGURES} == set(DOCUMENTS)
    assert len(FIGURES) == 50
