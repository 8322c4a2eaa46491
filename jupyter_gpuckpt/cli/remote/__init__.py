"""The commands `jupyter gpuckpt remote` and `move`, one module each.

- `erase_command`: the command `jupyter gpuckpt remote erase`.
- `fetch_command`: the commands `jupyter gpuckpt remote sessions` and `remote fetch`.
- `keep_command`: the command `jupyter gpuckpt remote keep`.
- `key_command`: the command `jupyter gpuckpt remote key`.
- `move_command`: the command `jupyter gpuckpt move`.
- `only_copies`: the check whether a remote has the only copies of snapshots, made before it or its content is removed.
- `prices`: estimates of the cost of uploads, from counted requests and bytes and a table of prices.
- `remote_command`: the command `jupyter gpuckpt remote`.
- `upload_command`: the commands `jupyter gpuckpt remote status` and `remote upload`.
- `verify_command`: the command `jupyter gpuckpt remote verify`.
"""
