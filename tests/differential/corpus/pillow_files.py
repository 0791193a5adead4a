# %%
import numpy as np
from PIL import Image

frames = [Image.new("RGB", (2, 2), (90 * number, 0, 0)) for number in range(3)]
for name in ("a.gif", "a.tiff", "a.png"):
    frames[0].save(name, save_all=True, append_images=frames[1:])
gif, tiff, png = (Image.open(name) for name in ("a.gif", "a.tiff", "a.png"))
held = [gif, tiff]
with Image.open("a.png") as unread:
    size = unread.size
# %%
gif.seek(1)
tiff.seek(2)
tiff.putpixel((0, 0), (1, 2, 3))
gif.n_frames, tiff.n_frames, png.is_animated, gif.tell(), unread.size
# %%
with Image.open("a.png") as read:
    pixels = np.array(read)
gif.convert("RGB").getpixel((0, 0)), tiff.getpixel((0, 0)), png.tell(), held[0] is gif
# %%
png.seek(1)
tiff.seek(0)
gif.tell(), tiff.getpixel((0, 0)), png.convert("RGB").getpixel((1, 1)), read.size, read.getpixel((0, 0))
# %%
gif.close()
copy = png.copy()
pixels.shape, gif.size, held[0] is gif
# %%
try:
    gif.getpixel((0, 0))
except ValueError as error:
    print(error)
png.tell(), tiff.tell(), copy.size
# %%
del gif, held, unread, copy
tiff.seek(1)
png.seek(2)
tiff.tell(), png.convert("RGB").getpixel((0, 0))
