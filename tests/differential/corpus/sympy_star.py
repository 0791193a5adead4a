# All names of sympy at once, printing, and domains.

# %%
import sympy
from sympy import *
init_printing(use_latex="mathjax")
del igcd
x, y = symbols("x y", positive=True)

# %%
expression = expand((x + y)**2)
expression

# %%
half = QQ(1, 2)
QQ is sympy.QQ, ZZ is sympy.ZZ, half + 1, Poly(x**2 - 1, x).get_domain() is ZZ

# %%
factored = factor(expression)
print(factored, pi is sympy.pi, half)

# %%
matrix = Matrix([[x, 1], [1, y]])
print(matrix.det(), solve(x**2 - 2, x), RR is sympy.RR)

# %%
value = N(pi, 30)
print(value, QQ is sympy.QQ, integrate(1 / x, (x, 1, y)))
