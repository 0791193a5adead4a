"""The verbs of the end-to-end tests: real Jupyter clients, real kernels, real services.

A test reads like a script: start a kernel, run cells, check the results.
Every wait has a deadline and ends as soon as its condition holds; nothing sleeps for a fixed time.
"""

from end_to_end.background import Gate, background, speaking
from end_to_end.kernel import Cell, Kernel
from end_to_end.place import Place
from end_to_end.results import Result
from end_to_end.service import Service
from end_to_end.waiting import wait_until

__all__ = ["Cell", "Gate", "Kernel", "Place", "Result", "Service", "background", "speaking", "wait_until"]
