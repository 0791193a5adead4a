# Arrays, random keys, jitted functions and gradients on the CPU.

# %%
import jax
import jax.numpy as jnp

key = jax.random.key(0)
weights = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
same = weights

@jax.jit
def predict(weights, x):
    return x @ weights["w"] + weights["b"]

# %%
key, sub = jax.random.split(key)
x = jax.random.normal(sub, (4, 3))
before = weights["w"]

# %%
def loss(weights, x):
    return (predict(weights, x) ** 2).mean()

gradient = jax.grad(loss)(weights, x)
weights["w"] = weights["w"] - 0.1 * gradient["w"]

# %%
print(float(loss(weights, x)), same["w"].shape)
mapped = jax.vmap(lambda row: row * 2)(x)

# %%
changed = x.at[0, 0].set(9)
jax.tree.map(jnp.shape, weights), jax.random.key_data(key), before.sum()

# %%
jax.random.uniform(key), float(changed[0, 0]), x.dtype, same is weights, predict(weights, changed).shape
