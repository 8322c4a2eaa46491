"""gpuckptd: the daemon that keeps kernels after their servers end, and saves and resumes them.

- `app`: the program gpuckptd.
- `host_report`: the report on this machine.
- `late_imports`: the import of `late_modules`.
- `late_modules`: the modules that a daemon needs only for work with a kernel or a snapshot.
- `lifetime`: the daemon's process: detached, and the only one of its place.
- `repeating`: work of the daemon that is done again and again, whether or not it succeeds.
- `service`: the composition root.
"""
