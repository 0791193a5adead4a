"""`python -m baton train.py`: runs a program that may use `with gpu:` anywhere, also in its own file."""

from baton_shim.program import run

run.main()
