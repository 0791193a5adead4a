"""JupyterLab, and a headless Chromium as its browser."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from end_to_end.place import Place
from end_to_end.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def jupyter_lab(place: Place, folder: Path) -> Iterator[str]:
    """Yields the address of this user's JupyterLab, which shows a folder."""
    keep_news_away(place)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    settings = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": "0",
        "ServerApp.root_dir": str(folder),
        "IdentityProvider.token": "",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        # Tests can then use the application in scripts of a page.
        "LabApp.expose_app_in_browser": "True",
        "JupyterNotebookApp.expose_app_in_browser": "True",
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    with (place.folder / "lab.log").open("wb") as log:
        server = subprocess.Popen([*command, *options], env=place.environment, stdout=log, stderr=log)
    try:
        yield wait_until(lambda: address_of(place), "JupyterLab listens")
    finally:
        server.terminate()
        server.wait(timeout=60)


def keep_news_away(place: Place) -> None:
    """Prevents the question about news, which would cover the page."""
    folder = place.folder / "home/.jupyter/lab/user-settings/@jupyterlab/apputils-extension"
    folder.mkdir(parents=True)
    (folder / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')


def address_of(place: Place) -> str | None:
    """The address of the server once it listens, which is later than it reports the address."""
    for path in (place.folder / "run/jupyter").glob("jpserver-*.json"):
        try:
            address = str(json.loads(path.read_text())["url"])
            parts = urlsplit(address)
            socket.create_connection((parts.hostname, parts.port)).close()
        except (OSError, ValueError, KeyError):
            return None
        return address
    return None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Has one timeout for all tests of the process, which is where playwright keeps it."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser) -> Iterator[Page]:
    """A page of a new visitor. At the end it is closed, with everything else that the test opened."""
    page = browser.new_page(viewport={"width": 1280, "height": 1180})
    page.set_default_timeout(60_000)
    try:
        yield page
    finally:
        for context in browser.contexts:
            context.close()


@contextmanager
def browser_page() -> Iterator[Page]:
    with chromium() as browser, page_of(browser) as page:
        yield page
