"""Renames folders and puts links to a folder outside in their place, while another process works there.

In: a folder, the folder outside, and a line that ends each round. Out: a line at the beginning and end of each round.
This program itself follows no link.
"""

import os
import select
import sys
from contextlib import suppress

INSIDE = os.O_DIRECTORY | os.O_NOFOLLOW


def exchange(folder: int, name: str, outside: str) -> None:
    aside = f"{name} aside"
    with suppress(OSError):
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        with suppress(OSError):
            os.symlink(outside, name, dir_fd=folder)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)


def main() -> None:
    for line in sys.stdin:
        path, outside = line.rstrip("\n").split("\t")
        root = os.open(path, INSIDE)
        print("begins", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            for name in "ab":
                exchange(root, name, outside)
            with suppress(OSError):
                below = os.open("a", INSIDE, dir_fd=root)
                try:
                    for name in "ab":
                        exchange(below, name, outside)
                finally:
                    os.close(below)
        sys.stdin.readline()
        os.close(root)
        print("ends", flush=True)


if __name__ == "__main__":
    main()
