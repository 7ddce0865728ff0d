"""Modules for the server's process: standard library only, imported by name from this folder without the package."""
