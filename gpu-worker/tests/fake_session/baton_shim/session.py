"""A session for the worker's tests: a real IPython kernel with a very small object table.

A state's stream is JSON, names to values; a segment is a `bytearray` under the name `segment_N`.
After a cell, all integers and strings are returned, and the segments with them.
"""

import array
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time

import msgpack
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.session import DELIM

VERSION = os.environ.get("FAKE_SHIM_VERSION") or os.environ["BATON_TEST_VERSION"]
PYTHON_VERSION = os.environ.get("FAKE_PYTHON_VERSION", "3.test")


class Link:
    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.socket.send(b"!")
        self.buffer = bytearray()
        self.files = []
        self.sends = threading.Lock()

    def send(self, name, **body):
        document = msgpack.packb({name: body})
        with self.sends:
            self.socket.sendall(struct.pack(">Q", len(document)) + document)

    def receive(self):
        while True:
            if len(self.buffer) >= 8:
                (length,) = struct.unpack_from(">Q", self.buffer)
                if len(self.buffer) >= 8 + length:
                    document = bytes(self.buffer[8 : 8 + length])
                    del self.buffer[: 8 + length]
                    ((name, body),) = msgpack.unpackb(document).items()
                    return name, body
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(4))
            if not data:
                os._exit(0)
            for _, _, content in ancillary:
                self.files += array.array("i", content).tolist()
            self.buffer += data


class Outputs:
    """Replaces the iopub socket."""

    def send_multipart(self, parts, *_, **__):
        _, header, _, metadata, content, *buffers = parts[parts.index(DELIM) + 1 :]
        kind = json.loads(header)["msg_type"]
        if kind not in ("status", "execute_input", "execute_result", "error"):
            output = {"kind": kind, "content": content, "metadata": metadata, "buffers": buffers}
            Kernel.link.send("published", output=output)


class Kernel(IPythonKernel):
    link = None
    messages = 0
    known = set()
    """Names of the segments that both ends have."""

    def start(self):
        super().start()
        self.iopub_thread.socket = Outputs()
        self.io_loop.asyncio_loop.add_reader(self.link.socket, self.on_readable)
        self.link.send("hello", version=VERSION, pid=os.getpid(), python=sys.executable, python_version=PYTHON_VERSION)

    def on_readable(self):
        loop = self.io_loop.asyncio_loop
        loop.remove_reader(self.link.socket)
        self.cells = loop.create_task(self.run_cells())
        self.cells.add_done_callback(lambda _: loop.add_reader(self.link.socket, self.on_readable))

    async def run_cells(self):
        await self.run()
        while self.link.buffer:  # the next cell arrived with the message that ended this one
            await self.run()

    async def run(self):
        name, run = self.link.receive()
        assert name == "run", name
        self.message_id = run["message_id"]
        if not self.apply(run["delta"]):
            error = {"name": "TypeError", "value": "unreadable", "traceback": [], "hint": None}
            self.link.send("refused", message_id=self.message_id, error=error)
            return
        name, _ = self.link.receive()
        assert name == "begin", name
        # A worker may interrupt twice. Only the cell's own code is interrupted.
        came = []
        signal.signal(signal.SIGINT, lambda *_: came.append(True))
        self.link.send("started", message_id=self.message_id)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if came:
                raise KeyboardInterrupt
            reply = await self.do_execute(
                run["code"], run["silent"], store_history=False, allow_stdin=run["allow_stdin"]
            )
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reply = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
        sys.stdout.flush()
        sys.stderr.flush()
        published = threading.Event()
        self.iopub_thread.schedule(published.set)
        published.wait()
        self.link.send("ended", message_id=self.message_id)
        time.sleep(self.shell.user_ns.get("packing_seconds", 0))
        outcome, error = "ok", None
        if reply["status"] == "error":
            outcome = "cancelled" if reply["ename"] == "KeyboardInterrupt" else "error"
            error = {
                "name": reply["ename"],
                "value": reply["evalue"],
                "traceback": reply.get("traceback") or [],
                "hint": None,
            }
        self.link.send(
            "finished",
            message_id=self.message_id,
            outcome=outcome,
            error=error,
            state=self.snapshot(),
            deferred_bytes=self.shell.user_ns.get("deferred_bytes", 0),
            keeps=self.shell.user_ns.get("keeps", False),
        )
        name, _ = self.link.receive()
        assert name == "released", name
        self.messages += 1

    def apply(self, delta):
        file = self.link.files.pop(0)
        size = os.fstat(file).st_size
        memory = mmap.mmap(file, size, access=mmap.ACCESS_READ) if size else b""
        os.close(file)
        stream = memory[delta["stream"]["offset"] :][: delta["stream"]["bytes"]]
        try:
            values = json.loads(stream)
        except ValueError:
            return False
        self.shell.user_ns.update(values)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            time.sleep(values.pop("applying_seconds", 0))
        except KeyboardInterrupt:
            return False
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for segment in delta["segments"]:
            name = f"segment_{segment['number']}"
            if segment["fresh"]:
                self.shell.user_ns[name] = bytearray(segment["bytes"])
                self.known.add(name)
            for patch in segment["patches"]:
                source = patch["source"]
                bytes_ = memory[source["offset"] :][: source["bytes"]]
                self.shell.user_ns[name][patch["offset"] : patch["offset"] + source["bytes"]] = bytes_
        self.messages = delta["messages"] + 1
        return True

    def snapshot(self):
        values, segments = {}, []
        for name, value in list(self.shell.user_ns.items()):
            if name.startswith("segment_") and isinstance(value, bytearray):
                address = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
                segments.append(
                    {
                        "number": int(name[8:]),
                        "address": address,
                        "bytes": len(value),
                        "fresh": name not in self.known,
                    }
                )
            elif not name.startswith("_") and isinstance(value, (int, str)):
                values[name] = value
        self.known.update(f"segment_{segment['number']}" for segment in segments)
        return {
            "messages": self.messages,
            "stream": [{"here": json.dumps(values).encode()}],
            "segments": segments,
            "dropped_segments": [],
        }

    def raw_input(self, prompt=""):
        self.questions = getattr(self, "questions", 0) + 1
        self.link.send(
            "input_wanted", message_id=self.message_id, question=self.questions, prompt=prompt, password=False
        )
        name, body = self.link.receive()
        assert name == "input", name
        if body["value"] is None:
            raise KeyboardInterrupt
        return body["value"]


def main():
    if os.environ.get("FAKE_CRASH"):
        print("this session does not want to start", file=sys.stderr)
        sys.exit(3)
    link = Link(int(os.environ.pop("BATON_SHIM_DESCRIPTOR")))
    Kernel.link = link
    app = IPKernelApp.instance()
    app.kernel_class = Kernel
    app.initialize()
    app.start()


main()
