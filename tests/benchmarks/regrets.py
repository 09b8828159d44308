"""How far the choice of widths stays behind the best fixed number of draft tokens, on the workloads of the tests.

    PYTHONPATH=. python tests/benchmarks/regrets.py

Prints for each the regret (0.03 is 3 % more seconds a token; below 0 it was faster than any fixed number), the best
fixed number, and in how many rounds each number of draft tokens was chosen.
"""

from __future__ import annotations

from tests.engine.policy_cases import made_up_cases, other_machine_cases, recorded_cases
from tests.engine.rounds_of_traces import regret


def main() -> None:
    """Replay and print."""
    for cases in (recorded_cases, other_machine_cases, made_up_cases):
        regrets = []
        for case in cases():
            found, best, replayed = regret(case.traces, case.costs, rows=case.rows, is_free=case.is_free)
            regrets.append(found)
            print(f"{found:+.3f}  best {best}  {case.name}: {replayed.chosen}")
        print(f"{cases.__name__}: mean {sum(regrets) / len(regrets):+.4f}, worst {max(regrets):+.3f}")


if __name__ == "__main__":
    main()
