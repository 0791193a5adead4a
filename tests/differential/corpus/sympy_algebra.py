# Symbols, expressions, matrices, solving.

# %%
import sympy as sp

x, y = sp.symbols("x y")
k = sp.Symbol("k", integer=True, positive=True)
expr = (x + y) ** 2 + sp.sin(x)

# %%
wide = sp.expand(expr)
slope = sp.diff(expr, x)

# %%
matrix = sp.Matrix([[x, 1], [0, y]])
matrix[0, 1] = k
print(wide, slope, matrix.det())

# %%
f = sp.Function("f")
solution = sp.solve(x**2 - k, x)
numeric = sp.lambdify(x, expr.subs(y, 2))

# %%
numeric(0.5), solution, x == sp.Symbol("x"), wide.free_symbols == {x, y}

# %%
total = sp.Sum(k, (k, 1, 5)).doit()
equation = sp.Eq(f(x).diff(x), f(x))
sp.dsolve(equation), total, sp.srepr(k), matrix.subs(k, 3), sp.Rational(1, 3) + total
