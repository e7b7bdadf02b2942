"""The contract that every method passes, and the small loop that it is tested with.

A method of your own is tested by the same contract::

    from stretto.algorithms.testing import CHECKS, Case

    @pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
    def test_contract(check):
        check(Case(make=lambda: MyMethod()))
"""

from __future__ import annotations

from stretto.algorithms.testing.contract import CHECKS, Case
from stretto.algorithms.testing.loop import Loop, LoopState, SmallClassifier, random_batch, split

__all__ = ["CHECKS", "Case", "Loop", "LoopState", "SmallClassifier", "random_batch", "split"]
