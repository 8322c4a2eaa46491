"""The REST interface: handlers that decode request records and answer with view records."""
