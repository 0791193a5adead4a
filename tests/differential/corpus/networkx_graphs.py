# Graphs with attributes, views on them, algorithms, objects as nodes.

# %%
import networkx as nx

graph = nx.Graph()
graph.add_edge("a", "b", weight=2)
nodes, edges, near = graph.nodes, graph.edges, graph["a"]

# %%
graph.add_edge("b", "c", weight=5)
graph.nodes["a"]["color"] = ["red"]

# %%
print(list(nodes), list(edges(data=True)), dict(near))
part = graph.subgraph(["a", "b"])

# %%
class City:
    def __init__(self, name):
        self.name = name
rome = City("rome")
routes = nx.DiGraph()
routes.add_edge(rome, City("paris"), by=graph)

# %%
graph.remove_node("c")
path = nx.shortest_path(graph, "a", "b")
list(edges), part.number_of_edges(), [city.name for city in routes.successors(rome)]

# %%
next(iter(routes.out_edges(rome, data=True)))[2]["by"].add_edge("b", "d")
near["b"]["weight"] = 9
sorted(nodes), graph.edges["a", "b"], nx.is_connected(graph)
