"""Table of metrics: every logged number's meaning, unit and healthy range."""
