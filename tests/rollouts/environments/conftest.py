"""A program that needs a package of an extra has no doctests."""

collect_ignore = ["mcp_server.py"]
