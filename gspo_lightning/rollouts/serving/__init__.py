"""What every server of rollouts needs: connections, a pool, weights on disk, a process that dies with its parent."""
