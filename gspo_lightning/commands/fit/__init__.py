"""``gspo fit`` and its like: LightningCLI with the words and the messages of this package."""
