"""Shared parts of server rollouts: connections, a pool, weights on disk, a process that dies with its parent."""
