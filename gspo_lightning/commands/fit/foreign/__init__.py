"""Settings of TRL, transformers, verl and OpenRLHF and their names here, for error messages and documentation."""

from __future__ import annotations

from functools import cache

from gspo_lightning.commands.fit.foreign.word import Table, Word, read_words

__all__ = ["BEGINNINGS", "OPENRLHF", "TRANSFORMERS", "TRL", "VERL", "Word", "foreign", "translation"]

TRL: Table = read_words("trl")
TRANSFORMERS: Table = read_words("transformers")
VERL: Table = read_words("verl")
_OTHER = read_words("other")
OPENRLHF = _OTHER["OpenRLHF"]
"""Settings of OpenRLHF, slime and :class:`~gspo_lightning.GSPOConfig`."""
BEGINNINGS = _OTHER["verl"]
"""Prefix of a dotted name -> its meaning here, for settings not in :data:`VERL`; the longest prefix counts."""
_VERL_ROOMS = {"actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "global_profiler", "ray_kwargs",
               "reward_model"}  # fmt: skip


@cache
def _dotted() -> dict[str, Word]:
    return {name: word for words in VERL.values() for name, word in words.items()}


@cache
def _flat() -> dict[str, tuple[str, Word]]:
    """Return undotted name -> (framework, meaning); verl's last parts count if unique and unused elsewhere."""
    last: dict[str, set[str]] = {}
    for name in _dotted():
        last.setdefault(name.rpartition(".")[2], set()).add(name)
    found = {short: ("verl", _dotted()[next(iter(names))]) for short, names in last.items() if len(names) == 1}
    found |= {name: ("OpenRLHF", word) for name, word in OPENRLHF.items()}
    found |= {
        name: ("TRL", word) for table in (TRANSFORMERS, TRL) for part in table.values() for name, word in part.items()
    }
    return found


def foreign(key: str) -> tuple[str, Word] | None:
    """Return framework and meaning of a setting of another framework; None if no framework has it.

    >>> foreign("actor_rollout_ref.rollout.n")
    ('verl', Word(ours=('data.group_size',), note=''))
    >>> foreign("data.num_generations")[1].ours, foreign("critic.model.path")[1].note, foreign("colour")
    (('data.group_size',), 'null copies the policy', None)
    """
    key = key.lstrip("+~").replace("-", "_")
    if (exact := _dotted().get(key)) is not None:
        return "verl", exact
    if key.partition(".")[0] in _VERL_ROOMS:
        parts = key.split(".")
        beginnings = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        return next((("verl", BEGINNINGS[b]) for b in beginnings if b in BEGINNINGS), None)
    return _flat().get(key.rpartition(".")[2])


def translation(framework: str, word: Word) -> tuple[str, str]:
    """Return problem and fix of the message about a setting of another framework.

    >>> translation("TRL", Word(("data.group_size",)))
    ('is a word of TRL', 'this is called data.group_size here')
    """
    if not word.ours:
        return f"is a word of {framework} that has no equivalent: {word.note}", "leave it out"
    return f"is a word of {framework}", f"this is called {word.called} here" + (f": {word.note}" if word.note else "")
