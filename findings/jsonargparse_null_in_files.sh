#!/usr/bin/env bash
# jsonargparse checks no type of null in a configuration file: an integer is None there, which the command line refuses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check jsonargparse==4.53.0 PyYAML==6.0.3
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version
from pathlib import Path

import jsonargparse


class Settings:
    def __init__(self, temperature: float = 1.0, names: list[str] = ["a"], shuffle: bool = True) -> None:
        """Have settings of which none may be None."""


parser = jsonargparse.ArgumentParser(exit_on_error=False)
parser.add_argument("--config", action="config")
parser.add_argument("--steps", type=int, default=3)
parser.add_class_arguments(Settings)


def parsed(arguments, name):
    """Value of a setting, or refused."""
    try:
        return parser.parse_args(arguments)[name]
    except jsonargparse.ArgumentError:
        return "refused"


print("jsonargparse", version("jsonargparse"))
as_described = True
for name in ("steps", "temperature", "names", "shuffle"):
    Path("null.yaml").write_text(f"{name}: null\n")
    Path("text.yaml").write_text(f"{name}: {{}}\n")
    in_file, wrong, as_option = (
        parsed(arguments, name) for arguments in (["--config=null.yaml"], ["--config=text.yaml"], [f"--{name}=null"])
    )
    print(f"{name}: null in a file is {in_file}, another type in a file is {wrong}, null as an option is {as_option}")
    as_described = as_described and in_file is None and wrong == as_option == "refused"
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
