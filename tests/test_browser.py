"""In JupyterLab, as a student sees it: pick the kernel, run an example, look at the service's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from end_to_end import Place
from end_to_end.lab import browser_page, jupyter_lab
from end_to_end.service import run_binary
from playwright.sync_api import Page, expect

EXAMPLE = Path(__file__).parent.parent / "examples/notebooks/02-train-a-model.ipynb"
PATIENCE = 90_000
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def address(place: Place) -> Iterator[str]:
    """A Lab whose copy of the example was last saved with the plain kernel."""
    folder = place.folder / "notebooks"
    folder.mkdir()
    notebook = nbformat.read(EXAMPLE, as_version=4)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(notebook, folder / "example.ipynb")
    with jupyter_lab(place, folder) as address:
        yield address


@pytest.fixture
def page() -> Iterator[Page]:
    with browser_page() as page:
        yield page


def test_the_launcher_offers_the_kernel(address: str, page: Page, artefacts: Path) -> None:
    page.goto(f"{address}lab?reset")
    card = page.locator('.jp-LauncherCard[title="Python (shared GPU)"]').first
    expect(card).to_be_visible()
    # The logo is there, not only the first letter.
    expect(card.locator("img")).to_have_js_property("naturalWidth", 64)
    page.screenshot(path=artefacts / "launcher.png")


def test_pick_the_kernel_and_run_the_example(address: str, page: Page, artefacts: Path) -> None:
    page.goto(f"{address}lab/tree/example.ipynb?reset")
    kernel_button = page.locator(".jp-Toolbar-kernelName")
    expect(kernel_button).to_contain_text("Python 3 (ipykernel)")
    kernel_button.click()
    dialog = page.locator(".jp-Dialog")
    dialog.locator("select").select_option(label="Python (shared GPU)")
    dialog.locator(".jp-mod-accept").click()
    expect(kernel_button).to_contain_text("Python (shared GPU)")
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")

    run_all(page)
    outputs = page.locator(".jp-OutputArea-output")
    expect(outputs.filter(has_text="it improved from")).to_be_visible(timeout=PATIENCE)
    expect(outputs.filter(has_text="GPU: ")).to_have_count(2)
    expect(page.locator('[data-mime-type="application/vnd.jupyter.error"]')).to_have_count(0)
    page.screenshot(path=artefacts / "example.png", full_page=True)


def test_the_dashboard_lists_the_cells(place: Place, page: Page, artefacts: Path) -> None:
    """The service that the cells above started, by the address that `baton status` says."""
    status = run_binary(place, "status").stdout
    (dashboard,) = (word for word in status.split() if word.startswith("http://127.0.0.1:"))
    page.goto(dashboard)
    expect(page.get_by_text("cpu-0").first).to_be_visible()
    expect(page.get_by_text("example.ipynb").first).to_be_visible()
    page.screenshot(path=artefacts / "dashboard.png", full_page=True)


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def expect_kernel(page: Page, state: str) -> None:
    """As the status bar says it."""
    expect(page.get_by_text(f"Python (shared GPU) | {state}")).to_be_visible()


def test_a_reload_while_a_gpu_cell_runs(address: str, page: Page, place: Place, artefacts: Path) -> None:
    """The cell goes on, for the reloaded page and for a second tab; its slider moves, and a callback answers."""
    folder, go = place.folder / "notebooks", place.work / "go"
    cells = [
        "%%gpu\nimport os, time\nimport ipywidgets as widgets\nprint('begun', flush=True)\n"
        "slider = widgets.IntSlider(max=10)\nlabel = widgets.Label('still')\n"
        "slider.observe(lambda change: setattr(label, 'value', f'at {slider.value}'), 'value')\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)",
        "widgets.VBox([slider, label])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "baton", "display_name": "Python (shared GPU)", "language": "python"}
    nbformat.write(notebook, folder / "reload.ipynb")
    page.goto(f"{address}lab/tree/reload.ipynb?reset")
    expect_kernel(page, "Idle")
    page.locator(".jp-CodeCell").first.click()
    page.keyboard.press("Control+Enter")
    expect(page.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    page.keyboard.press("Control+s")
    expect(page.locator(".jp-mod-current.jp-mod-dirty")).to_have_count(0)
    page.reload()
    expect(page.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    browser = page.context.browser
    assert browser is not None
    second = browser.new_page()
    second.set_default_timeout(PATIENCE)
    second.goto(f"{address}lab/workspaces/second/tree/reload.ipynb")
    expect(second.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    go.touch()
    for tab in (page, second):
        expect_kernel(tab, "Idle")
        tab.locator(".jp-CodeCell").last.click()
        tab.keyboard.press("Control+Enter")
        handle = tab.locator(".jp-CodeCell").last.locator(".noUi-handle")
        expect(handle).to_be_visible()
        handle.press("ArrowRight")
    expect(page.locator(".jp-CodeCell").last.get_by_text("at 2")).to_be_visible()
    page.screenshot(path=artefacts / "reload.png", full_page=True)
    second.screenshot(path=artefacts / "second-tab.png", full_page=True)
