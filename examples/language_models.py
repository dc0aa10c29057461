"""Two language models: a router learns from outcomes alone when the large one is worth its price.

Nothing is known of the models but who was right about each prompt. THE DATA IS MADE by this script: four kinds of
prompts, and two models of which the small one is bad at two kinds. Put a table of your own in its place, with the
columns prompt, client_right and server_right.

    python examples/language_models.py
"""

import numpy as np
import pandas as pd

import l2h

SKILL = {  # kind of prompt: how often the small and the large model are right about it
    "Translate into French: {} {}": (0.92, 0.95),
    "What is the capital of {} {}?": (0.90, 0.93),
    "How many primes lie between {} and {}?": (0.25, 0.85),
    "Write a proof by induction about {} and {}.": (0.35, 0.80),
}
WORDS = ["seven", "apples", "river", "twelve", "garden", "ninety", "school", "forty", "winter", "bridge", "eleven"]


def outcomes(n: int, seed: int) -> pd.DataFrame:
    """Return made prompts, and who was right about each."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(list(SKILL), n)
    right = rng.random((n, 2)) < [SKILL[kind] for kind in kinds]
    prompts = [kind.format(*rng.choice(WORDS, 2)) for kind in kinds]
    return pd.DataFrame({"prompt": prompts, "client_right": right[:, 0], "server_right": right[:, 1]})


router = l2h.HelpSystem.fit_outcomes(outcomes(1500, seed=1))
costs, test = l2h.Costs(c_e=0.2), outcomes(1000, seed=2)  # a call of the large model costs a fifth of a wrong answer
print(router.evaluate(test, costs=costs))
limited = router.evaluate(test, limit="20%").accuracy
print(f"right with at most 20% of the calls: {limited['system']:.1%}; without any: {limited['client']:.1%}")

prompts = ["What is the capital of Norway?", "How many primes lie between 10 and 90?"]
for prompt, route in zip(prompts, router.predict(prompts, costs=costs), strict=True):
    print(f"{route.by}: {prompt}")
