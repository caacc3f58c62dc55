"""The explorer in a headless Chromium that moves a slider, follows the link and exports.

Both the live page and the page of the documentation are tested.

`make docs` runs this after the build of the pages, as `tests/docs/test_pages.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sgdynamics.cli import main
from sgdynamics.cli.explorer.curves import GRID
from sgdynamics.cli.explorer.server import MAX_BODY, Explorer
from sgdynamics.cli.explorer.states import State, address, export_text
from sgdynamics.results.storage import load
from tests.cli.explorer.process import interruptible
from tests.docs.browser import NAMES, Browser, find_browser
from tests.docs.test_pages import faults

FOLDER = os.environ.get("PAGES")
pytestmark = [
    pytest.mark.skipif(
        FOLDER is None, reason="PAGES does not name the folder of the built pages: `make docs` does"
    ),
    pytest.mark.skipif(
        find_browser() is None,
        reason=f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)",
    ),
]
SIMPLE = State(width=1, activation="linear", lr=0.5, noise=0.1, dimension=30, time=10.0)
RISK = "document.querySelector('#explorer-risk path.line').getAttribute('d')"
RUNS = (
    "[...document.querySelectorAll('#explorer-risk path.faint')]"
    ".map((path) => path.getAttribute('d')).join()"
)
STATUS = "document.querySelector('#explorer-status').textContent"


@pytest.fixture(scope="module")
def browser():
    with Browser() as item:
        item.size(1280)
        yield item


@pytest.fixture(scope="module")
def server():
    with Explorer() as item:
        thread = threading.Thread(target=item.serve_forever)
        thread.start()
        yield item
        item.shutdown()
        thread.join()


def wait(browser, script, seconds=120.0):
    """Until an expression of the page is true; how long that took."""
    began = time.monotonic()
    while not browser.run(script):
        assert time.monotonic() < began + seconds, (
            f"{script}: not within {seconds} s; the page says: {browser.run(STATUS)}"
        )
        time.sleep(0.02)
    return time.monotonic() - began


def wait_until_settled(browser, seconds=120.0):
    return wait(browser, f"{STATUS}.startsWith('Computed')", seconds)


def visit(browser, url):
    """A page loaded anew, also where only what follows the # differs."""
    browser.open("about:blank")
    browser.open(url)


def press(browser, name, key):
    """A key on a control, as a hand would."""
    browser.run(f"document.querySelector('#explorer-{name}').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=key,
            windowsVirtualKeyCode={"ArrowLeft": 37, "ArrowRight": 39}[key],
        )


def page_address(browser):
    return browser.run("location.hash.slice(1)")


def test_a_slider_moves_the_curves_and_the_link_brings_them_back(browser, server):
    visit(browser, f"{server.url}#{address(SIMPLE)}")
    wait(browser, f"{STATUS}.startsWith('Compiling the ODE for width 1, activation linear')", 10)
    # the ODE is drawn while the runs compile
    wait(browser, f"{STATUS}.startsWith('Compiling the runs')")
    assert browser.run(RISK)
    assert browser.run("document.querySelector('#explorer-risk path.faint')") is None
    wait_until_settled(browser)
    before, runs = browser.run(RISK), browser.run(RUNS)
    press(browser, "lr", "ArrowRight")
    assert "lr=0.7&" in page_address(browser)
    wait(browser, f"{RISK} !== {before!r}", 10)
    wait_until_settled(browser)
    assert browser.run("document.querySelector('output[for=explorer-lr]').textContent") == "0.7"
    after = browser.run(RISK)
    assert browser.run(RUNS) != runs
    # the dimension changes the start too; nothing is compiled, so that it takes a moment
    for _ in range(3):
        press(browser, "dimension", "ArrowRight")
        wait(browser, f"!{STATUS}.startsWith('Computed')", 10)
        assert "Compiling" not in browser.run(STATUS)
        assert wait_until_settled(browser) < 5.0  # on a busy machine; a second on an idle one
    # the link, in a new page
    link = browser.run("document.querySelector('#explorer-link').href").replace(
        "dimension=200", "dimension=30"
    )
    visit(browser, link)
    wait_until_settled(browser)
    assert browser.run(RISK) == after
    # back to the first state by its address alone
    browser.run(f"location.hash = {address(SIMPLE)!r}")
    wait(browser, f"{RISK} === {before!r}", 10)
    wait_until_settled(browser)
    assert browser.run(RUNS) == runs
    assert browser.complaints == []


def test_of_many_moves_the_last_one_is_shown(browser, server):
    visit(browser, f"{server.url}#{address(SIMPLE)}")
    wait_until_settled(browser)
    for _ in range(5):
        press(browser, "noise", "ArrowLeft")
    press(browser, "lr", "ArrowLeft")
    wait(browser, f"{STATUS}.startsWith('Computing')", 10)
    wait_until_settled(browser)
    message = browser.run("document.querySelector('#explorer-said').textContent")
    assert "noise=0.0003" in page_address(browser)
    visit(
        browser, f"{server.url}#width=1&activation=linear&lr=0.3&noise=0.0003&dimension=30&time=10"
    )
    wait_until_settled(browser)
    assert browser.run("document.querySelector('#explorer-said').textContent") == message


def test_exports_are_downloaded_and_run(browser, server, tmp_path):
    browser.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    visit(browser, f"{server.url}#{address(SIMPLE)}")
    wait_until_settled(browser)
    message = browser.run("document.querySelector('#explorer-said').textContent")
    risk = [float(item) for item in re.findall(r"0\.\d+", message)]
    for kind in ("py", "toml", "pdf"):
        browser.run(f"document.querySelector('#explorer-{kind}').click()")
        until = time.monotonic() + 60
        while not (tmp_path / f"explored.{kind}").exists():
            assert time.monotonic() < until, kind
            time.sleep(0.05)
    assert (tmp_path / "explored.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "explored.toml").read_text() == export_text(SIMPLE, "toml")
    done = CliRunner().invoke(
        main.app,
        [
            "run",
            str(tmp_path / "explored.toml"),
            "--out",
            str(tmp_path),
            "--format",
            "none",
            "--quiet",
        ],
    )
    assert done.exit_code == 0, done.output
    last = {
        name: load(tmp_path / "explored.nc", group=name)["excess_risk"].isel(time=-1)
        for name in ("ode", "exact")
    }
    assert risk[0] == pytest.approx(float(last["ode"][0]), rel=1e-3)
    assert risk[1] == pytest.approx(float(last["exact"].mean()), rel=1e-3)
    run = subprocess.run(
        [sys.executable, "explored.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert f"{float(last['ode'][0]):.5f}"[:6] in run.stdout
    assert (tmp_path / "explored.png").stat().st_size > 5000


def test_what_is_wrong_is_shown(browser, server):
    visit(browser, f"{server.url}#lr=-3&width=1&activation=linear")
    wait(browser, f"{STATUS}.startsWith(\"lr = '-3': give a number\")", 20)
    assert browser.run("document.querySelector('#explorer-status').classList.contains('wrong')")
    visit(browser, f"{server.url}#speed=3&width=1&activation=linear")
    wait(browser, f"{STATUS}.includes(\"has no 'speed'\")", 20)


def cut_off(browser, panels=("explorer-risk", "explorer-overlaps")):
    """Words of either panel that leave it, in a narrow and in a wide window."""
    result = []
    for width in (400, 1280):
        browser.size(width)
        time.sleep(0.2)
        for svg in panels:
            outside = f"""(() => {{
                const svg = document.querySelector('#{svg}');
                const box = svg.getBoundingClientRect();
                return [...svg.querySelectorAll('text')].filter((text) => {{
                    const at = text.getBoundingClientRect();
                    return at.left < box.left - 1 || at.right > box.right + 1
                        || at.bottom > box.bottom + 1;
                }}).map((text) => text.textContent);
            }})()"""
            result += [f"{svg} at {width} px: {item}" for item in browser.run(outside)]
    return result


def test_the_page_is_drawn_whole(browser, server):
    browser.open("about:blank")
    assert faults(browser, f"{server.url}#{address(SIMPLE)}") == []
    wait_until_settled(browser)
    assert cut_off(browser) == []
    # every control has its name
    unnamed = (
        "[...document.querySelectorAll('.explorer input, .explorer select')]"
        ".filter((input) => !input.labels.length).length"
    )
    assert browser.run(unnamed) == 0


FORECAST_STATUS = "document.querySelector('#forecast-status').textContent"
FORECAST_TEXT = "document.querySelector('#forecast-said').textContent"
PREDICTION = "document.querySelector('#forecast-loss path.dashed').getAttribute('d')"
LOSS_CURVES = Path(__file__).parents[3] / "examples/loss_curves"


def drop_files(browser, texts):
    """Drop files on the panel of forecasts; `texts` are their contents by name."""
    browser.run(
        f"""(() => {{
        const dataTransfer = new DataTransfer();
        for (const [name, text] of Object.entries({json.dumps(texts)}))
            dataTransfer.items.add(new File([text], name));
        const panel = document.querySelector('#forecast');
        for (const kind of ['dragover', 'drop'])
            panel.dispatchEvent(new DragEvent(kind, {{ dataTransfer, cancelable: true }}));
    }})()"""
    )


def set_field(browser, name, text):
    browser.run(
        f"(() => {{ const field = document.querySelector('#forecast-{name}'); "
        f"field.value = {text!r}; field.dispatchEvent(new Event('input')); }})()"
    )


def test_forecasts_of_dropped_files(browser, server):
    visit(browser, f"{server.url}#{address(SIMPLE)}")
    wait_until_settled(browser)
    names = ("25M_constant_24000.csv", "25M_wsdcon_9.csv")
    drop_files(browser, {name: (LOSS_CURVES / name).read_text() for name in names})
    wait(browser, f"{FORECAST_STATUS}.startsWith('Computed')", 30)
    assert "final loss at step 23936: 3.2" in browser.run(FORECAST_TEXT)
    assert len(browser.run("[...document.querySelectorAll('#forecast-loss path.band')]")) == 1
    before = browser.run(PREDICTION)
    browser.run("document.querySelector('#forecast-best').click()")
    wait(browser, f"{FORECAST_TEXT}.includes('Best schedule: 3.2')", 60)
    wait(browser, f"{FORECAST_STATUS}.startsWith('Computed')", 30)
    assert len(browser.run("[...document.querySelectorAll('#forecast-loss path.band')]")) == 2
    browser.run("document.querySelector('#forecast-best').click()")
    wait(browser, f"!{FORECAST_TEXT}.includes('Best schedule')", 30)
    assert browser.run(PREDICTION) == before
    # another schedule, without the fields that it does not have
    set_field(browser, "schedule", "constant")
    wait(browser, f"{PREDICTION} !== {before!r}", 10)
    assert browser.run("document.querySelector('#forecast-decay').parentElement.hidden")
    # errors of the server and of the page are one line of text
    set_field(browser, "peak", "high")
    wait(browser, f"{FORECAST_STATUS} === \"peak = 'high': give a number above 0\"", 10)
    set_field(browser, "peak", "")
    wait(browser, f"{FORECAST_STATUS}.startsWith('Computed')", 10)
    drop_files(browser, {"other.csv": "time,loss\n1,2\n"})
    wait(browser, f"{FORECAST_STATUS}.includes('has no column step (it has time, loss)')", 10)
    browser.run("document.querySelector('[aria-label=\"Remove other.csv\"]').click()")
    wait(browser, f"{FORECAST_STATUS}.startsWith('Computed')", 30)
    drop_files(browser, {"long.csv": "x" * (MAX_BODY + 1)})
    wait(browser, f"{FORECAST_STATUS}.startsWith('The files have 4.0 MB: the limit is 4 MB')", 10)
    assert cut_off(browser, ("forecast-loss", "forecast-rate")) == []
    # the browser logs the two answers with status 400
    assert [text for text in browser.complaints if "400" not in text] == []


def test_the_keyboard_ends_it_while_it_compiles(browser):
    with interruptible() as process:
        assert process.stdout is not None
        browser.open(process.stdout.readline().split()[2])
        wait(browser, f"{STATUS}.startsWith('Compiling')", 20)
        time.sleep(6)
        os.kill(process.pid, signal.SIGINT)
        remainder, wrong = process.communicate(timeout=60)
    assert (process.returncode, remainder, wrong) == (0, "explorer ended\n", "")


def test_the_documentation_has_it_without_a_server(browser, tmp_path):
    browser.size(1280)
    page = (Path(FOLDER or "").resolve() / "explorer.html").as_uri()
    browser.open(page)
    wait_until_settled(browser, 10)
    assert cut_off(browser) == []
    before = browser.run(RISK)
    press(browser, "lr", "ArrowRight")
    wait_until_settled(browser, 10)
    assert browser.run(RISK) != before
    link = browser.run("document.querySelector('#explorer-link').href")
    assert link.startswith(page)
    after = browser.run(RISK)
    visit(browser, link)
    wait_until_settled(browser, 10)
    assert browser.run(RISK) == after
    # every place of the sliders has its curves
    for name, values in GRID.items():
        if len(values) > 1 and name != "activation":
            for _ in values:
                press(browser, name, "ArrowLeft")
                assert browser.run(STATUS).startswith("Computed")
    text = browser.run(
        "fetch(document.querySelector('#explorer-toml').href).then((answer) => answer.text())"
    )
    lowest = {name: min(values) for name, values in GRID.items() if name != "activation"}
    assert tomllib.loads(text) == tomllib.loads(export_text(State(**lowest), "toml"))
    assert browser.run("document.querySelector('#explorer-pdf').hidden")
    assert browser.run("document.querySelector('#forecast') === null")  # it needs the server
    browser.run("location.hash = 'lr=0.123'")
    wait(browser, f"{STATUS}.startsWith('lr = 0.123: this page has only')", 10)
    assert browser.complaints == []
