# Matches of regular expressions: kept, asked for groups, expanded, and searched again from their place.

# %%
import re

letter = "3 May. Bistritz. Left Munich at 8:35 P.M., on 1st May, arriving at Vienna early next morning."
time = re.search(r"(?P<hour>\d+):(?P<minute>\d+) (?P<half>[AP])\.M\.", letter)
words = list(re.finditer(r"(?<=\b)[A-Z](\w+)|(\d)", letter))
nothing = re.match("May", letter)
time

# %%
print(time.group("hour"), time.span(), time.groupdict(), time.string is letter, words[3].start())
if nothing is None:
    whole = re.compile(r"\d \w+").fullmatch(letter, 0, 5)

# %%
time.expand(r"\g<minute> past \g<hour>"), [found.lastindex for found in words], whole.endpos, whole[0]

# %%
end = re.compile(r"\w+\.$").search(letter, words[-1].end())
lengths = {found: len(found[0]) for found in words[:2]}

# %%
end.pos, end[0], sorted(lengths.values()), [found in lengths for found in words[:3]], end.re.pattern
