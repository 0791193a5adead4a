# Widgets that hold bytes: an image, a sound, and a form for files.

# %%
import io

import ipywidgets as widgets
from PIL import Image

def png(colour):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), colour).save(buffer, "png")
    return buffer.getvalue()

image = widgets.Image(value=png("red"), format="png", width=40)
sound = widgets.Audio(value=b"RIFF\0\0\0\0WAVE", format="wav", autoplay=False)

# %%
image.value = png("blue")
len(image.value), bytes(sound.value), sound.format

# %%
upload = widgets.FileUpload()
upload.value = [{"name": "a.txt", "type": "text/plain", "size": 3, "content": b"abc", "last_modified": 0}]
Image.open(io.BytesIO(image.value)).getpixel((0, 0))

# %%
sound.value = bytes(sound.value) + b"data"
[(one.name, one.size, bytes(one.content)) for one in upload.value]

# %%
found = bytes(sound.value), Image.open(io.BytesIO(image.value)).size
for widget in (image, sound, upload):
    widget.close()
del image, sound, upload, widget
found
