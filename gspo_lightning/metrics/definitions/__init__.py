"""What every logged number is: its exact definition, its unit, what is healthy and what to do when it is not.

One file a subject; :mod:`~gspo_lightning.metrics.definitions.all` lists them in the order of ``docs/metrics.md``.

Symbols: A an advantage, m the response tokens, n_i the number of response tokens of sequence i, d = log pi - log
pi_old per token, s_i = exp(sum_m d / n_i), r the ratio that the objective clips (s_i or exp d). Sums run over all
micro-batches and ranks of an update before anything is divided. Numbers quoted as the paper's are from arXiv
2507.18071.
"""
