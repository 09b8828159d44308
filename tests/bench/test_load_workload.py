"""Workload files: defaults, what wins over what, and every mistake with what is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litspec.api.config import ConfigError, EngineConfig
from litspec.bench.load import check_load
from litspec.bench.workload import AUTO, read_workload
from tests.bench.load_support import tiny_workload


class TestWorkload:
    def test_defaults_are_valid_and_complete(self):
        workload = read_workload()
        assert workload.arms == (0, 1, 3, 7, AUTO)
        assert workload.concurrency == (1, 2, 4, 8, 16)
        assert (workload.repeats, workload.gap_rows, workload.gap_prompt_tokens) == (7, 7, 1500)
        assert workload.num_slots == 16

    def test_a_file_replaces_some_keys_and_flags_win(self, tmp_path):
        workload = tiny_workload(tmp_path, repeats=1, concurrency=(5,))
        assert (workload.arms, workload.max_new_tokens, workload.seed) == ((0, 2, AUTO), (4, 6), 0)
        assert (workload.repeats, workload.concurrency) == (1, (5,))

    @pytest.mark.parametrize(("highest", "expected"), [(20, (4, 20)), (5, (4, 5)), (3, (3, 3))])
    def test_max_new_tokens_of_a_flag_is_the_highest_limit(self, tmp_path, highest, expected):
        assert tiny_workload(tmp_path, max_new_tokens=highest).max_new_tokens == expected

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("concurency: [1]", "unknown key 'concurency' (in {file}); did you mean concurrency?"),
            ("colour: 1", "unknown key 'colour' (in {file}); allowed: seed, repeats"),
            ("arms: []", "arms was []; allowed: a list of off, auto and"),
            ("arms: [1, 1]", "arms was [1, 1]; allowed"),
            ("arms: [8]", "arms was [8]; allowed: a list of off, auto and numbers of draft tokens up to 7"),
            ("arms: [on]", "arms was [True]; allowed"),
            ("arms: [[1]]", "arms was ['[1]']; allowed"),
            ("concurrency: 4", "concurrency was 4; allowed: a list of different integers"),
            ("concurrency: [0]", "concurrency was [0]; allowed"),
            ("concurrency: [1.5]", "concurrency was [1.5]; allowed"),
            ("concurrency: []\nrates: []", "concurrency and rates were both empty"),
            ("rates: [0]", "rates was [0]; allowed: a list of different numbers above 0"),
            ("rates: [.inf]", "rates was [inf]; allowed"),
            ("rates: [.nan]", "rates was [nan]; allowed"),
            ("prompts: mine", "prompts was 'mine'; allowed: builtin, random"),
            ("prompts: [builtin]", "prompts was ['builtin']; allowed: builtin, random"),
            ("prompt_tokens: [9, 3]", "prompt_tokens was [9, 3]; allowed: the shortest and the longest"),
            ("max_new_tokens: 8", "max_new_tokens was 8; allowed: the lowest and the highest limit"),
            ("max_new_tokens: [1, 8]", "max_new_tokens was [1, 8]; allowed"),
            ("temperatures: [2.5]", "temperatures was [2.5]; allowed: a list of different numbers from 0 to 2.0"),
            ("repeats: 0", "repeats was 0; allowed: an integer from 1 to 1000 (in {file})"),
            ("repeats: true", "repeats was True; allowed"),
            ("seed: -1", "seed was -1; allowed: an integer from 0"),
            ("gap_rows: -1", "gap_rows was -1; allowed: an integer from 0"),
            ("seed: 1\nseed: 2", "key 'seed' stands twice"),
            ("- seed", "holds a list; allowed: lines of `key: value`"),
            ("seed: [", "cannot be read as YAML"),
        ],
    )
    def test_mistakes_say_what_is_allowed(self, tmp_path, line, expected):
        with pytest.raises(ConfigError) as caught:
            tiny_workload(tmp_path, line)
        assert expected.replace("{file}", str(tmp_path / "load.yaml")) in str(caught.value)

    def test_missing_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
            read_workload(str(tmp_path / "nowhere.yaml"))

    @pytest.mark.parametrize(
        ("num_draft_tokens", "arms", "expected"),
        [
            (4, (0, AUTO), "num_draft_tokens was 4; allowed while auto is among"),
            (2, (0, 3), "num_draft_tokens was 2; allowed: auto, or at least the widest arm, 3"),
        ],
    )
    def test_arms_must_fit_the_engine(self, num_draft_tokens, arms, expected):
        config = EngineConfig(max_batch_size=16, num_draft_tokens=num_draft_tokens)
        with pytest.raises(ValueError, match=expected):
            check_load(replace(read_workload(), arms=arms), config)
        check_load(replace(read_workload(), arms=(0, 2)), config)
