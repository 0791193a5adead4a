# Objects without pickling of their own that the other kernel creates again: sort keys, scanners, templates, results.

# %%
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cmp_to_key

from jinja2 import Environment, Template

compared = []

def downwards(left, right):
    compared.append((left, right))
    return right - left

key = cmp_to_key(downwards)
two = key(2)
tokens = re.Scanner([(r"\d+", lambda scanner, text: int(text)), (r"[a-z]+", lambda scanner, text: text), (r"\s+", None)])
greeting = Template("Hello {{ name }}{% for mark in marks %}{{ mark }}{% endfor %}")
environment = Environment()
environment.filters["twice"] = lambda text: text * 2
with ThreadPoolExecutor(1) as pool:
    results = [pool.submit(divmod, 7, number) for number in range(2)]
del pool

# %%
print(sorted([1, 3, 2], key=key), two < key(3), two.obj, compared[0], tokens.scan("12 ab 3"))
print(greeting.render(name="a", marks="!?"), results[1].result(), results[0].exception(), [one.done() for one in results])
twice = environment.from_string("{{ text | twice }}")

# %%
print(sorted([1, 3], key=key), len(compared) > 3, tokens.scan("4 cd"), greeting.render(name="b"), twice.render(text="x"))
kept = results[1]
seen = []
kept.add_done_callback(lambda one: seen.append(one.result()))

# %%
environment.filters["twice"] = str.upper
print(twice.environment is environment, environment.from_string("{{ 'y' | twice }}").render(), seen, kept is results[1])
print(max([5, 8], key=key), tokens.scan("5"), twice.render(text="z"))

# %%
print(kept.result(), greeting.environment.filters["upper"]("a"), twice.render(text="x"), two > key(1))
del tokens, key, two
