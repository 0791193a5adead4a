"""`python qt_client.py NOTEBOOK`: runs its cells with qtconsole's client, answers `yes`, and prints the output."""

from __future__ import annotations

import sys
from typing import Any

import nbformat
from qtconsole.manager import QtKernelManager
from qtpy.QtCore import QCoreApplication, QTimer


def main() -> None:
    application = QCoreApplication(sys.argv)
    manager = QtKernelManager(kernel_name="baton")
    manager.start_kernel()
    client = manager.client()
    cells = [cell.source for cell in nbformat.read(sys.argv[1], as_version=4).cells]
    running: set[str] = set()
    """Requests whose end begins the next cell. A slow kernel answers after further knocks."""

    def knock() -> None:
        running.add(client.kernel_info())

    def show(message: dict[str, Any]) -> None:
        content, kind, parent = message["content"], message["msg_type"], message["parent_header"]
        if kind == "stream":
            print(content["text"], end="")
        elif kind == "execute_result":
            print(content["data"]["text/plain"])
        elif kind == "error":
            print(content["ename"])
        elif kind == "status" and content["execution_state"] == "idle" and parent["msg_id"] in running:
            knocking.stop()
            running.clear()
            if not cells:
                application.quit()
            else:
                running.add(client.execute(cells.pop(0), allow_stdin=True, stop_on_error=False))

    client.start_channels()
    client.iopub_channel.message_received.connect(show)
    client.stdin_channel.message_received.connect(lambda _: client.input("yes"))
    knocking = QTimer()  # until the subscription has arrived
    knocking.timeout.connect(knock)
    knocking.start(200)
    application.exec_()
    client.stop_channels()
    manager.shutdown_kernel()


if __name__ == "__main__":
    main()
