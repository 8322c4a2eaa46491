"""CRIU: its command lines, its dumps, its image files, and the library that is preloaded into it (preload.c).

- `action_script`: the daemon's side of CRIU's action script.
- `cache`: copies of CRIU's cache of Linux features, from one kernel's scratch to the next kernel's.
- `command_lines`: the command lines of `criu dump` and `criu restore`.
- `deleted_files`: deleted files that a tree has mapped, made accessible to an unprivileged CRIU.
- `dump`: the runs of `criu dump`.
- `file_images`: edits of files.img before a restore, of entries that CRIU would restore wrongly or refuse.
- `hidden_pages`: pages that CRIU does not see in a skeleton dump.
- `images`: a reader and editor of CRIU's image files, at the level of protobuf's wire format.
- `inet_images`: edits of the TCP and UDP sockets in CRIU's images.
- `injection.c`: CRIU's code in tasks, run without breakpoints.
- `lock_images`: file locks in CRIU's images that a restore would not get.
- `log_causes`: translation of errors in CRIU's log into a cause and a hint for users.
- `log_subjects`: names for users of what CRIU's messages are about.
- `memory_images`: a process's memory in CRIU's images.
- `messages.c`: part of the library that is preloaded into CRIU: messages.
- `missing_files`: files that a kernel had open and that are missing when it is resumed.
- `owner_images`: edits of owners and credentials in CRIU's images.
- `pipes.c`: part of the library that is preloaded into CRIU: pipes of an ordinary user.
- `preload.c`: the library that is preloaded into CRIU.
- `sqlite_locks`: SQLite databases that the processes in CRIU's images use in the middle of a transaction, recognized by their locks.
- `unix_images`: edits of the unix sockets in CRIU's images.
- `watched_files`: a search for the files and folders that a tree watches by inotify.
"""
