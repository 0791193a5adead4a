# Binary data read through views of `bytes`, without copies.

# %%
import struct

data = struct.pack("<4shh", b"WAVE", 2, 44) + bytes(range(12))
view = memoryview(data)
head, body = view[:8], view[8:]

# %%
kind, channels, rate = struct.unpack("<4shh", head)
pairs = body.cast("H")
print(kind, channels, rate, pairs.tolist(), body.obj is data)

# %%
grid = body.cast("B", (3, 4))
parts = {"grid": grid, "even": body[::2], "back": body[::-1], "same": body}
del head
parts["same"] is body

# %%
print(grid.tolist(), parts["even"].tolist(), parts["back"].tobytes(), parts["grid"] is grid)
with memoryview(data) as whole:
    size = whole.nbytes

# %%
try:
    len(whole)
except ValueError as error:
    print(error)
size, hash(body) == hash(bytes(body)), parts["even"].obj is data, grid.shape, grid.readonly
