"""The surroundings of a `%%gpu` cell are sent there and back with it, and its options work, through all of Baton."""

from __future__ import annotations

from end_to_end import Kernel


def test_the_process_around_the_cell(kernel: Kernel) -> None:
    kernel.run("import os, random, warnings; random.seed(3); first = random.random()").ok()
    kernel.run("random.seed(3); start = os.getcwd(); os.makedirs('around', exist_ok=True)").ok()
    kernel.gpu("drawn = random.random()\n%env COURSE=seven\n%cd around\nwarnings.simplefilter('ignore')").ok()
    assert kernel.evaluate("drawn == first, os.environ['COURSE'], warnings.filters[0][0]") == (True, "seven", "ignore")
    assert kernel.evaluate("os.path.relpath(os.getcwd(), start)") == "around"
    kernel.kill_session()
    kernel.run("os.chdir(start)").ok()
    seen = kernel.gpu("os.environ['COURSE'], os.getcwd() == start, warnings.filters[0][0]").ok()
    assert seen.value == "('seven', True, 'ignore')"
    kernel.run("os.rmdir('around'); del os.environ['COURSE']; warnings.filters.pop(0)").ok()
    assert kernel.gpu("'COURSE' in os.environ").ok().value == "False"


def test_a_limit_keeps_what_was_done(kernel: Kernel) -> None:
    kernel.run("import time; steps = []").ok()
    result = kernel.run("%%gpu --timeout 1s\nsteps.append(1)\nwhile True:\n    steps.append(1)\n    time.sleep(0.2)")
    assert result.reply["ename"] == "CellTimeout"
    said = result.plain_traceback
    assert "Stopped after 1 s, the limit of this cell. Its changes so far are in your notebook" in said
    assert "hint: continue from there in another cell, or ask for more with %%gpu --timeout 2s" in said
    done = kernel.evaluate("len(steps)")
    assert done > 0
    assert kernel.gpu("steps.append(2); len(steps)").ok().value == str(done + 1)
    assert kernel.evaluate("isinstance(__import__('sys').last_value, TimeoutError)")


def test_nothing_returns(kernel: Kernel) -> None:
    kernel.run("x = [1]").ok()
    result = kernel.run("%%gpu --no-return\nx.append(2)\nprint('there', x)").ok()
    assert "there [1, 2]" in result.stdout
    assert kernel.evaluate("x") == [1]
    assert kernel.gpu("x").ok().value == "[1]"


def test_status_names_the_session(kernel: Kernel) -> None:
    kernel.run("table = bytes(2 << 20)").ok()
    kernel.gpu("import os\nlen(table), (process := os.getpid())").ok()
    said = kernel.run("%gpu_status").ok().stdout
    assert "table (2.0 MiB): new to the session" in said
    assert f"process {kernel.evaluate('process')} on " in said
    kernel.run("%gpu_reset").ok()
    assert "Session: none" in kernel.run("%gpu_status").ok().stdout
