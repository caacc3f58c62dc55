"""Every Python block of the README runs as printed, and the examples do their job."""

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
def test_readme_block(block, capsys):
    exec(compile(block.code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    if block.shown:
        assert same_text(shown, block.shown), f"it shows\n{block.shown}\nand prints\n{shown}"


def test_the_first_example_is_short_and_shows_what_it_prints():
    lines = [line for line in BLOCKS[0].code.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10
    assert "risk_z" in BLOCKS[0].shown
    assert max(map(len, BLOCKS[0].shown.splitlines())) <= 80


PICTURE = ROOT / "docs/pictures/plateau"


@pytest.mark.slow  # run by `make docs`
def test_readme_picture_is_what_its_script_draws(tmp_path):
    """The data that the picture carries are what is computed today, and the picture is that of the data."""
    plateau = module(PICTURE.with_suffix(".py"))
    kept, now = json.loads(Image.open(PICTURE.with_suffix(".png")).text["data"]), plateau.computed()
    assert kept.keys() == now.keys()
    for d, one in now.items():
        for name, values in one.items():
            np.testing.assert_allclose(
                kept[d][name], values, rtol=TOLERANCE, atol=1e-6, err_msg=f"{name} at d = {d}"
            )
    plateau.drawn(kept, tmp_path / "again.png")
    one, other = (
        matplotlib.image.imread(file)[..., :3]
        for file in (PICTURE.with_suffix(".png"), tmp_path / "again.png")
    )
    assert one.shape == other.shape
    assert np.mean(np.abs(one - other)) < 0.01


def module(path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def example(name):
    return module(ROOT / f"examples/{name}.py")


@pytest.mark.slow  # run by `make docs`
def test_demo_at_a_small_size(tmp_path, capsys):
    demo = example("demo")
    demo.main(tmp_path, dimension=500, runs=100)
    shown = capsys.readouterr()
    assert "exact simulation (100 runs) against the ODE" in shown.out
    assert "exact simulation, d = 500" in shown.err  # the progress bar
    assert sorted(file.name for file in tmp_path.iterdir()) == ["demo.nc", "demo.png"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert sgd.load(tmp_path / "demo.nc", group="exact").sizes["run"] == 100
    theory, exact, direct = (
        sgd.load(tmp_path / "demo.nc", group=name) for name in ("theory", "exact", "direct")
    )
    # what is printed: risk and M_1 at six times, of the exact runs and then of the direct ones
    apart = np.array(re.findall(r"([+-]\d+\.\d) s\.e\.", shown.out), dtype=float).reshape(
        2, len(demo.SHOWN), 2
    )
    rows = [int(np.argmin(np.abs(exact.t.values - when))) for when in demo.SHOWN]
    for printed, result in zip(apart, (exact, direct), strict=True):
        table = sgd.compare(theory, result).isel(time=rows)
        np.testing.assert_allclose(printed[:, 0], table.excess_risk_z, atol=0.051)
        np.testing.assert_allclose(printed[:, 1], table.M_z.isel(unit=0, signal=0), atol=0.051)
    # and it is small: a false alarm in 1e6, beside what d = 500 adds to the limit
    assert np.abs(apart[0]).max() < Z + 1.5
    # four direct runs have the law of the exact ones, whose spread is known better
    for name in ("excess_risk", "M"):
        one, many = (result[name].values[:, rows[1:]] for result in (direct, exact))
        error = many.std(axis=0, ddof=1) * np.sqrt(1 / len(one) + 1 / len(many))
        assert np.all(np.abs(one.mean(axis=0) - many.mean(axis=0)) <= Z * error), name


@pytest.mark.slow
def test_real_data(tmp_path, capsys):
    pytest.importorskip("sklearn")
    real = example("real_data")
    real.main(tmp_path, runs=300)
    shown = capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["real_data.png"]
    assert (tmp_path / "real_data.png").stat().st_size > 10_000
    # mean of SGD, its error, Gaussian theory, theory with kappa; apart as printed
    rows = re.findall(
        r"(\d+)  +([\d.]+) ± ([\d.]+)  +([\d.]+)  +([+-][\d.]+)%  +([\d.]+)  +([+-][\d.]+)%", shown
    )
    table = np.array(rows, dtype=float).reshape(len(real.RATES), len(real.STEPS), 7)
    np.testing.assert_array_equal(table[:, :, 0], [real.STEPS] * 2)
    for theory, apart in ((3, 4), (5, 6)):
        np.testing.assert_allclose(
            100 * (table[:, :, theory] / table[:, :, 1] - 1), table[:, :, apart], atol=0.1
        )
    # 3% at the small rate; at the large one 10% with kappa, which is nearer than without from step 10 on
    share = 4.9 * table[:, :, 2] / table[:, :, 1]
    assert np.all(np.abs(table[0, :, [4, 6]]) / 100 < 0.03 + share[0])
    assert np.all(np.abs(table[1, :, 6]) / 100 < 0.1 + share[1])
    assert np.all(np.abs(table[1, 2:, 6]) < np.abs(table[1, 2:, 4]))


def test_real_data_trains_and_names_what_it_needs(monkeypatch):
    real = example("real_data")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 3))
    y = x @ [1.0, -1.0, 0.5]
    risks = real.train(x, y, 0.1, runs=4)
    assert risks.shape == (4, len(real.STEPS))
    assert np.all(risks[:, -1] < 1e-6 * risks[:, 0])  # without noise the target is found
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match=r"pip install 'sgdynamics\[data\]'"):
        real.digits()
