"""Downloads in a `%%gpu` cell, on a worker without internet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from end_to_end import Kernel, Service

HINT = "hint: this GPU machine may have no internet: download the data in an ordinary cell"


@pytest.fixture(scope="module")
def apart() -> Iterator[Kernel]:
    """A notebook whose worker is in a separate network, without access to others."""
    service = Service.create()
    service.start_broker()
    service.start_worker(prefix=["unshare", "--map-root-user", "--net"])
    environment = service.place.environment | service.access
    kernel = Kernel.start(service.place, **environment)
    yield kernel
    kernel.shutdown()
    assert not service.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import torchvision\ntorchvision.datasets.MNIST('data', download=True)", "RuntimeError"),
        ("import urllib.request\nurllib.request.urlretrieve('https://example.org/data.zip')", "URLError"),
        ("import requests\nrequests.get('https://example.org/data.zip')", "ConnectionError"),
        ("import httpx\nhttpx.get('https://example.org/data.zip')", "ConnectError"),
        ("import pandas\npandas.read_csv('https://example.org/data.csv')", "URLError"),
    ],
)
def test_a_library(apart: Kernel, code: str, error: str) -> None:
    result = apart.gpu(code)
    assert result.error is not None
    assert result.error[0] == error
    assert HINT in result.plain_traceback.splitlines()[-1]


@pytest.mark.parametrize("program", ["wget -q", "curl -s -O"])
def test_a_program(apart: Kernel, program: str) -> None:
    result = apart.gpu(f"!{program} https://example.org/data.zip").ok()
    assert result.stderr.startswith(HINT)


def test_what_the_notebook_downloads_is_there(apart: Kernel) -> None:
    """The way that the hint recommends; here the data comes from a file."""
    apart.run("import pathlib; (folder := pathlib.Path('downloaded')).mkdir()").ok()
    apart.run("import urllib.request; (folder / 'source').write_text('1,2')").ok()
    apart.run("urllib.request.urlretrieve((folder / 'source').absolute().as_uri(), folder / 'data.csv')").ok()
    assert apart.gpu("open('downloaded/data.csv').read()").ok().value == "'1,2'"


def test_other_failures_have_no_such_hint(apart: Kernel) -> None:
    assert "internet" not in apart.gpu("1 / 0").plain_traceback
    assert "internet" not in apart.gpu("!ls nowhere").ok().stderr
