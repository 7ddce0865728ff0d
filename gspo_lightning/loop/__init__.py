"""Loop: the algorithm. What an iteration does before its updates, and what an update does.

Read it in this order; everything else in the package serves one of these steps.

1. ``experience/iteration.py``: ``Iteration.run``, one iteration in one method, step by step.
2. ``experience/generate_and_score.py``: prompts become groups of rollouts, and rollouts get rewards.
3. ``advantages/within_groups.py``: a reward becomes an advantage relative to its group (``assign.py`` calls it).
4. ``old_policy/old_policy.py`` and ``logprobs.py`` beside it: the snapshot that sampled, and what a ratio divides by.
5. ``update/loss.py``: ``micro_batch_loss``, where log-probabilities, advantages and the objective meet.
6. ``gspo_lightning/objectives/objective.py``, then ``gspo.py`` beside it: the equations of the paper.
7. ``update/update.py``, then ``metrics/update.py``: what is measured of every update.

Only if a setting asks for it: ``critic/`` (advantages per token), ``old_policy/reference.py`` (a KL),
``old_policy/teacher.py`` (distillation), ``experience/partial.py`` and ``experience/prefetcher.py`` (rollouts that
overlap with training). ``gspo_lightning.training.module`` drives the loop from Lightning, ``GSPOTrainer`` without it;
docs/architecture.md walks with a rollout.
"""
