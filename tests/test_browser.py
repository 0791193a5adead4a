"""A student's steps in JupyterLab and Notebook: select the kernel, run an example, look at the service's page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from end_to_end import Place, wait_until
from end_to_end.lab import chromium, jupyter_lab, page_of
from end_to_end.service import run_binary
from playwright.sync_api import Browser, Locator, Page, Route, expect

EXAMPLE = Path(__file__).parent.parent / "examples/notebooks/02-train-a-model.ipynb"
PATIENCE = 90_000


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with page_of(browser) as page:
        yield page


def test_the_launcher_offers_the_kernel(address: str, page: Page, artefacts: Path) -> None:
    page.goto(f"{address}lab?reset")
    card = page.locator('.jp-LauncherCard[title="Python (shared GPU)"]').first
    expect(card).to_be_visible()
    # The logo is shown, not only the first letter.
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
    expect_kernel(page, "idle")

    run_all(page)
    outputs = page.locator(".jp-OutputArea-output")
    expect(outputs.filter(has_text="it improved from")).to_be_visible(timeout=PATIENCE)
    expect(outputs.filter(has_text=re.compile("[CG]PU: "))).to_have_count(2)
    expect(page.locator('[data-mime-type="application/vnd.jupyter.error"]')).to_have_count(0)
    page.screenshot(path=artefacts / "example.png", full_page=True)


def test_the_dashboard_lists_the_cells(place: Place, page: Page, artefacts: Path) -> None:
    """The service that the cells above started, at the address that `baton status` prints."""
    status = run_binary(place, "status").stdout
    (dashboard,) = (word for word in status.split() if word.startswith("http://127.0.0.1:"))
    page.goto(dashboard)
    expect(page.get_by_text("cpu-0").first).to_be_visible()
    expect(page.get_by_text("example.ipynb").first).to_be_visible()
    page.screenshot(path=artefacts / "dashboard.png", full_page=True)


def test_a_notebook_is_run_in_the_background(address: str, page: Page, place: Place, artefacts: Path) -> None:
    """Its own kernel, a plain one, is busy; the button saves the notebook first, and the result is another notebook."""
    cells = ["import time\ntime.sleep(600)", "print('from', 'the job')"]
    write_notebook(place, "whole.ipynb", cells)
    open_notebook(page, address, "whole.ipynb")
    run_cell(page, 0)
    expect_kernel(page, "busy")
    page.locator(".jp-CodeCell").first.locator(".cm-content").fill("x = 6 * 7\nx")
    page.get_by_role("button", name="Run on GPU in the Background").click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("whole.ipynb runs as job")
    expect(dialog).to_contain_text("whole.out.ipynb")
    page.screenshot(path=artefacts / "whole.png")
    (job,) = re.findall(r"runs as job ([0-9a-f]{32})", dialog.inner_text())
    result = place.folder / "notebooks/whole.out.ipynb"
    followed = run_binary(place, "logs", "--follow", job)
    assert followed.returncode == 0, followed.stderr
    assert "from the job" in followed.stdout
    assert nbformat.read(result, as_version=4).cells[0].outputs[0].data["text/plain"] == "42"
    dialog.get_by_role("button", name="Open Result").click()
    expect(page.get_by_role("tab", name="whole.out.ipynb")).to_be_visible()
    expect(page.locator(".jp-OutputArea-output").get_by_text("from the job")).to_be_visible()
    page.screenshot(path=artefacts / "whole-result.png")
    page.goto(f"{address}notebooks/whole.out.ipynb")
    expect(page.get_by_role("button", name="Run on GPU in the Background")).to_be_visible()
    # The kernel that started it has ended.
    wait_until(
        lambda: not any("in the background" in one["path"] for one in sessions(address)), "only those of notebooks"
    )


def test_a_notebook_that_cannot_run_in_the_background_says_why(
    address: str, page: Page, place: Place, artefacts: Path
) -> None:
    write_notebook(place, "gone.ipynb", ["1"])
    open_notebook(page, address, "gone.ipynb")
    page.locator(".jp-CodeCell").first.click()
    save(page)
    # Jupyter's server finds no folder if a file of it disappears while it lists it.
    lists_no_folder = page.get_by_role("dialog").filter(has_text="Directory not found")
    page.add_locator_handler(lists_no_folder, lambda shown: shown.get_by_role("button").last.click())
    (place.folder / "notebooks/gone.ipynb").unlink()
    page.get_by_role("menuitem", name="View", exact=True).click()
    page.get_by_role("menuitem", name="Activate Command Palette").click()
    page.locator(".lm-CommandPalette-input").fill("Run on GPU in the Background")
    page.locator(".lm-CommandPalette-item").first.click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("The notebook was not started in the background")
    expect(dialog).to_contain_text("has no gone.ipynb")
    page.screenshot(path=artefacts / "whole-error.png")
    dialog.get_by_role("button").last.click()


def sessions(address: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{address}api/sessions", timeout=60).json()
    return found


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def test_a_reload_while_a_gpu_cell_runs(
    address: str, browser: Browser, page: Page, place: Place, artefacts: Path
) -> None:
    """The cell continues, for the reloaded page and for a second tab; its slider moves, and a callback answers.

    JupyterLab requests the widgets once the kernel is idle again, and with any kernel shows an error for widgets that
    it meets before that. So a tab first shows the cell's output again.
    """
    go = place.signs / "go"
    cells = [
        "%%gpu\nimport os, time\nimport ipywidgets as widgets\n"
        "slider = widgets.IntSlider(max=10)\nlabel = widgets.Label('still')\n"
        "slider.observe(lambda change: setattr(label, 'value', f'at {slider.value}'), 'value')\n"
        "display(slider)\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)",
        "widgets.VBox([slider, label])",
    ]
    write_notebook(place, "reload.ipynb", cells)
    open_notebook(page, address, "reload.ipynb")
    run_cell(page, 0)
    expect(page.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    save(page)
    page.reload()
    expect(page.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    second = browser.new_page()
    second.set_default_timeout(PATIENCE)
    second.goto(f"{address}lab/workspaces/second/tree/reload.ipynb")
    expect(second.locator(".jp-OutputArea-output").get_by_text("begun")).to_be_visible()
    go.touch()
    for tab, before in ((page, "still"), (second, "at 1")):
        expect_kernel(tab, "idle")
        expect(tab.locator(".jp-CodeCell").first.locator(".noUi-handle")).to_be_visible()
        tab.locator(".jp-CodeCell").last.click()
        tab.evaluate("jupyterapp.commands.execute('notebook:run-cell').then(() => 0)")
        handle = tab.locator(".jp-CodeCell").last.locator(".noUi-handle")
        expect(handle).to_be_visible()
        expect(tab.locator(".jp-CodeCell").last.get_by_text(before)).to_be_visible()
        handle.press("ArrowRight")
    expect(page.locator(".jp-CodeCell").last.get_by_text("at 2")).to_be_visible()
    page.screenshot(path=artefacts / "reload.png", full_page=True)
    second.screenshot(path=artefacts / "second-tab.png", full_page=True)


def test_a_tab_that_was_closed_while_gpu_cells_ran(
    address: str, browser: Browser, page: Page, place: Place, artefacts: Path
) -> None:
    """If the page is opened again while the cell runs, it follows the cell; after the cell's end, it shows the same
    output.

    Output that was missed is under its cell with its number, and in the notebook's file. That includes the next cell,
    which was waiting when the tab was closed.
    """
    shown, go, end = (place.signs / f"closed-{name}" for name in ("shown", "go", "end"))
    cells = [
        "%%gpu\nimport os, time\nprint('before', flush=True)\n"
        f"while not os.path.exists({str(shown)!r}):\n    time.sleep(0.05)\n"
        f"print('unseen', flush=True)\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
        f"print('after', flush=True)\nwhile not os.path.exists({str(end)!r}):\n    time.sleep(0.05)\n'value'",
        "%%gpu\nprint('second')\n1 / 0",
    ]
    write_notebook(place, "closed.ipynb", cells)
    open_notebook(page, address, "closed.ipynb", at="lab/workspaces/closed/tree/{}")
    first = run_cell(page, 0)
    expect(first.get_by_text("before")).to_be_visible()
    run_cell(page, 1)
    close(page)
    shown.touch()

    second = browser.new_page(viewport={"width": 1280, "height": 1180})
    second.set_default_timeout(PATIENCE)
    second.goto(f"{address}lab/workspaces/closed/tree/closed.ipynb")
    expect(prompt(second, 0)).to_have_text("[*]:")
    go.touch()
    expect(output_of(second, 0)).to_contain_text("after")
    end.touch()
    check_closed_cells(second)
    second.screenshot(path=artefacts / "closed-tab.png", full_page=True)

    def saved_cells() -> list[nbformat.NotebookNode]:
        """Those of the file once it has the output. While it is being written, it is incomplete."""
        text = saved(place, "closed.ipynb")
        with suppress(ValueError):
            return nbformat.reads(text, as_version=4).cells if "ZeroDivisionError" in text else []
        return []

    cells_saved = wait_until(saved_cells, "the output is in the file")
    assert [cell.execution_count for cell in cells_saved] == [1, 2]
    second.close()

    third = browser.new_page()
    third.set_default_timeout(PATIENCE)
    third.goto(f"{address}lab/workspaces/closed/tree/closed.ipynb")
    check_closed_cells(third)


def test_a_background_cell_shows_its_output_below_itself(
    address: str, page: Page, place: Place, artefacts: Path
) -> None:
    """While other cells run, and on a page that was reopened in between."""
    more, end = place.signs / "more", place.signs / "end"
    wait = "while not os.path.exists({!r}):\n    time.sleep(0.05)\n"
    cells = [
        "%%gpu --background job\nimport os, time\nprint('begun', flush=True)\n"
        f"{wait.format(str(more))}print('more', flush=True)\n{wait.format(str(end))}made = 42\nprint('ended')",
        "'meanwhile'",
        "made + 1",
    ]
    write_notebook(place, "background.ipynb", cells)
    open_notebook(page, address, "background.ipynb")
    run_cell(page, 0)
    expect(output_of(page, 0)).to_contain_text("begun")
    run_cell(page, 1)
    expect(output_of(page, 1)).to_contain_text("meanwhile")
    more.touch()
    expect(output_of(page, 0)).to_contain_text("more")
    page.screenshot(path=artefacts / "background.png", full_page=True)
    save(page)
    page.reload()
    expect_connected(page, address, "background.ipynb")
    expect(output_of(page, 0)).to_contain_text("more")
    end.touch()
    run_cell(page, 2)
    expect(output_of(page, 2)).to_contain_text("43")
    expect(output_of(page, 0)).to_contain_text("ended")
    page.screenshot(path=artefacts / "background-again.png", full_page=True)


def test_a_cell_that_is_run_before_a_reloaded_page_is_connected(address: str, page: Page, place: Place) -> None:
    """It waits for the kernel that has the variables. JupyterLab alone would start another and end the first."""
    write_notebook(place, "early.ipynb", ["made = 42", "made + 1"])
    open_notebook(page, address, "early.ipynb")
    run_cell(page, 0)
    expect(prompt(page, 0)).to_have_text("[1]:")
    save(page)
    with sessions_unknown(page):
        page.reload()
        page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
        page.evaluate("jupyterapp.commands.execute('notebook:run-cell'), 0")
    expect(output_of(page, 1)).to_contain_text("43")


def test_a_page_that_connects_late_does_not_save_what_another_has_saved(
    address: str, browser: Browser, page: Page, place: Place
) -> None:
    """JupyterLab would ask which version to keep."""
    go = place.signs / "late"
    cells = [f"%%gpu\nimport os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n6 * 7", "1 + 1"]
    write_notebook(place, "late.ipynb", cells)
    open_notebook(page, address, "late.ipynb")
    run_cell(page, 0)
    save(page)
    page.reload()
    expect(prompt(page, 0)).to_have_text("[*]:")
    second = browser.new_page()
    second.set_default_timeout(PATIENCE)
    with sessions_unknown(second):
        second.goto(f"{address}lab/workspaces/late/tree/late.ipynb")
        expect(second.locator(".jp-CodeCell")).to_have_count(2)
        go.touch()
        wait_until(lambda: '"42"' in saved(place, "late.ipynb"), "the first page has saved the output")
    with second.expect_response(re.compile(r"/api/contents/late\.ipynb\?content=0")):
        expect(output_of(second, 0)).to_contain_text("42")
    expect(run_cell(second, 1)).to_contain_text("2")
    expect(second.locator(".jp-Dialog")).to_have_count(0)


@contextmanager
def sessions_unknown(page: Page) -> Iterator[None]:
    """Until the block ends, a page that loads a notebook is not told which kernel it has."""
    holds, loading = True, False
    held: list[Route] = []

    def requested(route: Route) -> None:
        nonlocal loading
        loading = loading or "/api/contents/" in route.request.url
        if holds and loading and "/api/sessions" in route.request.url and route.request.method == "GET":
            held.append(route)
        else:
            route.continue_()

    page.route(re.compile(r"/api/(sessions|contents/.*\.ipynb)\?"), requested)
    yield
    holds = False
    for route in held:
        route.continue_()


def check_closed_cells(page: Page) -> None:
    expect(prompt(page, 1)).to_have_text("[2]:")
    expect(prompt(page, 0)).to_have_text("[1]:")
    expect(output_of(page, 0)).to_contain_text(re.compile(r"^before\s*unseen\s*after.*'value'.* cpu-\d+", re.DOTALL))
    expect(output_of(page, 0).get_by_text("before")).to_have_count(1)
    expect(output_of(page, 1)).to_contain_text(re.compile("second.*ZeroDivisionError", re.DOTALL))


def prompt(page: Page, number: int) -> Locator:
    return page.locator(".jp-CodeCell").nth(number).locator(".jp-InputPrompt")


def output_of(page: Page, number: int) -> Locator:
    return page.locator(".jp-CodeCell").nth(number).locator(".jp-OutputArea")


def saved(place: Place, notebook: str) -> str:
    return (place.folder / "notebooks" / notebook).read_text()


@pytest.mark.parametrize("front", ["lab/workspaces/lab/tree/{}", "notebooks/{}"], ids=["lab", "notebook"])
def test_the_toolbar_widgets_and_the_debugger(
    address: str, page: Page, place: Place, artefacts: Path, front: str, request: pytest.FixtureRequest
) -> None:
    """Notebook 7 consists of the same parts, so both are tested in the same way."""
    name = request.node.callspec.id
    cells = [
        "%%gpu\nimport ipywidgets as widgets\nbutton, label = widgets.Button(), widgets.Label('still')\n"
        "button.on_click(lambda _: setattr(label, 'value', 'pressed'))\nwidgets.VBox([button, label])",
        "%%gpu\nprint('begun', flush=True)\nwhile True:\n    pass",
        "first = 1\nsecond = first + 1\nprint('second is', second)",
        "print('label' in dir())",
    ]
    write_notebook(place, f"{name}.ipynb", cells)
    open_notebook(page, address, f"{name}.ipynb", at=front)

    widget = run_cell(page, 0)
    widget.locator(".widget-button").click()
    expect(widget.get_by_text("pressed")).to_be_visible()

    endless = run_cell(page, 1)
    expect(endless.get_by_text("begun", exact=True)).to_be_visible()
    toolbar(page, "interrupt").click()
    expect(endless.get_by_text("KeyboardInterrupt").first).to_be_visible()
    expect_kernel(page, "idle")

    toolbar(page, "debugger-icon").click()
    gutter = page.locator(".jp-CodeCell").nth(2).locator(".cm-breakpoint-gutter .cm-gutterElement")
    gutter.filter(visible=True).nth(1).click()
    # It is shown once the kernel has it.
    expect(gutter.filter(visible=True).nth(1).locator(".cm-breakpoint-icon")).to_be_visible()
    stopped = run_cell(page, 2)
    go_on = page.get_by_role("button", name="Continue").first
    expect(go_on).to_be_visible()
    if name == "lab":  # Notebook hides the panel at first
        expect(page.locator(".jp-DebuggerCallstack-body").get_by_text("module")).to_be_visible()
        expect(page.locator(".jp-DebuggerVariables-body").get_by_text("first")).to_be_visible()
    page.screenshot(path=artefacts / f"debugger-{name}.png", full_page=True)
    expect(stopped.get_by_text("second is 2")).to_have_count(0)
    go_on.click()
    expect(stopped.get_by_text("second is 2")).to_be_visible()

    toolbar(page, "restart").click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect_kernel(page, "idle")
    expect(run_cell(page, 3).get_by_text("False", exact=True)).to_be_visible()


def write_notebook(place: Place, name: str, cells: list[str]) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "baton", "display_name": "Python (shared GPU)", "language": "python"}
    nbformat.write(notebook, place.folder / "notebooks" / name)


def open_notebook(page: Page, address: str, notebook: str, at: str = "lab/tree/{}?reset") -> None:
    page.goto(address + at.format(notebook))
    expect_connected(page, address, notebook)


def expect_connected(page: Page, address: str, notebook: str) -> None:
    """Until server and page agree, cells that are run are lost, or wait."""
    wait_until(lambda: has_kernel(address, notebook), "the page is connected to its kernel")
    expect_kernel(page, "idle")


def has_kernel(address: str, notebook: str) -> bool:
    kernels = [session["kernel"] for session in sessions(address) if session["path"] == notebook]
    return any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels)


def expect_kernel(page: Page, state: str) -> None:
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", state)


def run_cell(page: Page, number: int) -> Locator:
    """The output of a cell that has not run yet. Keys are lost while a page is being built."""
    cell = page.locator(".jp-CodeCell").nth(number)
    mode = "jupyterapp.shell.currentWidget.content.mode"

    def is_run() -> bool:
        """Whether the page has heard the keys: they end the editing at once."""
        cell.locator(".cm-content").click()
        if page.evaluate(mode) != "edit":
            return False
        page.keyboard.press("Control+Enter")
        return bool(page.evaluate(mode) == "command")

    wait_until(is_run, f"cell {number} is run")
    expect(cell.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[[\d*]+\]"))).to_be_visible()
    return cell.locator(".jp-OutputArea")


def save(page: Page) -> None:
    """Returns once the file is written. What a running cell shows from then on is not in it."""
    page.evaluate("jupyterapp.commands.execute('docmanager:save').then(() => 0)")


def close(page: Page) -> None:
    """Waits for the answer to a last request, because a page that closes at once may still be sending a cell."""
    kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    page.evaluate(f"{kernel}.requestDebug({{type: 'request', seq: 1, command: 'debugInfo'}}).done.then(() => 0)")
    page.close()


def toolbar(page: Page, item: str) -> Locator:
    return page.locator(f'.jp-NotebookPanel-toolbar [data-jp-item-name="{item}"] jp-button').first
