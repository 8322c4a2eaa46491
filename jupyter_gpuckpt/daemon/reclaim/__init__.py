"""Notices that this machine will go: their sources, one module each, and the daemon's reaction.

- `aws`: sources for Amazon EC2.
- `azure`: source for Azure.
- `endpoints`: client for a provider's metadata service or an administrator's URL.
- `first_saves`: the saves of kernels that run on.
- `gcp`: sources for Google Compute Engine.
- `logind`: source of shutdown notices from systemd's login manager.
- `notice_watch`: the choice of this machine's sources.
- `polling`: the loop that polls a source and yields new notices, their changes and their withdrawals.
- `reaction`: the daemon's reaction when this machine goes.
- `risks`: the kernels and snapshots that would be lost with this machine.
"""
