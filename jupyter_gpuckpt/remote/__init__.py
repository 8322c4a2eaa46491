"""The far store: snapshots in a bucket, sealed, readable by other machines."""
