# Data classes: defaults, frozen, order, slots, inheritance, fields that share.

# %%
from dataclasses import dataclass, field

@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list = field(default_factory=list)

@dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0

@dataclass
class Point3(Point):
    z: float = 0.0

    def norm(self):
        return (self.x**2 + self.y**2 + self.z**2) ** 0.5

# %%
p = Point(1.0)
q = Point(1.0, 2.0, p.tags)
same_tags = q.tags is p.tags
versions = {Version(1): "one", Version(1, 2): "two"}

# %%
@dataclass(slots=True)
class Slotted(object):
    a: int
    b: "Slotted | None" = None

chain = Slotted(1, Slotted(2))
chain.b.b = chain

# %%
p.tags.append("from p")
p.x += 0.5
latest = max(versions)
print(q, latest, versions[Version(1, 2)])

# %%
chain.b.a = 20
chain.a, chain.b.b.a = 5, 6
try:
    latest.major = 9
except Exception as error:
    print(type(error).__name__, error)

# %%
r = Point3(1, 2, p.tags, 2)
r.norm(), isinstance(r, Point), hasattr(chain, "__dict__")

# %%
r.tags.append("from r")
p.tags, repr(chain.b.a)
