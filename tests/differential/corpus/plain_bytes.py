# bytearray, array.array, memoryview inside cells, struct, BytesIO and StringIO.

# %%
import array
import io
import struct

buffer = bytearray(b"0123456789")
numbers = array.array("d", [1.0, 2.0])
alias = buffer
stream = io.BytesIO(b"abc")
text = io.StringIO("one\ntwo\n")

# %%
buffer[2:4] = b"ABCDEF"
with memoryview(numbers) as view:
    view[0] = 9.5
del view
numbers.append(3.0)

# %%
stream.seek(0, 2)
stream.write(b"def")
print(bytes(alias), numbers, text.readline())

# %%
struct.pack_into("<I", buffer, 0, 7)
numbers.extend([4, 5])
del numbers[0]
buffer.hex(), stream.getvalue(), text.tell()

# %%
holder = {"buffer": buffer, "parts": [numbers, numbers]}
large = bytearray(300_000)
large[100_000] = 1

# %%
large[200_000:200_003] = b"xyz"
holder["parts"][0].append(1)
text.readline(), sum(large), holder["parts"][1] is numbers, alias is buffer

# %%
large.extend(b"end")
len(large), large[-3:], stream.tell(), text.read()
