# A figure that several cells draw on.

# %%
%matplotlib inline
import matplotlib
import matplotlib.pyplot as plt
import numpy as np

figure, axes = plt.subplots(1, 2)
plt.close(figure)
x = np.linspace(0, 3, 20)

# %%
(line,) = axes[0].plot(x, np.sin(x), label="sin")
axes[1].bar(["a", "b"], [1, 2])

# %%
line.set_color("red")
axes[0].legend()
axes[0].set_title("title")
print(len(axes[0].lines), line.axes is axes[0])

# %%
line.set_ydata(np.cos(x))
figure.suptitle("both")
left = figure.axes[0]

# %%
left.set_xlim(0, 1)
left is axes[0], left.get_lines()[0] is line, figure.get_suptitle()

# %%
drawn = []
number = figure.canvas.mpl_connect("draw_event", lambda event: drawn.append(event.name))
figure.canvas.draw()
len(drawn), np.asarray(figure.canvas.buffer_rgba()).shape

# %%
figure.canvas.draw()
figure.canvas.mpl_disconnect(number)
figure.canvas.draw()
len(drawn), number

# %%
figure
