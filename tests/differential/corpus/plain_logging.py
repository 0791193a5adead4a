# Objects with locks and queues: own loggers, queues; without threading.local.

# %%
import logging
import queue
import threading

class Recorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

class Safe:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0

    def add(self):
        with self.lock:
            self.count += 1

# %%
recorder = Recorder()
safe = Safe()
jobs = queue.Queue()

# %%
recorder.handle(logging.LogRecord("a", 20, "f", 1, "hello %s", ("you",), None))
safe.add()
jobs.put([1])

# %%
safe.add()
jobs.put(safe)
print(recorder.lines, safe.count, jobs.qsize())

# %%
first = jobs.get()
first.append(2)
second = jobs.get()
second is safe, first, jobs.empty()

# %%
worker = []
thread = threading.Thread(target=safe.add)
thread.start()
thread.join()
del thread
recorder.level, safe.count
