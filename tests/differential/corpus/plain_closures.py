# Closures that share variables, nonlocal, functions with attributes and defaults.

# %%
def account(balance):
    history = []

    def deposit(amount):
        nonlocal balance
        balance += amount
        history.append(amount)
        return balance

    def look():
        return balance, list(history)

    look.history = history
    return deposit, look

deposit, look = account(10)

# %%
deposit(5)
others = [account(n) for n in range(2)]

# %%
deposit(7)
look.history.append("note")
others[1][0](100)
print(look(), others[1][1](), others[0][1]())

# %%
def collect(item, into=[]):
    into.append(item)
    return into

first = collect(1)

# %%
second = collect(2)
first is second, collect.__defaults__[0] is first

# %%
makers = [lambda: number for number in range(3)]
late = [lambda number=number: number for number in range(3)]
rate = 2

def scaled(x, *, by=None):
    return x * (by or rate)

# %%
rate = 5
scaled.calls = [scaled(1), scaled(1, by=3)]
[make() for make in makers], [make() for make in late], scaled.calls

# %%
rate = 6
scaled(1), look()
