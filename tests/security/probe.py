"""Attacks of a malicious student in a `%%gpu` cell. The tests send the text of this file with the cell.

`facts` says where the things to attack are, as seen from outside all sandboxes. Each function is one attempt: it
returns what it obtained; if it obtained nothing, it returns nothing or raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
CLONE_NEWUSER = 0x10000000
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
IOPRIO_WHO_PGRP = 2
IOPRIO_LOWEST = 2 << 13 | 7
SECONDS = 60.0
"""For answers. What is refused is refused at once."""
IN_ACCESS = 1
TRIES = 10_000

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


def list_folder_of_another_session(facts: dict[str, Any]) -> Any:
    return os.listdir(os.path.dirname(facts["file"]))


def know_that_file_of_another_session_is_there(facts: dict[str, Any]) -> Any:
    return os.stat(facts["file"])


def change_mode_of_file_of_another_session(facts: dict[str, Any]) -> Any:
    os.chmod(facts["file"], os.stat(facts["file"]).st_mode & 0o7777)  # sets the mode that it has
    return True


def change_mode_of_program_of_all(facts: dict[str, Any]) -> Any:
    """Sets the mode that the program has, through a link in the session's own folder."""
    link = tempfile.mktemp()
    os.symlink(os.path.realpath(sys._base_executable), link)  # type: ignore[attr-defined]
    os.chmod(link, os.stat(link).st_mode & 0o7777)
    return True


def change_times_of_file_of_another_session(facts: dict[str, Any]) -> Any:
    found = os.stat(facts["file"])
    os.utime(facts["file"], (found.st_atime, found.st_mtime))  # sets the times that it has
    return True


def watch_folder_of_another_session(facts: dict[str, Any]) -> Any:
    queue = LIBC.inotify_init1(0)
    return queue >= 0 and LIBC.inotify_add_watch(queue, os.path.dirname(facts["file"]).encode(), IN_ACCESS) >= 0


def delay_opens_of_a_file(facts: dict[str, Any]) -> Any:
    """A lease delays every process that opens the file for writing. It works for every file of the same user."""
    with tempfile.NamedTemporaryFile() as file:
        reader = os.open(file.name, os.O_RDONLY)
        file.close()
        return fcntl.fcntl(reader, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0


def be_told_of_opens_in_a_folder(facts: dict[str, Any]) -> Any:
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    return fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE) == 0


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


def make_program_that_runs_as_its_owner(facts: dict[str, Any]) -> Any:
    for number, make in enumerate((os.open, make_by_name, make_and_change, make_and_change_open)):
        path = f"program-{os.getpid()}-{number}"
        with contextlib.suppress(OSError):
            make(path, os.O_CREAT | os.O_WRONLY, 0o4755)
            if os.stat(path).st_mode & 0o6000:
                return path
    return False


def make_by_name(path: str, flags: int, mode: int) -> None:
    os.mknod(path, mode)


def make_and_change(path: str, flags: int, mode: int) -> None:
    os.close(os.open(path, flags))
    os.chmod(path, mode)


def make_and_change_open(path: str, flags: int, mode: int) -> None:
    os.fchmod(os.open(path, flags), mode)


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


def change_limits_of_another_session(facts: dict[str, Any]) -> Any:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    return resource.prlimit(facts["process"], resource.RLIMIT_CORE, limits)


def slow_another_session_down(facts: dict[str, Any]) -> Any:
    os.setpriority(os.PRIO_PROCESS, facts["process"], os.getpriority(os.PRIO_PROCESS, 0) + 1)
    return True


def in_group_of_another_session(code: str, facts: dict[str, Any]) -> bool:
    """Runs code in a process that joins the group first."""
    code = f"import ctypes, os, sys; os.setpgid(0, os.getpgid({facts['process']})); {code}"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def slow_group_of_another_session_down(facts: dict[str, Any]) -> Any:
    return in_group_of_another_session("os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)", facts)


def delay_files_of_group_of_another_session(facts: dict[str, Any]) -> Any:
    number = IOPRIO_SET[os.uname().machine]
    call = f"ctypes.CDLL(None).syscall({number}, {IOPRIO_WHO_PGRP}, 0, {IOPRIO_LOWEST})"
    return in_group_of_another_session(f"sys.exit({call} and 1)", facts)


def bind_another_session_to_processors(facts: dict[str, Any]) -> Any:
    os.sched_setaffinity(facts["process"], os.sched_getaffinity(0))
    return True


# ---- sockets


def connect(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(SECONDS)
        client.connect(address)
        return True


def connect_to_socket_by_path(facts: dict[str, Any]) -> Any:
    return connect(socket.AF_UNIX, facts["socket"])


def connect_while_the_address_changes(facts: dict[str, Any]) -> Any:
    """Changes the address in another thread, between a check of it and the connection."""
    harmless = tempfile.mktemp()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(harmless)
        listener.listen(1 << 10)
        paths = [path.encode().ljust(108, b"\0") for path in (harmless, facts["socket"])]
        address = ctypes.create_string_buffer(socket.AF_UNIX.to_bytes(2, sys.byteorder) + paths[0])
        ended = threading.Event()

        def change() -> None:
            while not ended.is_set():
                for path in paths:
                    ctypes.memmove(ctypes.addressof(address) + 2, path, len(path))

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(TRIES):
                with socket.socket(socket.AF_UNIX) as client:
                    client.setblocking(False)
                    if LIBC.connect(client.fileno(), address, 110) != 0:
                        continue
                    if client.getpeername() != harmless:
                        return client.getpeername()
                    listener.accept()[0].close()
        finally:
            ended.set()
            thread.join()


def send_datagram_by_path(facts: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"anybody there?", facts["datagrams"])


def send_datagram_through_a_pair(facts: dict[str, Any]) -> Any:
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as sender:
        return sender.sendto(b"anybody there?", facts["datagrams"])


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


def see_sockets_of_others(facts: dict[str, Any]) -> Any:
    return facts["socket"].encode() in read("/proc/net/unix")


def open_sockets_without_namespaces(facts: dict[str, Any]) -> Any:
    """Such sockets belong to the whole machine, or to rarely used code of its kernel."""
    opened = []
    for family in (socket.AF_ALG, socket.AF_VSOCK, socket.AF_PACKET):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_SEQPACKET).close()
            opened.append(family.name)
    return opened


def change_mode_of_socket_of_a_service(facts: dict[str, Any]) -> Any:
    os.chmod(facts["service"], os.stat(facts["service"]).st_mode & 0o7777)  # sets the mode that it has
    return True


def remove_socket_of_a_service(facts: dict[str, Any]) -> Any:
    os.unlink(facts["service"])
    return True


# ---- shared memory and keys


def attach_sysv_memory(facts: dict[str, Any]) -> Any:
    number = LIBC.shmget(facts["key"], 0, 0)
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(number, None, 0)
    return number >= 0 and ctypes.string_at(address, len(facts["secret"])) == facts["secret"].encode()


def open_posix_memory(facts: dict[str, Any]) -> Any:
    return read(f"/dev/shm/{facts['shared']}")


def open_posix_memory_where_it_lies(facts: dict[str, Any]) -> Any:
    return read(facts["shared_file"])


def open_posix_memory_by_another_name(facts: dict[str, Any]) -> Any:
    other = f"/dev/shm/{facts['shared']}-linked"
    os.link(facts["shared_file"], other)
    try:
        return read(other)
    finally:
        os.unlink(other)


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


def use_devices(facts: dict[str, Any]) -> Any:
    return facts["usable_device"] and os.open(facts["usable_device"], os.O_RDONLY | os.O_NONBLOCK)


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
    """Uses an orphaned process. The system ends it; with version 2 of control groups, it ends the whole session."""
    reads, writes = os.pipe()
    code = f"import os; taken = bytes([1]) * ({MEMORY_MIB} << 20); os.write({writes}, bytes([1]))"
    line = f"setsid {sys.executable} -c '{code}' >/dev/null 2>&1 </dev/null &"
    subprocess.run(["/bin/sh", "-c", line], pass_fds=[writes], check=True)
    os.close(writes)
    with open(reads, "rb") as said:
        return said.read()


# ---- leftovers


def leave_process(facts: dict[str, Any]) -> Any:
    """Leaves a process without parent, group and environment. The tests look for it after the session's end."""
    subprocess.run(["/bin/sh", "-c", f"setsid env -i sleep {facts['sleep']} >/dev/null 2>&1 </dev/null &"], check=True)


def leave_file(facts: dict[str, Any]) -> str:
    path = Path(tempfile.gettempdir(), facts["left"])
    path.write_text("left")
    return str(path)


NAMESPACES = "user pid mnt net ipc uts cgroup".split()
BY_NAME: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"share_{name}_namespace": shares_namespace(name) for name in NAMESPACES},
    **{f"call_{name}": reaches_kernel(name) for name in NUMBERS["x86_64"]},
}
ROWS: dict[str, list[Callable[[dict[str, Any]], Any] | str]] = {
    "read or change files of other sessions, or the token, home folder and sockets of the worker": [
        read_file_of_another_session,
        write_beside_file_of_another_session,
        list_folder_of_another_session,
        know_that_file_of_another_session_is_there,
        change_mode_of_file_of_another_session,
        change_times_of_file_of_another_session,
        watch_folder_of_another_session,
        read_worker_token,
        read_home_of_worker,
        list_runtime_folder_of_worker,
    ],
    "change the system or the Python of all sessions, also through `/proc/self/exe`": [
        change_mode_of_program_of_all,
        write_into_python_of_all,
        change_program_of_all,
        write_settings_of_the_system,
    ],
    "make a program that runs as the worker's user when others start it (set-user-ID, set-group-ID)": [
        make_program_that_runs_as_its_owner
    ],
    "delay others that open a file, with a lease on it, or watch a folder (`F_NOTIFY`)": [
        delay_opens_of_a_file,
        be_told_of_opens_in_a_folder,
    ],
    "see, signal or trace other processes; read their memory or environment": [
        see_processes_of_others,
        read_environment_of_another_session,
        read_memory_of_another_session,
        trace_another_session,
        signal_another_session,
        signal_worker,
    ],
    "change the limits, priority or processors of other processes": [
        change_limits_of_another_session,
        slow_another_session_down,
        slow_group_of_another_session_down,
        delay_files_of_group_of_another_session,
        bind_another_session_to_processors,
    ],
    "share a namespace with the worker (user, process, mount, network, IPC, UTS, control group)": [
        f"share_{name}_namespace" for name in NAMESPACES
    ],
    "reach other sessions, the worker, the broker or the network through sockets": [
        connect_to_socket_by_path,
        connect_while_the_address_changes,
        send_datagram_by_path,
        send_datagram_through_a_pair,
        connect_to_abstract_socket,
        connect_to_tcp_of_another_session,
        connect_to_broker,
        exchange_udp,
        see_sockets_of_others,
    ],
    "remove the socket of a GPU service that all sessions use, or change its mode": [
        change_mode_of_socket_of_a_service,
        remove_socket_of_a_service,
    ],
    "open sockets that no network namespace separates (`AF_VSOCK`, `AF_ALG`, `AF_PACKET`)": [
        open_sockets_without_namespaces
    ],
    "reach shared memory of others (System V and POSIX)": [
        attach_sysv_memory,
        open_posix_memory,
        open_posix_memory_where_it_lies,
        open_posix_memory_by_another_name,
    ],
    "use keyrings, `bpf`, `perf_event_open`, `io_uring` or `userfaultfd`, mount something or enter a namespace": [
        f"call_{name}" for name in NUMBERS["x86_64"]
    ],
    "gain capabilities or make new user namespaces": [has_capabilities, make_user_namespace],
    "reach devices other than NVIDIA's": [see_devices, use_devices],
    "start 250 processes where 200 are allowed": [start_many_processes],
    "fill `/tmp`, `/dev/shm` or its home folder": [fill_temporary_folder, fill_shared_memory, fill_home],
    "fill the root or `/dev`": [fill_root, fill_folder_of_devices],
}
"""The attempts for each row of the table in `docs/security.md`."""
OF_THE_END = (
    "use more memory than allowed, in variables, in a detached process or in files in memory",
    "leave processes or temporary files behind",
)
"""Rows whose attempts come last: they may end the session, or are seen after its end."""


def attack(row: str, facts: dict[str, Any]) -> dict[str, str]:
    """The result of each attempt of the row: `succeeded`, or why not."""
    attempts = [(one, BY_NAME[one]) if isinstance(one, str) else (one.__name__, one) for one in ROWS[row]]
    return {name: attempt(probe, facts) for name, probe in attempts}


def attempt(probe: Callable[[dict[str, Any]], Any], facts: dict[str, Any]) -> str:
    try:
        return "succeeded" if probe(facts) else "refused"
    except Exception as error:
        return f"refused: {error!r}"
