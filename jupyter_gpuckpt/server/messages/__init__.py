"""The messages between pages and a kernel: the gate, output, comms and probes."""
