# Arrays of some megabytes: parts changed, views over cells, in-place functions, new memory.

# %%
import numpy as np

big = np.zeros(600_000)
middle = big[200_000:400_000]
twice = [big, big]
image = np.zeros((300, 200, 3), dtype=np.uint8)

# %%
big[123_456] = 1
middle += 2
red = image[..., 0]

# %%
np.multiply(big, 3, out=big)
red[10:20] = 255
print(big.sum(), image.sum())

# %%
sorted_big = np.sort(big)
middle.sort()
image = image[::-1]

# %%
image[0] = 9
twice[0] is big, red.sum(), np.shares_memory(image, red)

# %%
big = big + 1
twice[1][0] = 77
big[0], middle[-1], sorted_big[-1]
