"""The REST interface: handlers that decode request records and answer with view records.

- `host_handler`: the routes about this machine.
- `kernel_handlers`: the routes about kernels and operations.
- `openapi`: the OpenAPI description of the REST interface, generated from the records of its requests and responses.
- `remote_handlers`: the routes about remotes and the snapshots in them.
- `rest_handler`: the base of all handlers.
- `routes`: all routes of the REST interface.
- `snapshot_handlers`: the routes about snapshots and the store.
- `suspend_reports`: the outcomes of a suspend of all kernels.
- `suspended_apps`: the answer for apps of suspended kernels.
- `time_travel_handlers`: the routes about branches, rollbacks, changes since a snapshot.
- `variable_handlers`: the routes about variables.
"""
