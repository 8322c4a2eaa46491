"""TCP connections with both ends in a tree, which are recorded for a snapshot and recreated for a resume.

- `listeners`: the listening sockets of a tree that stands still.
- `record`: the recording of TCP connections with both ends in a tree, while the tree stands still.
- `remake`: the recreation of TCP connections within a tree for a resume.
- `socket_options`: transfer of the options and buffer sizes of a TCP socket to another socket that replaces it.
- `unaccepted`: what clients in the tree have sent to a listener of the tree that has not accepted them yet.
"""
