"""The audit of a tree: what Linux shows of its processes before a freeze and after a restore, compared and mended.

- `asked_facts`: facts that only the thread itself can be asked for.
- `comparison`: comparison of the facts before a freeze and after a restore.
- `descriptor_facts`: facts of a process's descriptors.
- `fact_records`: the facts of a tree, and their form in a snapshot.
- `mending`: mending of a restored tree before its tasks are let go.
- `proc_facts`: facts of processes and threads that /proc and system calls by pid show.
- `reading`: reading all facts of a tree whose tasks stand still.
- `socket_facts`: facts of sockets, read from duplicated descriptors.
- `terminal_queues`: bytes that wait in terminals.
- `wording`: sentences for users about what is not as it was.
"""
