# JAX: classes of the notebook as tree nodes, own rules for derivatives.

# %%
import dataclasses, jax, jax.numpy as jnp

class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right

jax.tree_util.register_pytree_node(
    Pair, lambda pair: ((pair.left, pair.right), None), lambda extra, parts: Pair(*parts)
)
pair = Pair(jnp.ones(2), 3.0)

# %%
doubled = jax.tree_util.tree_map(lambda part: part * 2, pair)
doubled.left.tolist(), doubled.right, len(jax.tree_util.tree_leaves([pair, pair]))

# %%
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: jax.Array
    step: int

@jax.custom_vjp
def clipped(x):
    return x

def backwards(_, gradient):
    return (jnp.clip(gradient, -1, 1),)

clipped.defvjp(lambda x: (x, None), backwards)
state = State(jnp.zeros(2), 1)

# %%
state = jax.tree_util.tree_map(lambda part: part + 1, state)
jax.grad(lambda x: clipped(x) * 5)(1.0), state

# %%
@jax.custom_jvp
def soft(x):
    return jnp.abs(x)

@soft.defjvp
def soft_jvp(primals, tangents):
    return soft(*primals), tangents[0] * 10

@jax.jit
def advance(state, pair):
    return State(state.weights + pair.left, state.step + 1)

# %%
state = advance(state, pair)
print(state, [str(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]])
jax.grad(soft)(2.0), jax.grad(lambda x: clipped(x) * 7)(1.0)

# %%
jax.tree_util.tree_leaves(pair), jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(State(0, 1))
