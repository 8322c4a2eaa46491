"""A Jupyter server for the tools' tests, as tests/server has it."""

from tests.server.conftest import (
    clean_server,
    eventually,
    fails_if_the_server_died,
    make_server,
    server_of_all,
)

__all__ = ["clean_server", "eventually", "fails_if_the_server_died", "make_server", "server_of_all"]
