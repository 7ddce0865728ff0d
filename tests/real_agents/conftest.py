"""Programs of the agents' own environments import what the tests' environment lacks: they are no modules of doctests."""

collect_ignore = ["openenv_capture.py", "openenv_server.py"]
