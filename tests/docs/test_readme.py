"""The Python blocks of the README run and print what is shown, and the examples run."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

import sgdynamics as sgd
from tests.conftest import Z
from tests.docs.test_docs import TOLERANCE, examples, same_text

ROOT = Path(__file__).parents[2]
BLOCKS = list(examples.blocks("README", (ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.slow  # run by `make docs`, with the examples of the pages
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a block saves its figure
    exec(compile(block.code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    message = f"the README shows\n{block.output}\nand prints\n{printed}"
    assert same_text(printed, block.output), message


def test_the_first_example_is_short_and_shows_its_output():
    lines = [line for line in BLOCKS[0].code.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 11
    assert "savefig" in BLOCKS[0].code  # the first result is a picture, too
    assert "risk_z" in BLOCKS[0].output
    assert max(map(len, BLOCKS[0].output.splitlines())) <= 80


PICTURE = ROOT / "docs/pictures/plateau"


@pytest.mark.slow  # run by `make docs`
def test_readme_picture_is_current(tmp_path):
    """The data stored in the picture are those computed now, and the picture shows them."""
    plateau = load_module(PICTURE.with_suffix(".py"))
    stored = json.loads(Image.open(PICTURE.with_suffix(".png")).text["data"])
    computed = plateau.compute_curves()
    assert stored.keys() == computed.keys()
    for d, curves in computed.items():
        for name, values in curves.items():
            np.testing.assert_allclose(
                stored[d][name], values, rtol=TOLERANCE, atol=1e-6, err_msg=f"{name} at d = {d}"
            )
    plateau.draw(stored, tmp_path / "redrawn.png")
    picture, redrawn = (
        matplotlib.image.imread(file)[..., :3]
        for file in (PICTURE.with_suffix(".png"), tmp_path / "redrawn.png")
    )
    assert picture.shape == redrawn.shape
    assert np.mean(np.abs(picture - redrawn)) < 0.01


def load_module(path):
    """Import a script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name):
    return load_module(ROOT / f"examples/{name}.py")


@pytest.mark.slow  # run by `make docs`
def test_demo_at_a_small_size(tmp_path, capsys):
    demo = example("demo")
    demo.main(tmp_path, dimension=500, runs=100)
    captured = capsys.readouterr()
    assert "exact simulation (100 runs) against the ODE" in captured.out
    assert "exact simulation, d = 500" in captured.err  # the progress bar
    assert sorted(file.name for file in tmp_path.iterdir()) == ["demo.nc", "demo.png"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert sgd.load(tmp_path / "demo.nc", group="exact").sizes["run"] == 100
    theory, exact, direct = (
        sgd.load(tmp_path / "demo.nc", group=name) for name in ("theory", "exact", "direct")
    )
    # The demo prints risk and M_1 at six times, for the exact runs and then for the direct ones.
    z_scores = np.array(re.findall(r"([+-]\d+\.\d) s\.e\.", captured.out), dtype=float).reshape(
        2, len(demo.PRINTED_TIMES), 2
    )
    rows = [int(np.argmin(np.abs(exact.t.values - time))) for time in demo.PRINTED_TIMES]
    for printed, result in zip(z_scores, (exact, direct), strict=True):
        table = sgd.compare(theory, result).isel(time=rows)
        np.testing.assert_allclose(printed[:, 0], table.excess_risk_z, atol=0.051)
        np.testing.assert_allclose(printed[:, 1], table.M_z.isel(unit=0, signal=0), atol=0.051)
    # The scores are small: false-alarm rate 1e-6, with an allowance for the correction at d = 500.
    assert np.abs(z_scores[0]).max() < Z + 1.5
    # Direct and exact runs have the same mean; the error uses the standard deviation of the many
    # exact runs.
    for name in ("excess_risk", "M"):
        few, many = (result[name].values[:, rows[1:]] for result in (direct, exact))
        error = many.std(axis=0, ddof=1) * np.sqrt(1 / len(few) + 1 / len(many))
        assert np.all(np.abs(few.mean(axis=0) - many.mean(axis=0)) <= Z * error), name


@pytest.mark.slow
def test_real_data(tmp_path, capsys):
    pytest.importorskip("sklearn")
    real = example("real_data")
    real.main(tmp_path, runs=300)
    printed = capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["real_data.png"]
    assert (tmp_path / "real_data.png").stat().st_size > 10_000
    # Columns: step, mean of SGD, its error, Gaussian theory and theory with kappa, each with its
    # difference from SGD in percent.
    rows = re.findall(
        r"(\d+)  +([\d.]+) ± ([\d.]+)  +([\d.]+)  +([+-][\d.]+)%  +([\d.]+)  +([+-][\d.]+)%",
        printed,
    )
    table = np.array(rows, dtype=float).reshape(len(real.RATES), len(real.STEPS), 7)
    np.testing.assert_array_equal(table[:, :, 0], [real.STEPS] * 2)
    for theory, difference in ((3, 4), (5, 6)):
        np.testing.assert_allclose(
            100 * (table[:, :, theory] / table[:, :, 1] - 1), table[:, :, difference], atol=0.1
        )
    # The theory agrees within 3% at the small rate, and within 10% with kappa at the large rate,
    # where kappa improves it from step 10 on.
    sampling_error = 4.9 * table[:, :, 2] / table[:, :, 1]
    assert np.all(np.abs(table[0, :, [4, 6]]) / 100 < 0.03 + sampling_error[0])
    assert np.all(np.abs(table[1, :, 6]) / 100 < 0.1 + sampling_error[1])
    assert np.all(np.abs(table[1, 2:, 6]) < np.abs(table[1, 2:, 4]))


def test_real_data_trains_and_names_a_missing_package(monkeypatch):
    real = example("real_data")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 3))
    y = x @ [1.0, -1.0, 0.5]
    risks = real.train(x, y, 0.1, runs=4)
    assert risks.shape == (4, len(real.STEPS))
    assert np.all(risks[:, -1] < 1e-6 * risks[:, 0])  # SGD without noise finds the target
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match=r"pip install 'sgdynamics\[data\]'"):
        real.digits()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "module"), [("equinox", "equinox"), ("flax", "flax"), ("torch", "torch")]
)
def test_networks_of_other_libraries_follow_their_theory(library, module, capsys):
    pytest.importorskip(module)
    losses, theory = example("any_network").compare(library)
    assert "top of the" in capsys.readouterr().out
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    # a gap of order 1/d, and the noise of the trainings
    assert abs(losses.mean() - theory) < 6 * error + 0.02 * theory
