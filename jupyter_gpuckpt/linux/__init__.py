"""Facilities of Linux that the daemon and its clients both use, one a module.

- `beneath`: access to files below one folder without following links.
- `control_groups`: the control groups above this process, and how many processors it may use.
- `disk_reserve`: room on a disk for small writes that must succeed although the disk is full.
- `file_locks`: locks between processes of one machine, held on files.
- `foreign_files`: opening of files that others may have created or replaced.
- `fresh_memory`: allocation of memory for large buffers.
- `ports`: ports reserved for a process that does not listen on them at the moment.
- `pwrite`: writing all of a buffer at an offset of a file.
- `shared_folders`: the check whether file locks in a folder work for every process that can write there, on this host and on others.
- `tcp_callers`: the user of the program at the other end of a TCP connection of this machine.
- `tcp_sockets`: the TCP sockets of a network namespace.
"""
