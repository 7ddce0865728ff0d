"""Programs that run in the environments of agents, with packages that are missing here, have no doctests."""

collect_ignore = ["openenv_capture.py", "openenv_server.py", "vf_calculator.py", "vf_tools.py"]
