# Own loggers: handlers, formatters and filters that the notebook created.

# %%
import io
import logging

class Recorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))

class OnlyShort(logging.Filter):
    def filter(self, record):
        return len(record.getMessage()) < 12

log = logging.getLogger("course")
log.setLevel(logging.DEBUG)
log.propagate = False
recorder = Recorder()
recorder.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
log.addHandler(recorder)

# %%
log.info("one")
child = logging.getLogger("course.child")
child.debug("from the child")

# %%
stream = io.StringIO()
second = logging.StreamHandler(stream)
log.addHandler(second)
recorder.addFilter(OnlyShort())
log.warning("two")

# %%
log.error("three, a longer one")
print(recorder.lines, stream.getvalue(), len(log.handlers), log.handlers[0] is recorder)

# %%
log.removeHandler(second)
logging.getLogger("course").critical("four")
adapter = logging.LoggerAdapter(log, {"user": "ada"})

# %%
adapter.info("five")
recorder.lines, stream.getvalue(), log.handlers[0] is recorder, adapter.logger is log, child.parent is log
