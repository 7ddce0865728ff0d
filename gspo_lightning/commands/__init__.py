"""Commands of ``gspo``, one module or package each."""
