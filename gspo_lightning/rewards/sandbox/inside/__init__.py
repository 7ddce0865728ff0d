"""Code that runs in the sandbox: standard library only, started by ``launch.py`` without the rest of the package."""
