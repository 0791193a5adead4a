# Settings of JAX: precision, checks, the kind of random numbers.

# %%
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
x = jnp.arange(3.0)

# %%
x.dtype, jnp.ones(2) / 3

# %%
@jax.jit
def log(x):
    return jnp.log(x)
jax.config.update("jax_debug_nans", True)

# %%
try:
    log(-x - 1)
except FloatingPointError as error:
    print("found")

# %%
jax.config.update("jax_debug_nans", False)
jax.config.update("jax_default_prng_impl", "rbg")
log(-x - 1)

# %%
key = jax.random.key(3)
str(key.dtype), log(-x).dtype

# %%
with jax.disable_jit():
    total = log(x + 1).sum()
total, jax.config.jax_disable_jit
