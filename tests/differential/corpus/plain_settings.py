# Settings of the process around the names: filters, levels, folders, paths, environment, random numbers, precision.

# %%
import decimal
import locale
import logging
import os
import random
import sys
import tempfile
import warnings

warnings.simplefilter("always")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
os.environ["COURSE_STEP"] = "1"
random.seed(3)

# %%
warnings.warn("first")
logging.info("started")
logging.debug("not shown")
os.environ["COURSE_STEP"] += "2"
folder = os.getcwd()
drawn = [random.random()]

# %%
warnings.filterwarnings("ignore", message="quiet")
logging.getLogger().setLevel(logging.DEBUG)
logging.getLogger("course.part").setLevel(logging.ERROR)
made = tempfile.mkdtemp(dir=folder)
os.chdir(made)
drawn.append(random.gauss(0, 1))
sys.path.append("/nowhere")

# %%
warnings.warn("quiet")
warnings.warn("loud", DeprecationWarning)
logging.debug("now shown")
logging.getLogger("course.part").warning("not shown")
decimal.getcontext().prec = 5
drawn.append(random.randrange(100))
print(os.getcwd() == made, "/nowhere" in sys.path, os.environ["COURSE_STEP"])

# %%
os.chdir(folder)
os.rmdir(made)
del made
sys.path.remove("/nowhere")
del os.environ["COURSE_STEP"]
third = decimal.Decimal(1) / 3
sys.setrecursionlimit(sys.getrecursionlimit() + 10)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        warnings.warn("raised")
    except UserWarning as error:
        print("caught", error)

# %%
warnings.resetwarnings()
warnings.simplefilter("ignore")
warnings.warn("nobody sees it")
logging.disable(logging.INFO)
logging.info("not shown")
drawn.append(random.random())
os.getcwd() == folder, "/nowhere" in sys.path, "COURSE_STEP" in os.environ, drawn, str(third), sys.getrecursionlimit()

# %%
logging.disable(logging.NOTSET)
logging.warning("shown again")
warnings.warn("not seen")
decimal.getcontext().prec, random.random()
