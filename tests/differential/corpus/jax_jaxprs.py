# Programs of JAX as values: printed, interpreted, differentiated where another cell made them.

# %%
import jax
import jax.numpy as jnp
from jax import lax


def f(x):
    return jnp.exp(jnp.sin(x))


program = jax.make_jaxpr(f)(2.0)
print(program)

# %%
known = {lax.sin_p: jnp.arcsin, lax.exp_p: jnp.log}


def inverse(program, value):
    for equation in reversed(program.eqns):
        value = known[equation.primitive](value)
    return value


print([equation.primitive is lax.sin_p for equation in program.eqns])

# %%
round(float(inverse(program.jaxpr, f(1.0))), 4), str(program)

# %%
@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


def forward(x):
    return clipped(x), jnp.cos(x)


def backward(cosine, gradient):
    return (jnp.clip(cosine * gradient, -0.5, 0.5),)


clipped.defvjp(forward, backward)
value, pull_back = jax.vjp(clipped, 3.0)

# %%
print(pull_back(1.0), value)
value, push = jax.linearize(f, 0.5)

# %%
print(push(1.0), value)

# %%
del program, pull_back, push, known, clipped
