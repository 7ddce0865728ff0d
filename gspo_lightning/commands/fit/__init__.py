"""``gspo fit``, validate, test and predict: LightningCLI with the settings and messages of this package.

Arguments are read twice: first without torch and a parser (``arguments``), to check that the files they name exist;
then by jsonargparse (``cli``). If jsonargparse refuses a config, ``explain`` finds the wrong setting (``fields``).
"""
