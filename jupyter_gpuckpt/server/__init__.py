"""The server extension: kernels of this Jupyter server that can be saved, suspended and resumed.

- `extension`: the extension application.
- `jupyter_internals`: private names of jupyter_server, jupyter_client and tornado.
- `rest_records`: the records of the REST interface and of events.
- `service`: the composition root.
- `traits`: the configuration of the server extension, `c.GpuCkptServer`.
"""
