"""The dashboard in a browser, with a full class: readable for everyone, live, and usable without a mouse."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from end_to_end.classroom import Classroom, classroom
from end_to_end.lab import chromium
from end_to_end.waiting import wait_until
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

PREFIX = "/services/baton"
PAGES = ("", "people", "workers", "capacity", "courses", "course?name=ml101", "audit")


@pytest.fixture(scope="module")
def room() -> Iterator[Classroom]:
    """Below a path prefix that a proxy in front would pass on."""
    with classroom(PREFIX) as room:
        yield room


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def sign_in(context: BrowserContext, room: Classroom, name: str) -> Page:
    """Fails later if the page logs errors, or requests another host."""
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.extend([request.url] * (not request.url.startswith(room.address))))
    page.goto(room.page(name))
    expect(page).to_have_url(room.address)
    return page


complaints: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_wrong() -> Iterator[None]:
    complaints.clear()
    yield
    assert not complaints


@pytest.fixture
def tia(browser: Browser, room: Classroom) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield sign_in(context, room, "tia")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_every_page(browser: Browser, room: Classroom, scheme: str, artefacts: Path) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = sign_in(context, room, "root")
    job = page.locator("#queue a").first.get_attribute("href")
    running = page.locator(".slot a").first.get_attribute("href")
    ended = page.locator("#finished tr", has_text="raised an error").locator("a").first.get_attribute("href")
    for number, address in enumerate((*PAGES, job, running, ended)):
        page.goto(room.address + (address or ""))
        found = Axe().run(page)
        page.screenshot(path=artefacts / f"dashboard-{number}-{scheme}.png")
        assert found.violations_count == 0, f"{address}: {found.generate_report()}"
    context.close()


def test_a_narrow_screen_scrolls_only_its_tables(browser: Browser, room: Classroom) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = sign_in(context, room, "root")
    for address in PAGES:
        page.goto(room.address + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, address
    context.close()


def test_the_week_has_each_lesson_with_its_waits(tia: Page, artefacts: Path) -> None:
    tia.get_by_role("link", name="Capacity").click()
    expect(tia.locator(".week > li")).to_have_count(7)
    expect(tia.locator(".week > li[aria-current]")).to_have_count(1)
    expect(tia.locator(".week > li > div")).to_have_count(4)
    monday = tia.locator(".week > li").first
    expect(monday).to_contain_text(re.compile(r"17:00.18:30 ml101"))
    expect(monday).to_contain_text("60 people")
    expect(monday).to_contain_text("Predicted: ")
    # The measured waits appear once the lesson has ended, which may take a minute.
    expect(monday.locator("div", has_text="00:00")).to_contain_text("Measured: ", timeout=150_000)
    tia.locator(".week").screenshot(path=artefacts / "week.png")


def test_it_says_who_runs_who_waits_and_why(tia: Page) -> None:
    expect(tia.locator("#now")).to_contain_text("8 cells run, 46 cells wait, the longest for ")
    expect(tia.locator("#now")).to_contain_text(", and 6 are held back.")
    expect(tia.locator("#now")).to_contain_text("3 workers are connected, 0 of 8 slots free, 1 drained.")
    gpu = tia.locator(".worker", has=tia.get_by_role("heading", name="gpu-1"))
    expect(gpu).to_contain_text("4 of 4 slots busy")
    expect(gpu.locator(".slot")).to_have_count(4)
    expect(tia.locator("#machines")).to_contain_text("a person in another course")
    expect(gpu).to_contain_text("GPU 83 % busy")
    expect(gpu).to_contain_text("GPU memory 104 GiB of 141 GiB")
    busy, *memories = gpu.locator(".memory svg").all()
    by_session = busy.get_attribute("aria-label") or ""
    assert by_session.startswith("GPU busy by session: ")
    assert by_session.endswith(": 60 %, everything else: 23 %")
    for memory, name in zip(memories, ("GPU memory", "Memory"), strict=True):
        label = memory.get_attribute("aria-label") or ""
        assert label.startswith(f"{name} by session: ")
        assert label.count(" GiB") == 5
        assert "everything else: " in label
    expect(tia.locator("#queue")).to_contain_text("cells of other people")
    drained = tia.locator(".worker", has=tia.get_by_role("heading", name="gpu-3"))
    expect(drained).to_contain_text("A fan is being replaced")
    expect(drained.locator(".slot")).to_have_text(["closed"] * 4)
    tia.get_by_role("link", name="People").click()
    expect(tia.get_by_role("row")).not_to_have_count(0)
    with tia.expect_download() as download:
        tia.get_by_role("link", name="Download CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "day,person,course,gpu_seconds,cells"
    assert len(lines) > 50
    assert all(',"ml101",' in line for line in lines[1:])


def seconds_of(text: str) -> int:
    """The number of seconds in `2 h 5 min` or `7 s`."""
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+) (h|min|s)\b", text))


def test_times_are_those_that_the_api_tells(tia: Page, room: Classroom) -> None:
    """A class whose cells run and wait for minutes; the times are computed here from the API's answers."""
    jobs = room.ask("root", "/v1/jobs?state=unfinished&limit=500")
    now = time.time() * 1000
    free_to_run = [job for job in jobs if job["waiting"] and job["waiting"]["rule"] not in ("held", "course_paused")]
    longest = max(now - job["submitted_ms"] for job in free_to_run)
    assert longest < max(now - job["submitted_ms"] for job in jobs if job["waiting"]), "a paused cell waits longest"
    expect(tia.locator("#now")).to_contain_text(
        re.compile(rf"the longest for ({int(longest // 60_000)}|{int(longest // 60_000) + 1}) min")
    )

    used: dict[str, float] = {}
    for row in room.ask("root", "/v1/usage?course=ml101&limit=500"):
        used[row["person"]] = used.get(row["person"], 0) + row["run_ms"]
    running = [job for job in jobs if job["state"] == "started" and job["course"] == "ml101"]
    for job in running:
        used[job["person"]] = used.get(job["person"], 0) + time.time() * 1000 - job["started_ms"]
    tia.goto(room.address + "people?days=366")
    table = tia.get_by_role("region", name="Use by person")
    shown = {
        row.locator("th").inner_text(): row.locator("td").nth(1).inner_text() for row in table.locator("tbody tr").all()
    }
    assert shown.keys() == used.keys()
    for person, milliseconds in used.items():
        assert abs(seconds_of(shown[person]) - milliseconds / 1000) < 60, person


def test_a_ta_acts_by_keyboard_and_others_see_it_at_once(tia: Page, browser: Browser, room: Classroom) -> None:
    context = browser.new_context()
    watcher = sign_in(context, room, "root")
    person = tia.locator("#queue tbody th").nth(20).inner_text()
    link = tia.locator("#queue tr", has=tia.get_by_role("rowheader", name=person, exact=True)).locator("a")
    watched = watcher.locator("#queue tr", has=watcher.get_by_role("rowheader", name=person, exact=True))
    watched.locator("a").focus()

    tia.keyboard.press("Tab")
    expect(tia.get_by_role("link", name="Skip to the content")).to_be_focused()
    tia.keyboard.press("Enter")
    link.focus()
    tia.keyboard.press("Enter")
    expect(tia.get_by_role("heading", level=1)).to_contain_text(".ipynb")
    tia.get_by_role("textbox", name="Reason").focus()
    tia.keyboard.type("Come to room 5")
    for _ in range(2):
        tia.keyboard.press("Tab")
    expect(tia.get_by_role("button", name="Hold back")).to_be_focused()
    tia.keyboard.press("Enter")
    expect(tia.locator("#job")).to_contain_text("staff hold it back: Come to room 5")
    expect(watched).to_contain_text("staff hold it back: Come to room 5")
    # The focus is still on the same element, although it moved.
    expect(watched.locator("a")).to_be_focused()

    watcher.get_by_role("button", name="Pause updates").click()
    tia.get_by_role("button", name="Release").click()
    expect(tia.locator("#job")).not_to_contain_text("hold it back")
    tia.get_by_role("textbox", name="Reason").fill("lost its worker")
    tia.get_by_role("button", name="Move to the front").click()
    expect(tia.locator("#job")).to_contain_text("Waiting: 1st in line")
    expect(watched).to_contain_text("staff hold it back")
    watcher.get_by_role("button", name="Pause updates").click()
    expect(watcher.locator("#queue tbody th").first).to_have_text(person)
    context.close()
    tia.get_by_role("link", name="Audit").click()
    expect(tia.get_by_role("row", name="moved to the front").first).to_contain_text("lost its worker")


def test_scripts_that_arrive_late_do_their_part(tia: Page, room: Classroom) -> None:
    def late(route: Route) -> None:
        tia.wait_for_function("window.htmx")
        # Everything that htmx has postponed is done.
        tia.evaluate("new Promise((done) => setTimeout(done))")
        route.continue_()

    tia.route("**/hx-sse-*.js", late)
    with tia.expect_request(lambda request: "live?of=now" in request.url):
        tia.goto(room.address, wait_until="commit")


def test_times_are_in_the_zone_of_the_courses_or_else_of_the_browser(browser: Browser, room: Classroom) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = sign_in(context, room, "tia")
    page.goto(room.address)
    ended = page.locator("#finished time").first
    expect(ended).to_have_attribute("title", re.compile(" UTC$"))
    written, hint = ended.inner_text(), ended.get_attribute("title")
    utc = datetime.strptime(str(hint), "%Y-%m-%d %H:%M:%S UTC")
    assert written == f"{utc:%H:%M}"
    courses = room.folder / "courses.toml"
    with_zone = courses.read_text()
    courses.write_text(with_zone.replace('time_zone = "UTC"\n', ""))
    try:
        wait_until(lambda: page.reload() and ended.get_attribute("title") != hint, "the broker has read its courses")
        local = utc + timedelta(hours=5, minutes=30)
        expect(ended).to_have_attribute("title", f"{local} GMT+5:30")
        expect(ended).to_have_text(f"{local:%H:%M}")
        # Also after an update of a page that stays open.
        ended.evaluate("time => time.textContent = 'as the server wrote it'")
        expect(ended).to_have_text(f"{local:%H:%M}")
    finally:
        courses.write_text(with_zone)
        context.close()


def test_it_works_without_scripts(browser: Browser, room: Classroom) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = sign_in(context, room, "root")
    expect(page.locator("#queue tbody tr")).to_have_count(52)
    expect(page.get_by_role("button", name="Pause updates")).to_be_hidden()
    page.get_by_role("link", name="Courses").click()
    page.get_by_role("link", name="vision").click()
    page.get_by_role("textbox", name="Message").fill("Solutions come on Friday")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Solutions come on Friday")
    page.get_by_role("link", name="Workers").click()
    page.get_by_role("button", name="Resume gpu-3").click()
    expect(page.locator("#workers")).not_to_contain_text("A fan is being replaced")
    page.get_by_role("link", name="Now").click()

    def shows_the_cells_that_run() -> bool:
        page.reload()
        return "12 cells run" in (page.locator("#now").text_content() or "")

    wait_until(shows_the_cells_that_run, "the cells that were queued for gpu-3 run")
    context.close()


def test_a_student_sees_their_own(browser: Browser, room: Classroom) -> None:
    context = browser.new_context()
    page = sign_in(context, room, "Ada")
    expect(page.locator(".slot a")).to_have_count(1)
    page.locator(".slot a").click()
    expect(page.locator("#output")).to_contain_text("epoch 5: loss 0.200")
    expect(page.get_by_text("model.fit(images, labels, epochs=20)")).to_be_visible()
    expect(page.get_by_role("button", name="Hold back")).to_have_count(0)
    context.close()


def test_an_open_page_goes_on_after_a_restart_of_the_broker(browser: Browser, room: Classroom) -> None:
    context = browser.new_context()
    page = sign_in(context, room, "root")
    room.restart_broker()
    room.run("drain", "gpu-1", "--reason", "A new driver")
    expect(page.locator("#machines")).to_contain_text("A new driver")
    # The browser reports that the server was unreachable, and so does htmx if it asked or listened meanwhile.
    is_expected = re.compile("net::ERR_|htmx:sse:error: (Failed to fetch|network error)").search
    complaints[:] = [text for text in complaints if not is_expected(text)]
    context.close()
