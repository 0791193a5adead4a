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

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
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
