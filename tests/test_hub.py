"""With a real JupyterHub: students do nothing, staff sign in, and others get in nowhere."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgpack
import pytest
import websocket
from end_to_end.classroom import PROTOCOL_VERSION
from end_to_end.hub import SECRETS, Hub, Notebook, jupyter_hub
from end_to_end.lab import browser_page
from end_to_end.waiting import wait_until
from playwright.sync_api import expect

STAFF = "access:services!service=baton"
DOORS = ("/v1/jobs", "/v1/usage", "/v1/audit", "/metrics", "/", "/people.csv", "/live?of=now", "/status")


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with jupyter_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def ada(hub: Hub) -> Iterator[Notebook]:
    notebook = hub.notebook("ada")
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def server_token_of_ada(ada: Notebook) -> str:
    """Any of her code can read it like this."""
    return ada.run("import os\nprint(os.environ['JUPYTERHUB_API_TOKEN'])").strip()


@pytest.fixture(scope="module")
def token_of_ada(hub: Hub, server_token_of_ada: str) -> str:
    """The token that her notebook gets in exchange for it."""
    return exchange(hub, server_token_of_ada).json()["token"]


def exchange(hub: Hub, token: str, base: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post((base or hub.broker_url) + "/v1/notebook-token", headers=headers, timeout=120)


def ask(hub: Hub, token: str | None, path: str = "/v1/jobs", base: str | None = None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with (
        httpx.Client(timeout=120) as client,
        client.stream("GET", (base or hub.broker_url) + path, headers=headers) as answer,
    ):
        if answer.headers.get("content-type") != "text/event-stream":
            answer.read()
        return answer


def connect(hub: Hub, token: str | None, path: str) -> websocket.WebSocket:
    header = [] if token is None else [f"Authorization: Bearer {token}"]
    address = hub.broker_url.replace("http", "ws", 1) + path
    return websocket.create_connection(address, header=header, suppress_origin=True, timeout=120)


def opens_socket(hub: Hub, token: str | None, path: str) -> bool:
    try:
        connect(hub, token, path).close()
    except websocket.WebSocketBadStatusException as refused:
        if refused.status_code in (401, 403):
            return False
        raise
    return True


def test_a_students_cell_needs_no_set_up(hub: Hub, ada: Notebook, token_of_ada: str) -> None:
    """Through the Hub's proxy, because the notebook's machine may reach nothing else."""
    ada.run("values = [1]")
    assert ada.run("%%gpu\nvalues.append(2)\nprint('on the worker')") == "on the worker\n"
    assert ada.run("print(values)") == "[1, 2]\n"
    jobs = ask(hub, hub.broker_token).json()["items"]
    assert [(job["person"], job["course"]) for job in jobs] == [("ada", "ml101")]

    def sees_the_same() -> bool:
        hers = ask(hub, token_of_ada, base=hub.pages.rstrip("/"))
        return bool(hers.json()["items"] == ask(hub, hub.broker_token).json()["items"])

    # The broker may learn more about the cell after its end.
    wait_until(sees_the_same, "she sees her job")


def test_a_notebook_servers_token_is_exchanged_for_one_that_opens_the_broker_only(
    hub: Hub, ada: Notebook, server_token_of_ada: str
) -> None:
    given = exchange(hub, server_token_of_ada, base=hub.pages.rstrip("/"))
    assert given.is_success, given.text
    token = given.json()["token"]
    assert 0 < given.json()["expires_in_seconds"] <= 3600
    assert ask(hub, token).is_success
    # Her token opens nothing else, and the server's own token opens nothing here.
    api = f"{hub.url}/hub/api/user"
    for known, status in ((server_token_of_ada, 200), (token, 403)):
        assert httpx.get(api, headers={"Authorization": f"token {known}"}, timeout=120).status_code == status
    for path in DOORS:
        assert ask(hub, server_token_of_ada, path).status_code == 401, path
    assert not opens_socket(hub, server_token_of_ada, "/v1/proxy")
    assert httpx.post(f"{hub.broker_url}/sign-in", data={"token": server_token_of_ada}, timeout=120).status_code == 401
    assert httpx.post(f"{hub.broker_url}/sign-in", data={"token": token}, timeout=120).status_code == 401
    for other in (token, hub.new_token("ada", STAFF)["token"], SECRETS["baton"], hub.broker_token, "0" * 32):
        assert exchange(hub, other).status_code == 401
    # Neither the database of the broker nor its log contains it.
    ada.run("%%gpu\nprint(1)")
    for file in (hub.folder / "data").rglob("broker.db*"):
        assert server_token_of_ada.encode() not in file.read_bytes(), file
    assert server_token_of_ada not in (hub.folder / "broker.log").read_text()


def test_who_sees_whom(hub: Hub, ada: Notebook, token_of_ada: str) -> None:
    ada.run("%%gpu\nprint(1)")
    job = ask(hub, hub.broker_token).json()["items"][0]["job"]
    whole = {person: hub.new_token(person, STAFF)["token"] for person in ("eve", "tia", "root")}
    servers = {person: hub.new_token(person, f"access:servers!server={person}/")["token"] for person in ("tia", "root")}
    own = {person: exchange(hub, token).json()["token"] for person, token in servers.items()}
    table = [
        # The token, and its rights: the job, the course's settings, an admin page.
        (token_of_ada, 200, False, 403),
        (whole["eve"], 404, False, 403),
        (whole["tia"], 200, True, 403),
        (whole["root"], 200, True, 200),
        # Code in a notebook server of staff must not act as staff.
        (own["tia"], 404, False, 403),
        (own["root"], 404, False, 403),
    ]
    for row, (token, sees_job, steers, reads_metrics) in enumerate(table):
        assert ask(hub, token, f"/v1/jobs/{job}").status_code == sees_job, row
        assert ask(hub, token, "/metrics").status_code == reads_metrics, row
        change = {"json": {"message": "Hello"}, "headers": {"Authorization": f"Bearer {token}"}}
        changed = httpx.post(f"{hub.broker_url}/v1/courses/ml101", **change, timeout=120)
        assert changed.is_success == steers, (row, changed.text)
        assert opens_socket(hub, token, "/v1/proxy"), row
        assert not opens_socket(hub, token, "/v1/worker"), row


def test_wrong_and_foreign_tokens_get_in_nowhere(hub: Hub, token_of_ada: str) -> None:
    with hub.signed_in("kim") as browser:
        of_other_service = hub.token_of_service(browser, "other")
    withdrawn = hub.new_token("kim", STAFF)
    hub.api("DELETE", f"/users/kim/tokens/{withdrawn['id']}")
    attempts = {
        "none": None,
        "made up": "0" * 32,
        "nearly right": token_of_ada[:-1] + ("0" if token_of_ada[-1] != "0" else "1"),
        "cut": token_of_ada[:-1],
        "longer": token_of_ada + "0",
        "two": f"{token_of_ada} {token_of_ada}",
        "endless": "a" * 4000,
        "a path": "../../hub/api",
        "the service's own": SECRETS["baton"],
        "another service's own": SECRETS["other"],
        "what another service was given": of_other_service,
        "for the server of somebody else": hub.new_token("root", "access:servers!server=ada/")["token"],
        "for nothing here": hub.new_token("kim", "read:users:name!user=kim")["token"],
        "withdrawn": withdrawn["token"],
    }
    for what, token in attempts.items():
        for path in DOORS:
            assert ask(hub, token, path).status_code == 401, (what, path)
        for path in ("/v1/proxy", "/v1/worker"):
            assert not opens_socket(hub, token, path), (what, path)
        cookie = {"Cookie": f"baton_signed_in={token or ''}; baton_token={token or ''}"}
        assert httpx.get(f"{hub.broker_url}/status", headers=cookie, timeout=120).status_code == 401, what
        if token:
            refused = httpx.get(f"{hub.broker_url}/", params={"token": token}, timeout=120)
            assert refused.status_code in (401, 429), what
            assert "set-cookie" not in refused.headers, what
            assert exchange(hub, token).status_code == 401, what


def test_a_token_that_runs_out_or_is_withdrawn_closes_what_it_opened(hub: Hub) -> None:
    lasting = hub.new_token("root", STAFF, expires_in=3600)["token"]
    withdrawn = hub.new_token("root", STAFF)
    for token in (lasting, withdrawn["token"]):
        assert ask(hub, token).status_code == 200
    expiring = hub.new_token("root", STAFF, expires_in=8)["token"]
    # On a busy machine it may have run out already.
    assert ask(hub, expiring).status_code in (200, 401)
    open_socket = connect(hub, withdrawn["token"], "/v1/proxy")
    hello = {"protocol_version": PROTOCOL_VERSION, "notebook": uuid.uuid4().bytes, "owner": "root", "course": None}
    open_socket.send_binary(msgpack.packb({"hello": hello}))
    assert b"welcome" in open_socket.recv()
    hub.api("DELETE", f"/users/root/tokens/{withdrawn['id']}")
    assert open_socket.recv_data()[0] == websocket.ABNF.OPCODE_CLOSE
    for token in (withdrawn["token"], expiring):
        wait_until(lambda token=token: ask(hub, token).status_code == 401, "it is refused")


def test_a_sign_in_belongs_to_the_browser_that_began_it(hub: Hub) -> None:
    callback = f"{hub.pages}oauth_callback"
    accept = {"Accept": "text/html"}
    with hub.signed_in("eve") as eve, httpx.Client(follow_redirects=False, headers=accept, timeout=120) as victim:
        code = hub.code_for(eve, "baton")
        # Without a request, and with a state that does not belong to this browser.
        assert victim.get(callback, params={"code": code, "state": "s"}).status_code == 403
        begun = victim.get(f"{hub.pages}job?id=7")
        assert begun.status_code == 303
        asked = httpx.URL(begun.headers["location"])
        assert asked.path == "/hub/api/oauth2/authorize"
        assert asked.params["redirect_uri"] == "/services/baton/oauth_callback"
        kept = begun.headers["set-cookie"]
        assert all(word in kept for word in ("HttpOnly", "SameSite=Lax", "Max-Age=600"))
        assert victim.get(callback, params={"code": code, "state": "s"}).status_code == 403
        assert victim.get(callback, params={"code": code}).status_code == 403
        state = asked.params["state"]
        assert victim.get(callback, params={"code": "made-up", "state": state}).status_code == 403
        assert victim.get(callback, params={"code": hub.code_for(eve, "other"), "state": state}).status_code == 403
        assert victim.cookies.get("baton_signed_in") is None
        assert victim.get(hub.pages).status_code == 303
    # A redirect leads only to pages, and never to another host.
    for path in ("//elsewhere.example/", "job;x=1", "..%2f..%2fhub"):
        with httpx.Client(headers=accept, timeout=120) as client:
            answer = client.get(hub.pages + path)
            kept = answer.headers.get("set-cookie", "=.;")
            assert "elsewhere" not in kept.split(";")[0], kept
    secure = accept | {"X-Forwarded-Proto": "https"}
    direct = f"{hub.broker_url}/services/baton/"
    assert "Secure" in httpx.get(direct, headers=secure, timeout=120).headers["set-cookie"]


def test_a_ta_signs_in_with_the_hub(hub: Hub, ada: Notebook, artefacts: Path) -> None:
    ada.run("%%gpu\nprint(1)")
    with browser_page() as page:
        page.goto(f"{hub.pages}people")
        page.get_by_label("Username").fill("tia")
        page.get_by_label("Password").fill("sesame")
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{hub.pages}people")
        expect(page.locator("main")).to_contain_text("ada")
        page.get_by_role("link", name="Now").click()
        expect(page.locator("#finished")).to_contain_text("ada")
        expect(page.locator(".who")).to_have_text("tia")
        page.screenshot(path=artefacts / "hub-now.png")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="You have signed out")).to_be_visible()
        page.screenshot(path=artefacts / "hub-signed-out.png")
        assert not [cookie for cookie in page.context.cookies() if cookie["name"] == "baton_signed_in"]
        page.get_by_role("link", name="Sign in").click()
        expect(page.locator(".who")).to_have_text("tia")
        # After signing out of the Hub, the token belongs to no one.
        page.goto(f"{hub.url}/hub/logout")
        expect(page.get_by_label("Username")).to_be_visible()

        def refused() -> bool:
            page.goto(hub.pages)
            return "/hub/login" in page.url

        wait_until(refused, "the Hub's sign-out counts here")


def test_what_is_known_holds_while_the_hub_is_away(hub: Hub, ada: Notebook, token_of_ada: str) -> None:
    """Runs last, because no Hub is left after it."""
    assert ask(hub, token_of_ada).status_code == 200
    hub.hub.kill()
    hub.hub.wait()
    assert ada.run("%%gpu\nprint('goes on')") == "goes on\n"
    assert ask(hub, token_of_ada).status_code == 200
    unknown = ask(hub, "0" * 31 + "1")
    assert unknown.status_code == 503
    assert "JupyterHub does not answer" in unknown.json()["detail"]
    assert ask(hub, hub.broker_token).status_code == 200
