"""The images of the Containerfiles, built without a registry, and containers of them with a pod's security context.

Debian's own tools create the base. A container has a separate user namespace (`hostUsers: false`), a read-only root, an
unmasked /proc, no capabilities and no way to gain any; its network is the machine's.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from end_to_end.waiting import wait_until

ROOT = Path(__file__).parents[2]
PACKAGES = "bubblewrap,ca-certificates,iproute2,python3,python3-venv,slirp4netns"

ENTER = """
set -e
read -r _  # until the ids are mapped
mount --make-rprivate /
mount --rbind {root} {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/dev/shm
mount --rbind /sys {root}/sys
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
{mounts}
mount -o remount,bind,ro {root}
cd {root}
pivot_root . .
umount -l .
exec setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all {command}
"""


class Container(subprocess.Popen[bytes]):
    def send_signal(self, number: int) -> None:
        """Sends it to the first process, as the node does when a pod is to end."""
        with suppress(psutil.NoSuchProcess):
            for first in psutil.Process(self.pid).children():
                first.send_signal(number)


@dataclass
class Images:
    folder: Path
    """The folder in which buildah stores images."""
    mounted: dict[str, Path] = field(default_factory=dict)

    def make_base(self) -> None:
        """A small Debian with everything that the Containerfiles would otherwise download."""
        container = self._buildah("from", "scratch")
        root = self._buildah("mount", container)
        options = ["--variant=minbase", "--mode=root", "--format=directory", f"--include={PACKAGES}", "--quiet"]
        # A machine that fails in between loses nothing that matters.
        options += ["--dpkgopt=force-unsafe-io"]
        options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
        run(["mmdebstrap", *options, debian_release(), root])
        self._buildah("commit", "--quiet", "--rm", container, "localhost/base")

    def build(self, name: str, context: Path, **arguments: str) -> None:
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        containerfile = ROOT / f"deploy/kubernetes/images/Containerfile.{name}"
        options = ["--isolation", "chroot", "--layers=false", "--quiet", "--pull=never"]
        self._buildah("build", *options, *given, "-f", str(containerfile), "-t", f"localhost/{name}", str(context))

    def root(self, name: str) -> Path:
        """The files of an image, at a path on this machine."""
        if name not in self.mounted:
            container = self._buildah("from", "--pull=never", f"localhost/{name}")
            self.mounted[name] = Path(self._buildah("mount", container))
        return self.mounted[name]

    def command(self, name: str, arguments: list[str]) -> list[str]:
        image = json.loads(self._buildah("inspect", "--type", "image", f"localhost/{name}"))
        config = image["OCIv1"]["config"]
        assert config["User"].startswith("1000"), config
        return [*config["Entrypoint"], *arguments]

    def start(
        self, name: str, command: list[str], mounts: dict[str, Path], environment: dict[str, str], log: Path
    ) -> Container:
        """`mounts`: the folder for each path inside."""
        root = self.root(name)
        lines = []
        for path, source in mounts.items():
            place = root / path.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(place))}")
        script = ENTER.format(root=shlex.quote(str(root)), mounts="\n".join(lines), command=shlex.join(command))
        namespaces = ["--user", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"]
        with log.open("ab") as output:
            container = Container(
                ["unshare", *namespaces, "sh", "-c", script],
                env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"} | environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self._map_ids(container)
        return container

    def close(self) -> None:
        if self.folder.exists():
            self._buildah("rm", "--all")
            self._buildah("rmi", "--all", "--force")
            shutil.rmtree(self.folder)

    def _map_ids(self, container: Container) -> None:
        own = os.readlink("/proc/self/ns/user")
        entered = f"/proc/{container.pid}/ns/user"
        wait_until(lambda: os.readlink(entered) != own, "the container has a user namespace")
        for kind in ("uid", "gid"):
            Path(f"/proc/{container.pid}/{kind}_map").write_text("0 0 65536\n")
        assert container.stdin
        container.stdin.write(b"go\n")
        container.stdin.close()

    def _buildah(self, *arguments: str) -> str:
        places = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        return run(["buildah", *places, *arguments])


@contextmanager
def images(folder: Path) -> Iterator[Images]:
    made = Images(folder)
    try:
        yield made
    finally:
        made.close()


def debian_release() -> str:
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return facts["VERSION_CODENAME"].strip('"')


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
