"""The metrics of what the policy writes: length, ends, repetition, variety."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import FULL, MetricSpec

__all__ = ["RESPONSE"]

RESPONSE = (
    MetricSpec(
        "response/length",
        "mean number of tokens that the policy chose in the iteration's responses, the end token included",
        "tokens",
        "any slow trend (the quickstart goes from 8 to 20 because writing the steps pays); jumps are not healthy",
        "If it runs to the limit while reward/mean does not rise, read samples for repetition.",
        "Responses",
    ),
    MetricSpec(
        "response/turns",
        "mean number of turns of the policy in the iteration's conversations; 1 if responses are not conversations",
        "turns",
        "falls if fewer turns earn more, rises if asking (a tool, for a hint) pays",
        "If it runs to max_turns while reward/mean does not rise, read samples: the policy may not find an end.",
        "Responses",
    ),
    MetricSpec(
        "response/terminated",
        "responses that ended with an end token or a stop string / all responses of the iteration",
        "fraction",
        "above 0.9: a response without an end usually has no answer to score",
        "If it falls, raise data.max_response_tokens or check that the end token is the one the model was taught.",
        "Responses",
    ),
    MetricSpec(
        "response/truncated",
        "responses cut at data.max_response_tokens / all responses of the iteration = 1 - response/terminated",
        "fraction",
        "below 0.1, for the same reason",
        "Raise data.max_response_tokens; truncated responses teach the policy to be short rather than to be right.",
        "Responses",
    ),
    MetricSpec(
        "response/length_p<k>",
        "5th, 50th and 95th percentile of the number of tokens of the iteration's responses",
        "tokens",
        "move together; the 95th stays clear of data.max_response_tokens",
        "If only the 95th rises, some prompts run away: find them in samples.",
        "Responses",
        when=FULL,
    ),
    MetricSpec(
        "response/length_max",
        "tokens of the longest response of the iteration",
        "tokens",
        "below data.max_response_tokens",
        "At the limit all the time: read the longest completion before raising the limit.",
        "Responses",
        when=FULL,
    ),
    MetricSpec(
        "response/length_positive",
        "mean number of tokens of the responses with A > 0",
        "tokens",
        "near response/length; above it where longer answers are the better ones (quickstart, first iterations)",
        "Far from response/length_negative while the reward is flat: length itself is being rewarded or punished.",
        "Responses",
        when=f"{FULL}; iterations with such responses",
    ),
    MetricSpec(
        "response/length_negative",
        "mean number of tokens of the responses with A < 0",
        "tokens",
        "near response/length",
        "Far above response/length_positive: wrong answers ramble; look at samples and at response/truncated.",
        "Responses",
        when=f"{FULL}; iterations with such responses",
    ),
    MetricSpec(
        "response/length_histogram",
        "number of tokens of each response of the iteration",
        "tokens",
        "one hump, or two while the policy changes its way of answering",
        "A wall at data.max_response_tokens: responses are cut, see response/truncated.",
        "Responses",
        kind="histogram",
        when=f"{FULL}; iteration 0 and every model.histogram_every updates",
    ),
    MetricSpec(
        "response/repetition",
        "mean over responses of the share of 4-grams of tokens that occurred before in the same response",
        "fraction",
        "below 0.05 (quickstart: 0 to 0.01); code and tables are higher, so compare with the start of the run",
        "If it climbs, the policy repeats itself: read samples; the reward probably pays for length or format.",
        "Responses",
        when=FULL,
    ),
    MetricSpec(
        "response/distinct",
        "responses that differ from every other earlier one to their prompt / all responses of the iteration",
        "fraction",
        "near 1 for long answers; falls to 1 / G as short answers become certain",
        "If it falls while the reward does not rise, groups say the same G times: raise the temperature.",
        "Responses",
    ),
)
