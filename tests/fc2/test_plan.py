"""What to look at next: what was timed says which untried configs are fast."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest

from kclab.fc2.backends import Candidate
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.search.plan import Order, Plan, Shuffled

SPACE = [
    Candidate(AlgorithmConfig(66, tile, 35, split, 2, swizzle, 0, 0, cluster), 0, 1.0, "space")
    for tile, split, swizzle, cluster in product(range(20, 40), (2, 3, 4, 8), (0, 1), range(2, 12))
]


def planted(config: AlgorithmConfig) -> float:
    """A ratio that is the product of effects: the best config is the last of every number."""
    drawn = random.Random(str(config.key)).gauss(0, 0.01)
    tile, split = config.tile_id * 0.02, config.split_k * 0.05
    return math.exp(tile + split + config.cluster_shape * 0.03 + drawn - 1.5)


def walk(order: Order, portions: int, size: int = 64) -> list[AlgorithmConfig]:
    met: list[AlgorithmConfig] = []
    for _ in range(portions):
        for candidate in order.next(size):
            met.append(candidate.config)
            order.observe(candidate.config, planted(candidate.config))
    return met


@pytest.mark.parametrize("kind", ["plan", "shuffled"])
def test_every_config_is_given_out_once(kind: str) -> None:
    draw = random.Random(1)
    order: Order = Plan(SPACE, [], draw) if kind == "plan" else Shuffled(SPACE, draw)
    met = walk(order, 30)
    assert sorted(met) == sorted(candidate.config for candidate in SPACE)
    assert order.left == 0 and order.next(64) == []


def test_the_fastest_are_met_in_a_quarter_of_the_space() -> None:
    met = set(walk(Plan(SPACE, [], random.Random(2)), len(SPACE) // 4 // 64))
    fastest = sorted((c.config for c in SPACE), key=planted, reverse=True)[:16]
    assert met.issuperset(fastest)


def test_what_was_timed_before_already_guides_the_first_portion() -> None:
    known = [(c.config, planted(c.config)) for c in random.Random(3).sample(SPACE, 200)]
    first = {c.config for c in Plan(SPACE, known, random.Random(4)).next(64)}
    fastest = sorted((c.config for c in SPACE), key=planted, reverse=True)[:16]
    assert len(first & set(fastest)) >= 12


def test_part_of_each_choice_is_drawn_at_random() -> None:
    known = [(c.config, planted(c.config)) for c in random.Random(3).sample(SPACE, 200)]
    first = [c.config for c in Plan(SPACE, known, random.Random(4)).next(64)]
    slow = sorted((c.config for c in SPACE), key=planted)[: len(SPACE) // 2]
    assert set(first) & set(slow), "the sum of effects misses what only a draw finds"
