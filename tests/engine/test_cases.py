"""Where each case is tested: a case is a kind of fault that was once reported in public against some inference system.

An id stands in the name of its test or beside it; this test finds it there, so that no case is lost when files move.
"""

from __future__ import annotations

import re
from functools import cache as remember
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUMBERS = {
    "LL": (1, 2, 3, 4, 5, 6, 11, 13, 14),
    "KV": (1, 3, 5, 6, 7, 8, 9, 11, 13),
    "RB": (1, 2, 5, 7, 8, 9, 10, 12),
    "SP": (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15),
    "ST": (2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 17),
    "MG": (1, 2, 3),
    "MT": (1, 2, 3, 5, 7, 9),
    "CP": (8,),
}
CASES = [f"{area}-{number:02}" for area, numbers in NUMBERS.items() for number in numbers]
NOT_APPLICABLE = {
    "KV-03": "a ring buffer loses keys on a rollback: no configuration that loads has a sliding window",
    "MT-07": "one metrics page for several workers: /metrics comes with the server's own door",
}


NAMED = re.compile(r"(?<![A-Z0-9])([A-Z]{2})[-_]([0-9]{2})(?![0-9])")


@remember
def places() -> dict[str, list[str]]:
    """Return for each case the lines of test files that name it, in the name of a test, a comment or a header."""
    found: dict[str, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            for line in path.read_text().splitlines():
                for area, number in NAMED.findall(line):
                    found.setdefault(f"{area}-{number}", []).append(line.strip())
    return found


def test_every_case_is_tested_or_does_not_apply():
    assert not set(NOT_APPLICABLE) - set(CASES)
    lost = [case for case in CASES if case not in NOT_APPLICABLE and case not in places()]
    assert not lost, f"no test names {', '.join(lost)}"


def test_a_case_that_does_not_apply_has_no_test_of_its_own():
    for case in NOT_APPLICABLE:
        tests = [line for line in places().get(case, ()) if line.startswith("def test_")]
        assert not tests, f"{case} is tested: {tests}"
