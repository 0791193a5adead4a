"""`worker.network = "egress"`: cells reach the internet, but nothing closer.

The worker runs in a separate network. Beside it is a second network, which represents everything else. It has a public
address, a private one, that of clouds' metadata, and the public address of the broker, and answers on each, over TCP
and UDP. `host` reaches all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from end_to_end import Kernel, Service
from end_to_end.place import has_words

pytestmark = pytest.mark.every_user

INTERNET, PRIVATE, LINK = "198.51.100.2", "10.99.0.2", "169.254.169.254"
OWN, BROKER = "198.51.100.1", "198.51.100.3"
PORT, BROKER_PORT = 8765, 8470

END_WITH_WORKER = """
import ctypes, signal
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
"""
SERVE = f"""{END_WITH_WORKER}
import socket, sys, threading
IP_PKTINFO = 8  # the address to which a packet was sent, and from which the answer has to come

def answer():
    while True:
        _, address, _, sender = packets.recvmsg(100, 100)
        packets.sendmsg([b"answer"], address, 0, sender)

packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
packets.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
packets.bind(("0.0.0.0", {PORT}))
with socket.create_server(("0.0.0.0", {PORT})) as server:
    threading.Thread(target=answer, daemon=True).start()
    open(sys.argv[1], "w").close()
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"answer")
"""
RELAY = f"""{END_WITH_WORKER}
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from end_to_end.network import Network
Network().relay(sys.argv[1], "http://{BROKER}:{BROKER_PORT}")
signal.pause()
"""
NETWORKS = f"""
ip link set lo up
unshare --net sh -c 'echo $$ > "$1"; exec "$2" -c "$3" "$1-serves"' sh "$PIDS" {sys.executable} "$SERVE" &
until [ -s "$PIDS" ] && [ "$(readlink /proc/$(cat "$PIDS")/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
there=$(cat "$PIDS")
ip link add near type veth peer name far netns $there
nsenter --net=/proc/$there/ns/net sh -c '
    ip link set lo up
    ip address add {INTERNET}/24 dev far
    ip address add {BROKER}/24 dev far
    ip address add {PRIVATE}/24 dev far
    ip address add {LINK}/32 dev far
    ip link set far up'
ip address add {OWN}/24 dev near
ip address add 10.99.0.1/24 dev near
ip link set near up
ip route add {LINK}/32 dev near
{sys.executable} -c "$SERVE" "$PIDS-near" &
nsenter --net=/proc/$there/ns/net {sys.executable} -c "$RELAY" "$BROKER" &
until [ -e "$PIDS-serves" ] && [ -e "$PIDS-near" ]; do sleep 0.05; done
"""
USERS = {"root": "", "ordinary": "unshare --user --map-user=1000 --map-group=1000"}
ASK = f"""
import socket
def patience(address):
    return 60 if address in expected else 5
def ask(address):
    try:
        with socket.create_connection((address, {PORT}), patience(address)) as connection:
            return connection.recv(100).decode()
    except OSError as error:
        return type(error).__name__
def ask_udp(address):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(patience(address))
            client.connect((address, {PORT}))
            client.send(b"anybody there?")
            return client.recv(100).decode()
    except OSError as error:
        return type(error).__name__
addresses = {[INTERNET, PRIVATE, LINK, OWN, BROKER, "10.0.2.2"]!r}
answers = {{f"{{way.__name__}} {{address}}": way(address) for way in (ask, ask_udp) for address in addresses}}
"""


CASES = [f"{network}-{start}-root" for network in ("egress", "host", "none") for start in ("forked", "fresh")]
CASES += [f"egress-{start}-ordinary" for start in ("forked", "fresh")]


@pytest.mark.parametrize("case", CASES)
def test_what_a_cell_reaches(service: Service, new_kernel: Callable[..., Kernel], case: str) -> None:
    """For a worker that runs as root, and for one that runs as an ordinary user."""
    network, start, user = case.split("-")
    for program in ("slirp4netns", "ip"):
        if shutil.which(program, path="/usr/bin:/usr/sbin:/bin:/sbin") is None:
            pytest.fail(f"{program} is missing: run scripts/install-system-packages sandbox network")
    if network == "egress" and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("NOT TESTED: this user may not open /dev/net/tun")
    service.start_broker()
    script = f'PIDS={service.place.folder}/there; BROKER={service.address}; SERVE="$0"; RELAY="$1"; shift\n{NETWORKS}\n'
    script += f'exec {USERS[user]} "$@"'
    prefix = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", script, SERVE, RELAY]
    choices = {"BATON_WORKER_SANDBOX": "bubblewrap", "BATON_WORKER_NETWORK": network}
    choices["BATON_BROKER_ADDRESS"] = f"http://{BROKER}:{BROKER_PORT}"
    service.start_worker(prefix=prefix, BATON_WORKER_WARM_STARTS=str(start == "forked").lower(), **choices)
    kernel = service.kernel(new_kernel)
    expected = {"egress": {INTERNET}, "host": {INTERNET, PRIVATE, LINK, OWN, BROKER}, "none": set()}
    kernel.run(f"expected = {expected[network]!r}").ok()
    kernel.gpu(ASK).ok()
    assert has_words(psutil.Process(kernel.session_pid), ("baton_shim.session.zygote",)) is (start == "forked")
    answers = kernel.evaluate("answers")
    reached = {question for question, said in answers.items() if said == "answer"}
    assert reached == {f"{way} {address}" for way in ("ask", "ask_udp") for address in expected[network]}, str(answers)
