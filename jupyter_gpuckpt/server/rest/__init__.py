"""REST routes: request records in, answers out."""
