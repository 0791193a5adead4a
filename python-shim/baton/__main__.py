"""`python -m baton train.py`: runs a program in which blocks under `with gpu:` may stand anywhere."""

from baton_shim.program import run

run.main()
