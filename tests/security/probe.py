"""Attacks of a malicious student in a `%%gpu` cell. The tests send the text of this file with the cell.

`facts` says where the other student's things are, as seen from outside all sandboxes. Each function is one line of the
table: it returns what it obtained; if it obtained nothing, it returns nothing or raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
CLONE_NEWUSER = 0x10000000
SECONDS = 3.0

NUMBERS = {
    "x86_64": {
        "add_key": 248,
        "bpf": 321,
        "io_uring_setup": 425,
        "keyctl": 250,
        "mount": 165,
        "open_tree": 428,
        "perf_event_open": 298,
        "request_key": 249,
        "setns": 308,
        "userfaultfd": 323,
    },
    "aarch64": {
        "add_key": 217,
        "bpf": 280,
        "io_uring_setup": 425,
        "keyctl": 219,
        "mount": 40,
        "open_tree": 428,
        "perf_event_open": 241,
        "request_key": 218,
        "setns": 268,
        "userfaultfd": 282,
    },
}

MIB = 1 << 20
PROCESSES = 250
FILE_MIB = 48
"""More than the tests allow in each private folder of a sandbox."""
MEMORY_MIB = 900
"""More than the tests allow for a session in a sandbox."""


def read(path: str) -> bytes:
    return Path(path).read_bytes()


# ---- files


def read_file_of_another_session(facts: dict[str, Any]) -> Any:
    return read(facts["file"])


def write_beside_file_of_another_session(facts: dict[str, Any]) -> Any:
    Path(facts["planted"]).write_text("import this")
    return facts["planted"]


def read_worker_token(facts: dict[str, Any]) -> Any:
    return read(facts["token_file"])


def read_home_of_worker(facts: dict[str, Any]) -> Any:
    return read(facts["home_file"])


def list_runtime_folder_of_worker(facts: dict[str, Any]) -> Any:
    return len(os.listdir(facts["runtime_folder"])) > 1


def write_into_python_of_all(facts: dict[str, Any]) -> Any:
    path = Path(sys.base_prefix, f"planted-{os.getpid()}")
    path.write_text("")
    path.unlink()
    return path


def change_program_of_all(facts: dict[str, Any]) -> Any:
    descriptor = os.open("/proc/self/exe", os.O_RDONLY)
    os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o7777)  # sets the mode that it has
    return True


# ---- processes


def see_processes_of_others(facts: dict[str, Any]) -> Any:
    return b"baton" in read(f"/proc/{facts['worker']}/cmdline")


def read_environment_of_another_session(facts: dict[str, Any]) -> Any:
    return b"BATON_SESSION" in read(f"/proc/{facts['process']}/environ")


def read_memory_of_another_session(facts: dict[str, Any]) -> Any:
    class Range(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t))

    secret = facts["secret"].encode()
    buffer = ctypes.create_string_buffer(len(secret))
    here, there = Range(ctypes.addressof(buffer), len(secret)), Range(facts["address"], len(secret))
    LIBC.process_vm_readv(facts["process"], ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return buffer.raw == secret


def trace_another_session(facts: dict[str, Any]) -> Any:
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace({PTRACE_SEIZE}, {facts['process']}, 0, 0) and 1)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def signal_another_session(facts: dict[str, Any]) -> Any:
    return os.kill(facts["process"], 0) is None


def signal_worker(facts: dict[str, Any]) -> Any:
    return os.kill(facts["worker"], 0) is None


# ---- sockets


def connect(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(SECONDS)
        client.connect(address)
        return True


def connect_to_socket_by_path(facts: dict[str, Any]) -> Any:
    return connect(socket.AF_UNIX, facts["socket"])


def connect_to_abstract_socket(facts: dict[str, Any]) -> Any:
    return connect(socket.AF_UNIX, "\0" + facts["abstract"])


def connect_to_tcp_of_another_session(facts: dict[str, Any]) -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", facts["tcp"]))


def connect_to_broker(facts: dict[str, Any]) -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", facts["broker"]))


def exchange_udp(facts: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(SECONDS)
        client.connect(("127.0.0.1", facts["udp"]))
        client.send(b"anybody there?")
        return client.recv(100)


def open_sockets_without_namespaces(facts: dict[str, Any]) -> Any:
    """Such sockets belong to the whole machine, or to rarely used code of its kernel."""
    opened = []
    for family in (socket.AF_ALG, socket.AF_VSOCK, socket.AF_PACKET):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_SEQPACKET).close()
            opened.append(family.name)
    return opened


# ---- shared memory and keys


def attach_sysv_memory(facts: dict[str, Any]) -> Any:
    number = LIBC.shmget(facts["key"], 0, 0)
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(number, None, 0)
    return number >= 0 and ctypes.string_at(address, len(facts["secret"])) == facts["secret"].encode()


def open_posix_memory(facts: dict[str, Any]) -> Any:
    return read(f"/dev/shm/{facts['shared']}")


# ---- the system


def shares_namespace(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda facts: os.readlink(f"/proc/self/ns/{name}") == facts["namespaces"][name]


def reaches_kernel(call: str) -> Callable[[dict[str, Any]], Any]:
    """Uses meaningless arguments, so a call that gets through fails with another error, and nothing else happens."""

    def attempt(facts: dict[str, Any]) -> Any:
        result = LIBC.syscall(NUMBERS[os.uname().machine][call], -1, 0, -1, -1, -1)
        return result >= 0 or ctypes.get_errno() not in (1, 38)

    return attempt


def make_user_namespace(facts: dict[str, Any]) -> Any:
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({CLONE_NEWUSER}) and 1)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def see_devices(facts: dict[str, Any]) -> Any:
    return os.path.exists(facts["device"])


def write_settings_of_the_system(facts: dict[str, Any]) -> Any:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


def has_capabilities(facts: dict[str, Any]) -> Any:
    lines = Path("/proc/self/status").read_text().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in lines)


# ---- more than a fair share


def start_many_processes(facts: dict[str, Any]) -> Any:
    children: list[int] = []
    try:
        while len(children) < PROCESSES:
            children.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
        return children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def fill(folder: str) -> bool:
    path = Path(folder, f"filled-{os.getpid()}")
    try:
        with path.open("wb", buffering=0) as file:
            return all(file.write(bytes(MIB)) == MIB for _ in range(FILE_MIB))
    finally:
        path.unlink(missing_ok=True)


def fill_temporary_folder(facts: dict[str, Any]) -> Any:
    return fill("/tmp")


def fill_shared_memory(facts: dict[str, Any]) -> Any:
    return fill("/dev/shm")


def fill_home(facts: dict[str, Any]) -> Any:
    return fill(os.path.expanduser("~"))


def fill_root(facts: dict[str, Any]) -> Any:
    """In a sandbox, the root has only the mount points."""
    return fill("/")


def fill_folder_of_devices(facts: dict[str, Any]) -> Any:
    return fill("/dev")


def take_memory(facts: dict[str, Any]) -> Any:
    """Uses a process without a parent. The system ends it; with version 2 of control groups, the whole session."""
    reads, writes = os.pipe()
    code = f"import os; taken = bytes([1]) * ({MEMORY_MIB} << 20); os.write({writes}, bytes([1]))"
    line = f"setsid {sys.executable} -c '{code}' >/dev/null 2>&1 </dev/null &"
    subprocess.run(["/bin/sh", "-c", line], pass_fds=[writes], check=True)
    os.close(writes)
    with open(reads, "rb") as said:
        return said.read()


# ---- leftovers


def leave_process(facts: dict[str, Any]) -> Any:
    """Leaves a hidden process: no parent, no group, no environment. The tests look for it after the session's end."""
    subprocess.run(["/bin/sh", "-c", f"setsid env -i sleep {facts['sleep']} >/dev/null 2>&1 </dev/null &"], check=True)


def leave_file(facts: dict[str, Any]) -> Any:
    Path(facts["left"]).write_text("left")


PROBES: dict[str, Callable[[dict[str, Any]], Any]] = {
    probe.__name__: probe
    for probe in (
        read_file_of_another_session,
        write_beside_file_of_another_session,
        read_worker_token,
        read_home_of_worker,
        list_runtime_folder_of_worker,
        write_into_python_of_all,
        change_program_of_all,
        see_processes_of_others,
        read_environment_of_another_session,
        read_memory_of_another_session,
        trace_another_session,
        signal_another_session,
        signal_worker,
        connect_to_socket_by_path,
        connect_to_abstract_socket,
        connect_to_tcp_of_another_session,
        connect_to_broker,
        exchange_udp,
        attach_sysv_memory,
        open_posix_memory,
        make_user_namespace,
        see_devices,
        write_settings_of_the_system,
        has_capabilities,
        open_sockets_without_namespaces,
        start_many_processes,
        fill_temporary_folder,
        fill_shared_memory,
        fill_home,
        fill_root,
        fill_folder_of_devices,
    )
}
PROBES |= {f"share_{name}_namespace": shares_namespace(name) for name in "user pid mnt net ipc uts cgroup".split()}
PROBES |= {f"call_{name}": reaches_kernel(name) for name in NUMBERS["x86_64"]}


def attack(facts: dict[str, Any]) -> dict[str, str]:
    """The result of each attempt: `succeeded`, or why not."""
    found = {name: attempt(probe, facts) for name, probe in PROBES.items()}
    leave_process(facts)
    leave_file(facts)
    return found


def attempt(probe: Callable[[dict[str, Any]], Any], facts: dict[str, Any]) -> str:
    try:
        return "succeeded" if probe(facts) else "refused"
    except Exception as error:
        return f"refused: {error!r}"
