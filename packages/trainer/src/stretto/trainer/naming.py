"""The name of a run where the user gives none."""

from __future__ import annotations

import os
import random
import time

_ADJECTIVES = """
    amber brisk calm clear deft early eager fair fleet gentle glad golden grand keen light lively
    lucid merry mild noble plain quick quiet rapid sharp steady still sunny supple swift tidy true
    vivid warm wide wise
"""
_NOUNS = """
    aria ballad cadence canon cello chord chorus coda etude fanfare flute fugue harp hymn largo lyre
    madrigal march mazurka minuet motet nocturne oboe opus overture prelude quartet reed refrain
    rondo scherzo serenade sonata suite tempo theme toccata trill viola waltz
"""

VARIABLES = ("STRETTO_RUN_NAME", "COMPOSER_RUN_NAME", "RUN_NAME")


def choose_run_name() -> str:
    """Return the name that the environment gives, else one of the time and two random words."""
    for variable in VARIABLES:
        name = os.environ.get(variable)
        if name:
            return name
    chance = random.Random(os.urandom(8))  # leaves the seeded generator alone
    adjective, noun = chance.choice(_ADJECTIVES.split()), chance.choice(_NOUNS.split())
    return f"{int(time.time())}-{adjective}-{noun}"
