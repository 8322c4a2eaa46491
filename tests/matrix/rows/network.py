"""Sockets of the network."""

from tests.matrix.row import Row

CHAPTER = "Network"
ROWS = [
    Row(
        "tcp-listener",
        "A TCP socket that listens",
        """
import socket
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
""",
        """
with socket.create_connection(("127.0.0.1", port), 10) as client:
    peer, _ = server.accept()
    client.sendall(b"x")
    assert peer.recv(1) == b"x"
    peer.close()
""",
    ),
    Row(
        "tcp-inside",
        "A TCP connection whose two ends are in the kernel, with bytes on the way",
        """
import socket
server = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(server.getsockname())
b, _ = server.accept()
a.sendall(b"to b")
b.sendall(b"to a")
""",
        """
for s in (a, b):
    s.settimeout(100)
assert b.recv(4) == b"to b" and a.recv(4) == b"to a"
a.sendall(b"to b")
b.sendall(b"to a")
""",
    ),
    Row(
        "tcp-outside",
        "A TCP connection to another program",
        """
import socket
outside = socket.create_connection(("127.0.0.1", OUTSIDE_PORT), 10)
n = 0
""",
        """
n += 1
if n <= 2:
    assert outside.send(b"x") == 1
else:
    try:
        assert outside.recv(1) == b""
    except ConnectionError:
        pass
""",
        exception="the connection is closed in the resumed kernel, as if the other side had hung up",
        warned="Network connections were cut",
        quick=True,
    ),
    Row(
        "udp",
        "UDP sockets, bound and connected",
        """
import socket
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
for s in (a, b):
    s.bind(("127.0.0.1", 0))
    s.settimeout(100)
a.connect(b.getsockname())
""",
        """
a.send(b"x")
assert b.recvfrom(10) == (b"x", a.getsockname())
""",
    ),
    Row(
        "tcp-ipv6",
        "An IPv6 socket that listens",
        """
import socket
server = socket.create_server(("::1", 0), family=socket.AF_INET6)
""",
        """
with socket.create_connection(server.getsockname()[:2], 10):
    server.accept()[0].close()
""",
    ),
    Row(
        "http-server",
        "An HTTP server in a thread, and a client with a connection that is kept",
        """
import http.client, http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=100)
""",
        """
client.request("GET", "/")
assert client.getresponse().read() == b"ok"
""",
    ),
    Row(
        "zmq",
        "ZeroMQ sockets between threads and over TCP",
        """
import zmq
context = zmq.Context()
a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
port = a.bind_to_random_port("tcp://127.0.0.1")
b.connect(f"tcp://127.0.0.1:{port}")
for s in (a, b):
    s.RCVTIMEO = 10000
""",
        """
b.send(b"question")
assert a.recv() == b"question"
a.send(b"answer")
assert b.recv() == b"answer"
""",
    ),
    Row(
        "udp-options",
        "Options and multicast groups of a UDP socket",
        """
import socket
group = socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1")
options = [(0, 10, 2), (0, 33, 7), (0, 34, 0), (0, 49, 0), (1, 29, 1), (1, 40, 1), (17, 103, 1200), (17, 104, 1)]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
for option in options:
    s.setsockopt(*option)
s.setsockopt(0, socket.IP_ADD_MEMBERSHIP, group)
""",
        """
assert [s.getsockopt(level, name) for level, name, _ in options] == [value for *_, value in options]
s.setsockopt(0, socket.IP_DROP_MEMBERSHIP, group)  # it fails unless the socket is a member
s.setsockopt(0, socket.IP_ADD_MEMBERSHIP, group)
""",
    ),
    Row(
        "listener-options",
        "Options of a TCP socket that listens",
        """
import socket
s = socket.create_server(("127.0.0.1", 0))
options = [(6, 2, 900), (6, 7, 3), (6, 9, 7), (6, 18, 5000), (6, 23, 9), (6, 25, 20000)]
for option in options:
    s.setsockopt(*option)
s.setsockopt(6, 13, b"reno")
""",
        """
assert [s.getsockopt(level, name) for level, name, _ in options] == [value for *_, value in options]
assert s.getsockopt(6, 13, 16).rstrip(b"\\0") == b"reno"
""",
    ),
]
