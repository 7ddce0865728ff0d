"""Built-in tasks: prompts that are made by a rule, with their answers."""
