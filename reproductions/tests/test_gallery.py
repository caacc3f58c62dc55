"""The gallery: complete, judged by data that could say otherwise, resumable, and not stopped by a
figure that fails.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import sgdynamics as sgd
import sgdynamics_reproductions
from sgdynamics_reproductions import gallery, quadratic_networks, rough_landscapes
from sgdynamics_reproductions.gallery import stored_data
from sgdynamics_reproductions.gallery.page import markdown
from sgdynamics_reproductions.gallery.stored_data import add_caption
from sgdynamics_reproductions.scaling_laws import digits_figure

CHEAP = ("quadratic_networks/5", "quadratic_networks/6")


def figures_of_the_papers():
    """Every public function f(quick, seed) of every document."""
    for document in sgdynamics_reproductions.__all__:
        module = getattr(sgdynamics_reproductions, document)
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and list(inspect.signature(function).parameters) == [
                "quick",
                "seed",
            ]:
                yield document, name


def test_every_figure_is_listed_once():
    listed = [(entry.document, entry.name) for entry in gallery.ENTRIES]
    assert sorted(listed) == sorted(figures_of_the_papers())
    assert {entry.document for entry in gallery.ENTRIES} == set(gallery.DOCUMENTS)
    for entry in gallery.ENTRIES:
        assert gallery.find(entry.document, entry.number) is entry
        assert entry.line
        assert entry.claim
        assert entry.function.__name__ == entry.name


def test_names_are_forgiving():
    assert gallery.find("rough-landscapes", "B.1").name == "figure_b1"
    assert gallery.find("dimension_free", "single-index").name == "single_index"
    with pytest.raises(ValueError, match=r"figure = 'b9'.*choose one of '1', '2'"):
        gallery.find("rough_landscapes", "b9")


def test_made_kept_and_shown(tmp_path, capsys):
    assert (
        gallery.main(
            ["--out", str(tmp_path), *(argument for name in CHEAP for argument in ("--only", name))]
        )
        == 0
    )
    printed = capsys.readouterr()
    assert "[2/2] quadratic_networks 6: reproduced" in printed.err
    assert "2 of 2 figures" in printed.out
    about = json.loads((tmp_path / "quadratic_networks-5.json").read_text())
    assert (
        about["verdict"]
        == "reproduced: 24 of 24 numbers agree with the rank counted at a random point"
    )
    assert about["parameters"] == {"seed": 0}
    assert [record["verdict"] for record in about["findings"]] == ["reproduced"]
    assert about["findings"][0]["statistic"] == "numbers that disagree, of 24"
    data = sgd.load(tmp_path / "quadratic_networks-5.nc")
    assert data.counted.shape == (2, 12)
    page, web = (tmp_path / name for name in ("index.md", "index.html"))
    assert (
        "![figure 5: degrees of freedom as a function of the width](quadratic_networks-5.png)"
        in page.read_text()
    )
    assert web.read_text().count("data:image/png;base64,") == 2
    assert "http" not in web.read_text()  # nothing from elsewhere
    # each claim with its statistic, value, threshold and power, on both pages
    row = [
        "The formula gives the rank at a random point",
        "numbers that disagree, of 24",
        "0",
        "at most 0",
    ]
    power = "an error of 1 x one number would have been detected"
    assert f"| {' | '.join(row)} | {power} | reproduced |" in page.read_text()
    assert (
        "".join(f"<td>{cell}</td>" for cell in [*row, power])
        + "<td class='reproduced'>reproduced</td>"
        in web.read_text()
    )
    assert "They rest on 2 claims" in page.read_text()
    # Existing figures are not made again, and the verdict is that of the current data.
    modified_at = (tmp_path / "quadratic_networks-5.png").stat().st_mtime_ns
    (tmp_path / "quadratic_networks-6.json").write_text("{ cut short")
    changed = data.assign(counted=data.counted + 1)
    sgd.save(changed, tmp_path / "quadratic_networks-5.nc")
    records = gallery.make_all(tmp_path, only=CHEAP)
    assert [record["made"] for record in records] == [False, True]
    assert records[0]["verdict"].startswith("differs: 0 of 24")
    assert "numbers that disagree, of 24 | 24 | at most 0 |" in page.read_text()
    assert (tmp_path / "quadratic_networks-5.png").stat().st_mtime_ns == modified_at
    # The page contains all figures of the folder, from any call.
    gallery.make_all(tmp_path, only=CHEAP[1:])
    assert web.read_text().count("data:image/png;base64,") == 2
    assert gallery.make(gallery.find("quadratic_networks", "5"), tmp_path, seed=1)["made"]
    assert gallery.make(gallery.find("quadratic_networks", "5"), tmp_path, seed=1, again=True)[
        "made"
    ]


def test_a_figure_that_fails_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def failing_figure(quick=False, seed=0):
        raise RuntimeError("the exponent <b>4</b>\nhad not left")

    monkeypatch.setattr(quadratic_networks, "figure_5", failing_figure)
    assert (
        gallery.main(
            ["--out", str(tmp_path), *(argument for name in CHEAP for argument in ("--only", name))]
        )
        == 1
    )
    assert "1 of 2 figures" in capsys.readouterr().out
    web = (tmp_path / "index.html").read_text()
    assert "RuntimeError: the exponent &lt;b&gt;4&lt;/b&gt; had not left" in web
    assert web.count("data:image/png;base64,") == 1
    monkeypatch.undo()
    # A figure that failed is made again.
    assert not any(record["error"] for record in gallery.make_all(tmp_path, only=CHEAP))


def test_a_figure_without_its_package_is_skipped(tmp_path, monkeypatch, capsys):
    """Both pages and the summary name the package, and the gallery does not fail.

    The figure is made once the package is installed.
    """

    def missing(quick=False, seed=0):
        digits_figure.pixels()

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(quadratic_networks, "figure_5", missing)
    arguments = [
        "--out",
        str(tmp_path),
        *(argument for name in CHEAP for argument in ("--only", name)),
    ]
    assert gallery.main(arguments) == 0
    printed, page, web = (
        capsys.readouterr(),
        *((tmp_path / name).read_text() for name in ("index.md", "index.html")),
    )
    assert (
        "quadratic_networks 5: skipped: The digits of this figure come with scikit-learn, which is"
        " not installed. Install it with: pip" in printed.err
    )
    assert "1 of 2 figures, 1 skipped:" in printed.out
    assert "1 reproduced, 1 skipped." in page
    assert re.search(
        r"\*\*Skipped\*\* after [\d.]+ s: The digits of this figure come with scikit-learn", page
    )
    assert re.search(
        r"<p class='skipped'>skipped after [\d.]+ s: The digits of this figure come with"
        r" scikit-learn",
        web,
    )
    assert "failed" not in page
    # a package that the library itself needs is another matter
    monkeypatch.setitem(sys.modules, "xarray.tutorial", None)
    monkeypatch.setattr(
        quadratic_networks,
        "figure_5",
        lambda **_: importlib.import_module("xarray.tutorial"),
    )
    assert gallery.main(arguments) == 1
    monkeypatch.undo()
    assert not any(record["error"] for record in gallery.make_all(tmp_path, only=CHEAP))


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{entry.document}/{entry.number}" for entry in gallery.ENTRIES])
def test_every_quick_figure_goes_through(tmp_path, name):
    [record] = gallery.make_all(tmp_path, only=[name])
    assert not record["error"]
    assert record["verdict"].split(":")[0] in gallery.WORDS.values()
    entry = gallery.find(record["document"], record["number"])
    assert (
        entry.verdict(sgd.load(tmp_path / f"{entry.document}-{entry.number}.nc"))
        == record["verdict"]
    )
    # The picture of data stored at full size is shown next to that of the quick run.
    pictures = 1 + (f"{entry.document}-{entry.number}" in gallery.full_size())
    assert (tmp_path / "index.html").read_text().count("data:image/png;base64,") == pictures


def test_full_size_verdicts_are_those_of_the_stored_data():
    files = {path.stem for path in stored_data.FOLDER.glob("*.nc")}
    assert set(gallery.full_size()) == files
    for stem, stored in gallery.full_size().items():
        data = stored_data.load_full_size(stem)
        assert gallery.find(*stem.split("-")).verdict(data) == stored["verdict"]
        assert stored["parameters"].items() <= data.attrs.items()
        if stem != "rough_landscapes-2":  # stored run by run, with one group per algorithm
            assert stored["seconds"] == data.attrs["seconds"]


# what the curves of a figure show at the last time; |m| where nothing is said
CURVES = {
    "1": ["m_dmft"],
    "5": ["m_dmft"],
    "6": ["m_dmft"],
    "b2": ["mse", "mse_formula", "mse_formula_runs"],
}
CURVES["4"] = ["m_batch", "m_persistence", "m_temperature"]
CURVES["b3"] = ["m", "loss"]
CURVES["b1"] = CURVES["b2"]
FORMULAS = ["annealed", "quenched", "corrected"]


def ends_of_curves(stem, data):
    """From the stored data, and not by the function that draws them."""
    document, number = stem.split("-")
    if document == "escaping_mediocrity":
        return [(data.measured / data[name]).values[:, -1] for name in FORMULAS]
    last = [np.abs(data[name]) for name in CURVES.get(number, ["m"])]
    if number == "7":  # gradient descent ends earlier: NaN beyond
        last = [
            result.dropna("time", how="all")
            for name in data.algorithm.values
            for result in [last[0].sel(algorithm=name)]
        ]
    last = [result.isel(time=-1) for result in last]
    return (
        [result.mean("run").values for result in last]
        if number == "2"
        else [result.values for result in last]
    )


@pytest.mark.parametrize("stem", gallery.full_size())
def test_full_size_data_are_drawn_with_their_sizes(stem):
    """By the function that draws the quick figure: the curves are those of the stored data, and the
    words have their N and runs.
    """
    fig, data = gallery.draw_full_size(*stem.split("-"))
    title = fig.get_suptitle() + "".join(ax.get_title() + ax.get_ylabel() for ax in fig.axes)
    size = gallery.full_size()[stem]["parameters"]
    assert (
        f"{size['runs']} data sets" if stem == "rough_landscapes-1" else f"{size['runs']} runs"
    ) in title
    if "N" in size or "N" in data:
        assert f"$N$ = {size['N'] if 'N' in size else data.N.values[-1]}" in title
    lines = [
        np.atleast_1d(np.asarray(line.get_ydata(), dtype=float))
        for ax in fig.axes
        for line in ax.lines
    ]
    ends = np.concatenate([line[np.isfinite(line)][-1:] for line in lines])
    for value in np.concatenate(
        [np.ravel(curve_ends) for curve_ends in ends_of_curves(stem, data)]
    ):
        assert np.isclose(ends, value).any()
    if stem == "rough_landscapes-2":
        assert [text.get_text() for text in fig.axes[1].get_legend().get_texts()] == [
            "GD: 10.8% recovered",
            "SGD: 25.0% recovered",
            "persistent SGD: 99.6% recovered",
        ]


def test_full_size_exit_times_are_drawn_at_their_widths_and_dimensions():
    """One panel per formula and one curve per width from d = 100 to 1e6, side by side at each d."""
    fig, data = gallery.draw_full_size("escaping_mediocrity", "2")
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [
        f"$p$ = {p}" for p in (1, 2, 5, 10)
    ]
    for ax, name in zip(fig.axes, FORMULAS, strict=True):
        assert name in ax.get_title()
        x, y = np.moveaxis(np.array([bars[0].get_xydata() for bars in ax.containers]), -1, 0)
        np.testing.assert_allclose(y, data.measured / data[name])
        np.testing.assert_allclose(np.exp(np.log(x).mean(0)), 10.0 ** np.arange(2, 7))
        assert np.all(np.diff(x, axis=0) > 0)


def quick_figure_2(quick=True, seed=0):
    """Made of a few of the stored runs, as if they had just been run at a small size."""
    data = stored_data.load_full_size("rough_landscapes-2").isel(run=slice(0, 20))
    data.attrs |= {"N": 60, "runs": 20}
    return stored_data.drawing_of("rough_landscapes-2")(data), data


@pytest.mark.slow
def test_full_size_data_are_shown_before_the_quick_run(tmp_path, monkeypatch):
    monkeypatch.setattr(rough_landscapes, "figure_2", quick_figure_2)
    [record] = gallery.make_all(tmp_path, only=["rough_landscapes/2"])
    assert not record["error"]
    assert record["files"][-1].endswith("rough_landscapes-2-full_size.png")
    page, web = ((tmp_path / name).read_text() for name in ("index.md", "index.html"))
    first, second = (
        page.index("(rough_landscapes-2-full_size.png)"),
        page.index("(rough_landscapes-2.png)"),
    )
    assert first < second
    assert "At full size (N = 1000, runs = 500), drawn from stored data" in page[:first]
    assert web.count("data:image/png;base64,") == 2
    assert record["parameters"]["N"] == 60  # the verdict is of what was run
    # kept whole, and made again where the picture of the full size is missing
    assert not gallery.make_all(tmp_path, only=["rough_landscapes/2"])[0]["made"]
    (tmp_path / "rough_landscapes-2-full_size.png").unlink()
    assert gallery.make_all(tmp_path, only=["rough_landscapes/2"])[0]["made"]
    # no such picture of a full-size run, and none for a figure that has no data
    assert gallery.make_all(tmp_path / "full", quick=False, only=["rough_landscapes/2"])[0][
        "files"
    ][-1].endswith(".nc")


def test_a_quick_picture_reports_the_full_size_verdict(tmp_path, monkeypatch):
    fig, data = quick_figure_2()
    monkeypatch.setattr(rough_landscapes, "figure_2", lambda quick, seed: (fig, data))
    [record] = gallery.make_all(tmp_path, only=["rough_landscapes/2"])
    assert not record["error"]
    caption = " ".join(fig.texts[-1].get_text().split())
    assert "GD 10.8% (1.4%), SGD 25.0% (1.9%), p-SGD 99.6% (0.3%)" in caption


def test_figures_without_stored_data_are_named():
    with pytest.raises(
        ValueError, match="choose one of 'escaping_mediocrity-2', 'rough_landscapes-1'"
    ):
        gallery.draw_full_size("escaping_mediocrity", "1")


def test_pages_show_full_size_verdicts_with_quick_ones():
    record = {
        "document": "rough_landscapes",
        "number": "7",
        "line": "random starts",
        "claim": "c",
        "verdict": "not decided at this size: n",
    }
    record |= {
        "quick": True,
        "error": "",
        "seconds": 1.0,
        "parameters": {},
        "version": "0",
        "seed": 0,
    }
    verdict = gallery.full_size()["rough_landscapes-7"]["verdict"].partition(": ")[2]
    text = markdown([record])
    assert f"- At full size (NVIDIA H200, 1020.6 s): **differs**: {verdict}" in text
    assert "| not decided at this size | differs at full size |" in text
    assert "At full size" not in markdown([record | {"quick": False}])


JUDGED = (
    "depth",
    "escaping_mediocrity",
    "effective_dynamics",
    "quadratic_networks",
    "several_inputs",
    "scaling_laws",
    "optimisers",
    "protocols",
    "epochs",
    "sparsity",
    "stages",
    "tops",
    "statics",
)


def test_every_judge_has_a_test_that_breaks_it():
    for document in JUDGED:
        tested = importlib.import_module(f"test_judges_{document}")
        broken = {entry.judge for entry in tested.BROKEN}
        assert {entry.judge for entry in gallery.ENTRIES if entry.document == document} == broken


def test_small_print_stands_below_a_legend(tmp_path):
    fig = Figure(figsize=(4, 3), layout="constrained")
    fig.subplots().plot([0, 1], color="b")
    fig.legend(
        handles=[Line2D([], [], color="r", lw=6)], labels=["red"], loc="outside lower center"
    )
    add_caption(fig, "small print " * 20)
    fig.savefig(tmp_path / "picture.png", dpi=100, bbox_inches="tight")
    drawn = matplotlib.image.imread(tmp_path / "picture.png")
    red = (drawn[..., 0] > 0.9) & (drawn[..., 1:3] < 0.1).all(-1)
    assert len(drawn) - np.flatnonzero(red.any(1)).max() > 60  # four lines of print are below it
