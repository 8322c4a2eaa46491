"""What passes between pages and a kernel: the gate, output, comms and probes."""
