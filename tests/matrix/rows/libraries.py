"""Libraries of data science."""

from tests.matrix.row import Row

CHAPTER = "Libraries"
ROWS = [
    Row(
        "pandas",
        "pandas frames and a reader that is half through a file",
        """
import pandas as pd
frame = pd.DataFrame({"a": range(1000)})
frame.to_csv("frame.csv", index=False)
reader = pd.read_csv("frame.csv", chunksize=10)
expected = 0
""",
        """
assert next(reader)["a"].iloc[0] == expected
expected += 10
assert frame["a"].sum() == 499500
""",
    ),
    Row(
        "pyarrow",
        "Arrow tables, mapped and in memory",
        """
import pyarrow as pa, pyarrow.parquet as pq
table = pa.table({"a": list(range(1000))})
pq.write_table(table, "t.parquet")
mapped = pq.read_table("t.parquet", memory_map=True)
""",
        """
assert mapped.equals(table) and pq.read_table("t.parquet").equals(table)
""",
        needs=("pyarrow",),
        patience=3 * 60,
    ),
    Row(
        "matplotlib",
        "matplotlib figures",
        """
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
line, = axes.plot([0, 1], [0, 1])
n = 2
""",
        """
axes.plot([0, n])
assert len(axes.lines) == n
n += 1
figure.savefig("figure.png")
""",
        patience=3 * 90,
    ),
    Row(
        "torch-loader",
        "PyTorch: a DataLoader with persistent workers in mid-epoch",
        """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(400), batch_size=2, num_workers=2, persistent_workers=True)
batches, expected = iter(loader), 0
""",
        """
assert next(batches).tolist() == [expected, expected + 1]
expected += 2
""",
        needs=("torch",),
        patience=3 * 90,
    ),
    Row(
        "torch-store",
        "torch.distributed's TCPStore",
        """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True)
n = 0
""",
        """
n += 1
assert store.add("n", 1) == n
""",
        needs=("torch",),
        patience=3 * 90,
    ),
    Row(
        "dask",
        "Dask: a LocalCluster with processes",
        """
from dask.distributed import Client, LocalCluster
cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
client = Client(cluster)
def add(a, b):
    return a + b
kept = client.submit(add, 1, 2)
""",
        """
assert kept.result(timeout=100) == 3
assert client.submit(sum, [kept, 4]).result(timeout=100) == 7
assert sum(client.gather(client.map(abs, range(-50, 0)))) == 1275
""",
        needs=("distributed",),
        patience=3 * 120,
    ),
    Row(
        "ray",
        "Ray with workers",
        """
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
@ray.remote
def square(n):
    return n * n
""",
        """
assert ray.get([square.remote(n) for n in range(10)], timeout=60) == [n * n for n in range(10)]
""",
        needs=("ray",),
        patience=3 * 120,
    ),
    Row(
        "ipyparallel",
        "ipyparallel with engines",
        """
import ipyparallel
cluster = ipyparallel.Cluster(n=2, engines="local")
client = cluster.start_and_connect_sync()
view = client[:]
""",
        """
assert view.map_sync(abs, range(-10, 0)) == list(range(10, 0, -1))
""",
        needs=("ipyparallel",),
        patience=3 * 120,
    ),
]
