"""Plain Python programs: blocks under `with gpu:` and calls of `@gpu` functions without a notebook."""
