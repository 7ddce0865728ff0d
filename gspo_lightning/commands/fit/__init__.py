"""``gspo fit``, validate, test and predict: LightningCLI with the words and the messages of this package.

Arguments are read twice. First without torch and without a parser (``arguments``), for what they name has to be there;
then by jsonargparse (``cli``). Where that refuses a config, ``explain`` finds the setting that is wrong (``fields``).
"""
