"""What `baton run` runs: a whole notebook or a script, as one job.

The job is a cell like any other: its code calls `run_notebook` or `run_script` here, in the session. Each starts a
separate process, so that the notebook has a plain IPython kernel and the script an interpreter. Their output goes to
`baton run` as output of the job.
"""
