"""Mutation testing: break the mathematics one place at a time and see whether the unit tests notice.

    python -m tools.mutants                       every mutant, the report in tools/mutants/report.md
    python -m tools.mutants --file 'gspo_lightning/objectives/clip.py' --jobs 2
    python -m tools.mutants --sample 100 --seed 1

A mutant is the package with one expression changed. It is run in a process of its own, forked from one that has
imported torch and every other dependency but nothing of the package: the child imports the package afresh through a
finder that serves the changed source, and runs the unit tests of that file until the first one fails. Nothing is
written to the tree and no module is shared between mutants. A run on the unchanged files finds out first which tests
reach which statements: only those can notice, and the quick and the successful ones come first.

What is changed:

* ``sign``: ``+ -``, ``* /``, ``**``, ``//`` and unary minus, also in augmented assignments.
* ``min/max``: ``min max minimum maximum amin amax``, ``clamp`` without one bound, with the other bound, and removed.
* ``comparison``: each by its negation, and ``< <= > >=`` by the one that differs at a tie; ``and or not``, conditions.
* ``constant``: numbers, booleans, words that are compared or looked up, members of an enumeration.
* ``mask``: one side of ``& |``, ``~``, the two branches and the negated condition of ``where``, and every mask negated
  or replaced by "everywhere".
* ``stop-gradient``: ``detach`` and ``no_grad`` removed, and ``detach`` added to every intermediate result that was seen
  to carry a gradient in a run of the tests; not inside comparisons and shape arguments, where it changes nothing.

What is not: docstrings, annotations, decorators, imports, ``__all__``, ``__repr__``, sentences, statements that raise
(their condition is), dtypes and devices.

Why not a library: mutmut 3.8.1 was tried on ``objectives/gspo.py`` and ``objectives/clip.py`` with
``tests/objectives``. It copes with classes that register themselves, at 2.1 s of CPU a mutant (1.5 s here then), but it
changes bodies of undecorated functions only: neither the defaults of fields (``clip_low: float = 3e-4``) nor
module-level tables nor properties, and it has no stop-gradients (23 of the 169 mutants here), no swapped branches of
``where`` and no masks that are everywhere. 69 of its 213 mutants are in ``__post_init__``, where an argument is left
out or a name is spelt otherwise. Of 196 that were run it killed 195, and the survivor computes the same
(``unsqueeze(+1)`` for ``unsqueeze(-1)``); it found nothing that is not found here. It accepts known survivors only as
comments in the source, a line at a time and without a check that they are still there.

cosmic-ray 8.7.0 was tried on the same files with the same tests. It starts the tests anew for every mutant and runs
them in the order of their files: 7.7 s of CPU a mutant, so 13 of its 350 in the 89 s that all 160 take here. It changes
defaults of fields and module-level tables, and has no stop-gradients (18 of the 160), no swapped branches of ``where``,
no masks that are everywhere, and no words or members of enumerations; 33 of its mutants are in annotations. All 350
were judged (326 of them in children of this package): 336 were killed, 11 compute the same, and 3 were gaps:
``self.power >= 1`` for ``== 1``, where only ``!=`` is tried here, and twice ``is "adaptive"`` for ``==``. They have
tests now. Known survivors are left out by a comment or a range of lines, a whole line at a time.
"""
