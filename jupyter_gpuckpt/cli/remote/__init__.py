"""The commands `jupyter gpuckpt remote` and `move`, one module each.

- `erase_command`: the command `jupyter gpuckpt remote erase`.
- `fetch_command`: the commands `jupyter gpuckpt remote sessions` and `remote fetch`.
- `key_command`: the command `jupyter gpuckpt remote key`.
- `move_command`: the command `jupyter gpuckpt move`.
- `only_copies`: the check whether a remote has the only copies of snapshots, made before it or its content is removed.
- `remote_command`: the command `jupyter gpuckpt remote`.
- `upload_command`: the commands `jupyter gpuckpt remote status` and `remote upload`.
- `prune_command`: the command `jupyter gpuckpt remote prune`.
"""
