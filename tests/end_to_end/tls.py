"""A certificate authority for one test, and the files of a broker with its certificates."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme

HERE = "127.0.0.1"

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Tls:
    """A folder with the broker's certificate, and the one that its clients trust."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.ca_file = (folder / name for name in ("tls.pem", "tls.key", "ca.pem"))
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(str(self.ca_file))
        self.show(HERE)

    def show(self, name: str) -> None:
        """From now on, the broker presents a certificate for this name."""
        self._put(self._authority.issue_cert(name))

    def show_expired(self) -> None:
        day = datetime.timedelta(days=1)
        self._put(self._authority.issue_cert(HERE, not_before=LONG_AGO - day, not_after=LONG_AGO))

    def show_foreign(self) -> None:
        self._put(trustme.CA().issue_cert(HERE))

    def _put(self, certificate: trustme.LeafCert) -> None:
        """Writes the files as a renewal does: each atomically, one after the other."""
        files = ((self.certificate, certificate.cert_chain_pems[0]), (self.key, certificate.private_key_pem))
        for path, content in files:
            new = path.with_suffix(".new")
            content.write_to_path(str(new))
            new.rename(path)
