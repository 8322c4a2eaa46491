"""Notebooks, cut in two: cells that are run before a session is saved, and what is asked of it when it is back.

What is right is what the same notebook says in a kernel that was never saved, so every answer must be the same in every run.
(Python's own `random` is not asked: ipykernel draws from it whenever a client asks who it is.)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notebook:
    """`rest`: what a user would call it, and the code whose last expression is the answer."""

    name: str
    cells: list[str]
    rest: dict[str, str]
    #: Of modules without which it cannot be run.
    needs: list[str] = field(default_factory=list)


NOTEBOOKS = [
    Notebook(
        "tables",
        [
            "import numpy as np\nimport pandas as pd\nrng = np.random.default_rng(1)",
            "array = rng.standard_normal(12_500_000)",
            "frame = pd.DataFrame({'key': rng.integers(0, 1000, 200_000), 'value': rng.random(200_000)})",
            "frame['name'] = frame.key.map(lambda key: f'name {key}')",
            "settings = {'rate': 0.5}\ndef scaled(x):\n    return x * settings['rate']",
            "class Model:\n    def __init__(self, w):\n        self.w = w\n    def predict(self, x):\n"
            "        return self.w * x\nmodel = Model(3)",
            "double = lambda x: 2 * x",
            "def counter():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n"
            "    return step\ncount = counter()\ncount()",
        ],
        {
            "array": "round(float(array.sum()), 3)",
            "data frame": "round(float(frame.groupby('name').value.mean().iloc[7]), 6)",
            "function": "scaled(5)",
            "object of a class of its own": "model.predict(2)",
            "lambda": "double(4)",
            "closure": "count()",
            "random generator": "float(rng.random())",
        },
    ),
    Notebook(
        "names of one object",
        [
            "import numpy as np\narray = np.zeros(1000)",
            "view = array[10:20]",
            "row = [1]\nsame = row",
            "table = {'row': row}",
        ],
        {
            "view of an array": "array[10] = 5\nfloat(view[0])",
            "two names of a list": "row.append(2)\nsame",
            "list in a dictionary": "table['row'] is row",
        },
    ),
    Notebook(
        "generator",
        [
            "def squares():\n    number = 0\n    while True:\n        yield number * number\n        number += 1",
            "numbers = squares()",
            "first = [next(numbers) for _ in range(5)]",
            "pairs = zip('abc', squares())\nnext(pairs)",
            "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n"
            "        ticks += 1\n        await asyncio.sleep(0.01)\ntask = asyncio.create_task(tick())",
        ],
        {
            "generator": "next(numbers)",
            "zip": "next(pairs)",
            "task of asyncio": "before = ticks\nfor _ in range(300):\n    if ticks > before:\n        break\n"
            "    await asyncio.sleep(0.01)\nticks > before and not task.done()",
        },
    ),
    Notebook(
        "thread",
        [
            "import queue, threading, time",
            "count = 0\ndef work():\n    global count\n    while True:\n        count += 1\n        time.sleep(0.01)\n"
            "thread = threading.Thread(target=work, daemon=True)\nthread.start()",
            "lock = threading.Lock()\nlock.acquire()",
            "jobs = queue.Queue()\njobs.put('job')",
        ],
        {
            "running thread": "before = count\nfor _ in range(300):\n    if count > before:\n        break\n"
            "    time.sleep(0.01)\ncount > before and thread.is_alive()",
            "lock": "lock.locked()",
            "queue": "jobs.get(timeout=1)",
        },
    ),
    Notebook(
        "files",
        [
            "from pathlib import Path\nimport tempfile\nPath('lines').write_text('one\\ntwo\\nthree\\n')",
            "lines = open('lines')\nlines.readline()",
            "out = open('out', 'w')\nout.write('a')",
            "unnamed = tempfile.TemporaryFile()\nunnamed.write(b'kept')",
        ],
        {
            "place in a file": "lines.readline()",
            "what was not flushed yet": "out.write('b')\nout.close()\nPath('out').read_text()",
            "file without a name": "unnamed.seek(0)\nunnamed.read()",
        },
    ),
    Notebook(
        "database",
        [
            "import sqlite3\ndatabase = sqlite3.connect(':memory:')",
            "database.execute('create table t (x)')\ndatabase.executemany('insert into t values (?)', [(1,), (2,)])",
            "file = sqlite3.connect('file.sqlite')\nfile.execute('create table if not exists t (x)')\n"
            "file.execute('insert into t values (1)')\nfile.commit()",
            "file.execute('insert into t values (2)')",
        ],
        {
            "database in memory": "database.execute('select sum(x) from t').fetchone()",
            "open transaction": "inside = file.in_transaction\nfile.commit()\n"
            "(inside, file.execute('select sum(x), count(*) from t').fetchone())",
        },
    ),
    Notebook(
        "processes",
        [
            "import multiprocessing, subprocess, sys",
            "code = 'import sys\\ntotal = 0\\nfor line in sys.stdin:\\n    total += int(line)\\n    print(total, flush=True)'",
            "adder = subprocess.Popen([sys.executable, '-c', code], stdin=-1, stdout=-1, text=True)",
            "def add(number):\n    print(number, file=adder.stdin, flush=True)\n    return adder.stdout.readline()\nadd(5)",
            "pool = multiprocessing.get_context('fork').Pool(2)\npool.map(abs, [-1, -2])",
        ],
        {
            "child process": "add(7)",
            "pool of workers": "pool.map_async(abs, [-3, -4]).get(5)",
        },
    ),
    Notebook(
        "state of modules",
        [
            "import decimal, os\nimport numpy as np\nnp.random.seed(5)\nnp.random.random()",
            "decimal.getcontext().prec = 50",
            "os.environ['MODE'] = 'fast'\nos.makedirs('below', exist_ok=True)\nos.chdir('below')",
            "os.answer = 42",
        ],
        {
            "random numbers": "float(np.random.random())",
            "precision": "str(decimal.Decimal(1) / 3)",
            "environment": "os.environ.get('MODE')",
            "working directory": "os.path.basename(os.getcwd())",
            "patched module": "os.answer",
        },
    ),
    Notebook(
        "web server",
        [
            "import http.server, threading, urllib.request",
            "hits = []\nclass Handler(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n"
            "        hits.append(self.path)\n        self.send_response(200)\n        self.end_headers()\n"
            "        self.wfile.write(b'%d' % len(hits))\n    def log_message(self, *words):\n        pass",
            "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)\n"
            "threading.Thread(target=server.serve_forever, daemon=True).start()",
            "def get():\n    with urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/', timeout=5) as page:\n"
            "        return page.read()\nget()",
        ],
        {"web server": "get()"},
    ),
    Notebook(
        "torch on the CPU",
        [
            "import torch\ntorch.manual_seed(1)\nlayer = torch.nn.Linear(100, 100)",
            "optimizer = torch.optim.AdamW(layer.parameters())\nloss = layer(torch.ones(100)).sum()\nloss.backward()",
        ],
        {
            "model": "float(layer(torch.ones(100)).sum().detach())",
            "gradients": "optimizer.step()\nfloat(layer(torch.ones(100)).sum().detach())",
            "random numbers": "float(torch.rand(1))",
            "tape": "float(loss.grad_fn(torch.ones(())).sum()) if loss.grad_fn else None",
        },
        needs=["torch"],
    ),
]
