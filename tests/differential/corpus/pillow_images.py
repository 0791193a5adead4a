# Images changed in place, drawn on, twins with arrays.

# %%
import numpy as np
from PIL import Image, ImageDraw

image = Image.new("RGB", (40, 30), "navy")
same = [image]
pixels = np.zeros((10, 10), dtype=np.uint8)

# %%
image.putpixel((1, 2), (255, 0, 0))
pixels[3] = 200
gray = Image.fromarray(pixels)

# %%
pen = ImageDraw.Draw(image)
pen.rectangle((5, 5, 20, 20), fill="white")
del pen
image.info["note"] = ["drawn"]
print(image.getpixel((10, 10)), same[0].getpixel((1, 2)))

# %%
small = image.resize((8, 6)).convert("P")
small.putpalette([0, 0, 0, 9, 9, 9] * 128)
image.paste((0, 255, 0), (0, 0, 3, 3))

# %%
array = np.asarray(image)
array.flags.writeable, array[0, 0], same[0] is image, gray.getpixel((0, 3)), small.mode

# %%
memory = bytearray(b"abcdef")
shown = Image.frombuffer("L", (3, 2), memory, "raw", "L", 0, 1)
memory[1] = pixels[3, 1] = 9
shown.getpixel((1, 0)), gray.getpixel((1, 3))

# %%
memory[2] = pixels[3, 2] = 7
shown.getpixel((2, 0)), gray.getpixel((2, 3)), shown.putpixel((0, 0), 1), memory[0]

# %%
image.thumbnail((10, 10))
image.size, image.info, gray.rotate(90).getpixel((3, 0)), array.shape
