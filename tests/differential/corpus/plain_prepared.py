# Library classes that their first instance prepares, and background jobs given as text.

# %%
from IPython.lib import backgroundjobs
from pygments.lexers import PythonLexer

lexer = PythonLexer()
jobs = backgroundjobs.BackgroundJobManager()
seen = []

def note(number):
    seen.append(number)

[str(kind) for kind, text in lexer.get_tokens("x = 1") if text.strip()]

# %%
words = [text for _, text in PythonLexer().get_tokens("for a in b: pass") if text.strip()]
words

# %%
job = jobs.new("note(2)")
job.join()
status = job.status
jobs.flush()
del job
status, seen

# %%
other = jobs.new(note, 3)
other.join()
status = other.status
jobs.flush()
del other
tokens = list(lexer.get_tokens("y"))
status, seen, tokens[0][1]

# %%
del jobs, lexer, tokens
sum(seen), len(words)
