"""Pods of the chart as processes of this machine: with their arguments, variables and files, in other folders."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from end_to_end.chart import NAMESPACE, Manifest, named
from end_to_end.images import Images
from end_to_end.place import MARK, Place
from end_to_end.service import BINARY
from end_to_end.tls import Tls


@dataclass
class Node:
    """Has a folder for each pod, and a single service name, that of the broker, which is here."""

    place: Place
    folder: Path
    manifests: list[Manifest]
    tls: Tls
    tls_secret: str
    port: int
    images: Images | None = None
    """The images of their containers; `None`: this environment's programs, with the pods' folders elsewhere."""

    @property
    def broker(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def run(self, name: str, template: Manifest) -> subprocess.Popen[bytes]:
        [container] = template["spec"]["containers"]
        folder = self.folder / name
        mounts = {mount["mountPath"]: folder / mount["name"] for mount in container["volumeMounts"]}
        # Each container has its own, but processes of this machine share it.
        del mounts["/tmp"]
        mounts.pop("/dev/shm", None)
        moved = {} if self.images else {path: str(place) for path, place in mounts.items()}
        for volume in template["spec"]["volumes"]:
            self._fill(folder / volume["name"], volume, moved)
        for mount in mounts.values():
            self._give_to_group(mount)
        variables = {each["name"]: self._here(self._value(each, name), moved) for each in container["env"]}
        if self.images:
            log = self.folder / f"{name}.log"
            command = self.images.command(container["name"], container["args"])
            variables[MARK] = str(self.place.folder)
            return self.images.start(container["name"], command, mounts, variables, log)
        environment = self.place.environment | variables
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [BINARY, *container["args"]],
                env=environment,
                cwd=self.place.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _give_to_group(self, folder: Path) -> None:
        """Does what `fsGroup` does."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.images is None:
            return
        os.chown(folder, 0, 1000)
        folder.chmod(0o2777)
        for file in folder.iterdir():
            os.chown(file, 0, 1000)
            file.chmod(0o440)

    def secret(self, name: str, key: str) -> str:
        if name == self.tls_secret:
            files = {"tls.crt": self.tls.certificate, "tls.key": self.tls.key, "ca.crt": self.tls.ca_file}
            return files[key].read_text()
        return base64.b64decode(named(self.manifests, "Secret", name)["data"][key]).decode()

    def _fill(self, folder: Path, volume: Manifest, moved: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        match volume:
            case {"configMap": {"name": name}}:
                for key, text in named(self.manifests, "ConfigMap", name)["data"].items():
                    (folder / key).write_text(self._here(text, moved))
            case {"secret": {"secretName": name, "items": items}}:
                for item in items:
                    (folder / item["path"]).write_text(self.secret(name, item["key"]))
            case {"secret": {"secretName": self.tls_secret}}:
                for key in ("tls.crt", "tls.key", "ca.crt"):
                    (folder / key).write_text(self.secret(self.tls_secret, key))
            case {"secret": {"secretName": name}}:
                for key in named(self.manifests, "Secret", name)["data"]:
                    (folder / key).write_text(self.secret(name, key))
            case {"emptyDir": _}:
                pass

    def _value(self, variable: Manifest, pod: str) -> str:
        match variable:
            case {"value": text}:
                return str(text)
            case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                return pod
        raise AssertionError(variable)

    def _here(self, text: str, moved: dict[str, str]) -> str:
        """The text with the folders, the addresses and the Python of this test."""
        python = {} if self.images else {"/opt/baton/bin/python": sys.executable}
        places = moved | python
        places[f"https://baton-broker.{NAMESPACE}.svc:8470"] = self.broker
        places["0.0.0.0:8470"] = f"127.0.0.1:{self.port}"
        for old in sorted(places, key=len, reverse=True):
            text = text.replace(old, places[old])
        return text
