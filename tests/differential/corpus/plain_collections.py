# deque, Counter, heapq, bisect, namespaces.

# %%
from collections import Counter, deque
import heapq
from types import SimpleNamespace

queue = deque([1, 2, 3], maxlen=4)
counts = Counter("abracadabra")
heap = [5, 1, 4]
heapq.heapify(heap)

# %%
queue.append(4)
queue.append(5)
counts.update("aaa")
print(queue, counts.most_common(2))

# %%
heapq.heappush(heap, 0)
queue.rotate(1)
space = SimpleNamespace(heap=heap, queue=queue)
counts.subtract(b=1, z=2)

# %%
space.heap.append(99)
space.deeper = SimpleNamespace(up=space)
queue.appendleft(heap)
heap, counts["z"], queue.maxlen

# %%
space.deeper.up.queue.popleft()
counts += Counter(a=1)
counts, len(queue), space.deeper.up is space

# %%
queue.extend([space, space])
queue[-1] is space, sum(counts.values()), heapq.nsmallest(2, space.heap)
