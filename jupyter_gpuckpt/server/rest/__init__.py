"""The REST interface: handlers that decode request records and answer with view records.

- `kernel_handlers`: the routes about kernels and operations.
- `openapi`: the OpenAPI description of the REST interface, generated from the records of its requests and responses.
- `rest_handler`: the base of all handlers.
- `routes`: all routes of the REST interface, with those about this machine.
- `snapshot_handlers`: the routes about snapshots, the store and remotes.
- `suspended_apps`: the answer for apps of suspended kernels.
- `template_handlers`: the routes about templates.
- `time_travel_handlers`: the routes about branches, rollbacks, and what a snapshot contains.
"""
