"""Questions of `with gpu:` and `@gpu` in plain Python programs: they are the program's own."""

from __future__ import annotations

import subprocess

from end_to_end.programs import Programs


def test_questions_are_the_programs(programs: Programs) -> None:
    name = programs.write(
        """
        from baton import gpu
        @gpu
        def ask():
            try: return input("name? "), input()
            except EOFError: return "the end"
        print(ask()); print(ask())
        """
    )
    program = programs.begin(name, stdin=subprocess.PIPE)
    output, _ = program.communicate("Ada\nLovelace\n", timeout=300)
    assert output == "name? ('Ada', 'Lovelace')\nname? the end\n"


def test_a_question_ends_with_its_session(programs: Programs) -> None:
    name = programs.write(
        """
        import os, threading
        from baton import gpu
        @gpu
        def ask():
            threading.Timer(2, os.kill, (os.getpid(), 9)).start()
            return input("name? ")
        try: ask()
        except RuntimeError as error: print(*error.__notes__)
        print(input())
        """
    )
    program = programs.begin("-m", "baton", name, stdin=subprocess.PIPE)
    assert program.stdout is not None
    while "hint: " not in (line := program.stdout.readline()):
        assert line
    assert program.communicate("Ada\n", timeout=300) == ("Ada\n", None)
