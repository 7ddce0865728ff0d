"""Settings of TRL, transformers, verl and OpenRLHF, and what they are called here: one table for messages and pages."""

from __future__ import annotations

from functools import cache

from gspo_lightning.commands.fit.foreign.transformers import TRANSFORMERS
from gspo_lightning.commands.fit.foreign.trl import TRL
from gspo_lightning.commands.fit.foreign.verl import OTHER_ROOMS, VERL
from gspo_lightning.commands.fit.foreign.word import Word, to

__all__ = ["OPENRLHF", "TRANSFORMERS", "TRL", "VERL", "Word", "foreign", "translation"]

OPENRLHF = {
    "n_samples_per_prompt": to("data.group_size"),
    "rollout_batch_size": to("data.prompts_per_rollout"),
    "init_kl_coef": to("data.kl_in_reward"),
    "kl_coef": to("model.objective.init_args.kl_coef"),
    "max_new_tokens": to("data.max_response_tokens"),
    "generate_max_len": to("data.max_response_tokens"),
    "prompt_max_len": to("data.max_prompt_tokens"),
    "left_clip_range": to("model.objective.init_args.clip_low"),
    "right_clip_range": to("model.objective.init_args.clip_high"),
}
"""Words of OpenRLHF, slime and our own :class:`~gspo_lightning.GSPOConfig`."""
_VERL_ROOMS = {"actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "global_profiler", "ray_kwargs",
               "reward_model"}  # fmt: skip


@cache
def _dotted() -> dict[str, Word]:
    return {name: word for words in VERL.values() for name, word in words.items()}


@cache
def _flat() -> dict[str, tuple[str, Word]]:
    """Framework and meaning of every word without a dot; verl's last words where they are nobody else's."""
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
    """Framework and meaning of a setting that is not ours, as somebody wrote it; None where nobody has such a word.

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
        return next((("verl", OTHER_ROOMS[b]) for b in beginnings if b in OTHER_ROOMS), None)
    return _flat().get(key.rpartition(".")[2])


def translation(framework: str, word: Word) -> tuple[str, str]:
    """Problem and fix of a message about one word.

    >>> translation("TRL", to("data.group_size"))
    ('is a word of TRL', 'this is called data.group_size here')
    """
    if not word.ours:
        return f"is a word of {framework} that has no equivalent: {word.note}", "leave it out"
    return f"is a word of {framework}", f"this is called {word.called} here" + (f": {word.note}" if word.note else "")
