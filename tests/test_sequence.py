"""The one layout of all families: exact ids, positions and targets, and every limit at its edge."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from voxgraft.core.errors import GraftError
from voxgraft.models import family_names, get_family
from voxgraft.models.base import SequencePart, SequenceSpec, build_sequence, code_position
from voxgraft.nn import IGNORE_INDEX

SPEC = SequenceSpec(
    num_text_ids=20,
    text_start=18,
    text_stop=19,
    num_codes=30,
    speech_start=30,
    speech_stop=31,
    max_text=4,
    max_codes=5,
    num_conditioning=7,
    upstream_start_positions=(0, 0),
    upstream_first_position=2,
)


def rows(part: SequencePart) -> list[list[int]]:
    assert all(array.dtype == np.int64 for array in (part.ids, part.positions, part.targets))
    return [part.ids.tolist(), part.positions.tolist(), part.targets.tolist()]


def code_of(*parts: object, spec: SequenceSpec = SPEC) -> str:
    with pytest.raises(GraftError) as refused:
        build_sequence(spec, *parts)  # type: ignore[arg-type]
    return refused.value.finding.code


def test_a_sequence_to_learn_from_has_start_and_stop_and_asks_each_position_for_the_next_id() -> None:
    sequence = build_sequence(SPEC, [3, 0, 17], [29, 0])
    assert rows(sequence.text) == [[18, 3, 0, 17, 19], [0, 1, 2, 3, 4], [3, 0, 17, 19, IGNORE_INDEX]]
    assert rows(sequence.speech) == [[30, 29, 0, 31], [0, 1, 2, 3], [29, 0, 31, IGNORE_INDEX]]
    assert sequence.num_conditioning == 7
    assert sequence.length == 7 + 5 + 4


def test_a_prompt_begins_as_the_original_program_does_or_as_in_training() -> None:
    stock, plain = build_sequence(SPEC, [3]), build_sequence(SPEC, [3], stock=False)
    assert rows(stock.speech) == [[30, 30], [0, 0], [IGNORE_INDEX, IGNORE_INDEX]]
    assert rows(plain.speech) == [[30], [0], [IGNORE_INDEX]]
    assert rows(stock.text) == rows(plain.text) == [[18, 3, 19], [0, 1, 2], [3, 19, IGNORE_INDEX]]
    assert (stock.length, plain.length) == (7 + 3 + 2, 7 + 3 + 1)


def test_a_spoken_code_has_the_position_that_the_original_gives_it_or_the_one_of_training() -> None:
    assert [code_position(SPEC, index) for index in (0, 1, 5)] == [2, 3, 7]
    assert [code_position(SPEC, index, stock=False) for index in (0, 1, 5)] == [1, 2, 6]


def test_a_family_that_says_nothing_else_speaks_as_it_was_trained() -> None:
    spec = SequenceSpec(20, 18, 19, 30, 30, 31, 4, 5)
    assert spec.num_conditioning == 34
    assert not spec.guided
    assert rows(build_sequence(spec, [3]).speech) == rows(build_sequence(spec, [3], stock=False).speech)
    assert code_position(spec, 3) == code_position(spec, 3, stock=False) == 4


def test_every_limit_holds_at_its_edge() -> None:
    build_sequence(SPEC, [0, 19, 0, 19], [0, 29, 0, 29, 0])  # the longest, with lowest and highest ids
    build_sequence(SPEC, [0], [0])  # the shortest
    assert code_of([0] * 5, [0]) == "ids-length"
    assert code_of([0], [0] * 6) == "ids-length"
    assert code_of([], [0]) == "ids-length"
    assert code_of([0], []) == "ids-length"
    assert code_of([20], [0]) == "ids-outside"
    assert code_of([-1], [0]) == "ids-outside"
    assert code_of([0], [30]) == "ids-outside"
    assert code_of([0], [-1]) == "ids-outside"


def test_an_id_out_of_range_is_named_with_its_place_and_their_number() -> None:
    with pytest.raises(GraftError) as refused:
        build_sequence(SPEC, [0, 25, 26], [0])
    finding = refused.value.finding
    assert re.search(r"text id 25\b.*\b1\b.*\b2\b.*\b3\b", finding.found), finding.found
    assert finding.expected == "0 to 19"


def test_what_is_no_row_of_whole_numbers_is_refused() -> None:
    assert code_of([[1, 2]], [0]) == "ids-form"
    assert code_of(np.zeros((2, 1), dtype=np.int64), [0]) == "ids-form"
    assert code_of([1.0], [0]) == "ids-form"
    assert code_of([1], np.array([0.5])) == "ids-form"
    assert code_of(3, [0]) == "ids-form"
    for dtype in (np.uint8, np.int16, np.int32):  # as shards hold them
        assert build_sequence(SPEC, np.array([3], dtype=dtype), np.array([4], dtype=dtype)).length == 7 + 3 + 3


def test_ids_that_the_original_program_takes_out_are_refused_wherever_they_stand() -> None:
    spec = replace(SPEC, forbidden_text_ids=frozenset({18, 19}))
    assert code_of([18], [0], spec=spec) == "ids-barred"
    assert code_of([1, 2, 19], [0], spec=spec) == "ids-barred"
    assert build_sequence(spec, [1, 17], [18]).length == 7 + 4 + 3  # a code of that number is another thing
    assert build_sequence(SPEC, [18, 19], [0]).length == 7 + 4 + 3


def test_a_text_stop_that_is_only_predicted_is_an_input_while_speaking_alone() -> None:
    spec = replace(SPEC, hides_text_stop=True, num_speech_stops=2)
    learned, prompt = build_sequence(spec, [3, 4], [7]), build_sequence(spec, [3, 4])
    assert rows(learned.text) == [[18, 3, 4], [0, 1, 2], [3, 4, 19]]
    assert rows(learned.speech) == [[30, 7, 31], [0, 1, 2], [7, 31, 31]]
    assert (len(learned.text.ids), len(learned.speech.ids)) == (2 + spec.text_framing, 1 + spec.speech_framing)
    assert rows(prompt.text) == [[18, 3, 4, 19], [0, 1, 2, 3], [3, 4, 19, IGNORE_INDEX]]
    assert rows(build_sequence(spec, [3, 4], stock=False).text) == rows(learned.text)
    own = build_sequence(spec, [3, 4], [7], spoken=True)  # the model's own codes, for its states at them
    assert (rows(own.text), rows(own.speech)) == (rows(prompt.text), rows(learned.speech))
    assert (SPEC.text_framing, SPEC.speech_framing) == (2, 2)
    assert replace(SPEC, num_speech_stops=3).speech_framing == 4


def test_the_gate_is_closed_at_the_marked_ids_and_never_at_start_and_stop() -> None:
    marks = [True, False, True]
    sequence = build_sequence(SPEC, [3, 4, 5], [7], closed=marks)
    assert sequence.closed is not None
    assert sequence.closed.tolist() == [False, *marks, False]
    hidden = build_sequence(replace(SPEC, hides_text_stop=True), [3, 4, 5], [7], closed=np.array(marks))
    assert hidden.closed is not None
    assert hidden.closed.tolist() == [False, *marks]
    for nothing in (None, np.zeros(0, dtype=bool)):
        assert build_sequence(SPEC, [3, 4, 5], [7], closed=nothing).closed is None


@pytest.mark.parametrize("marks", [[True], [True, False, True, False]])
def test_marks_of_the_gate_that_are_not_one_for_each_id_are_refused(marks: list[bool]) -> None:
    with pytest.raises(GraftError) as refused:
        build_sequence(SPEC, [3, 4, 5], [7], closed=marks)
    assert refused.value.finding.code == "packing"


@pytest.mark.parametrize("name", family_names())
def test_every_familys_sequences_begin_and_end_with_ids_outside_of_what_is_said(name: str) -> None:
    family = get_family(name)
    spec = family.sequence_spec(3_000)
    sequence = build_sequence(spec, [5, 6], [0, spec.num_codes - 1])
    whole = [family.start_id, 5, 6, family.stop_id]
    assert sequence.text.ids.tolist() == whole[: len(whole) - spec.hides_text_stop]
    assert sequence.text.targets[[0, 2]].tolist() == [5, family.stop_id]
    assert build_sequence(spec, [5, 6]).text.ids.tolist() == whole
    assert sequence.length == spec.num_conditioning + 2 + 2 + spec.text_framing + spec.speech_framing
    assert (sequence.speech.targets == spec.speech_stop).sum() == spec.num_speech_stops
    assert sequence.speech.ids[[0, -1]].tolist() == [spec.speech_start, spec.speech_stop]
    assert spec.speech_start not in sequence.speech.ids[1:]
    assert code_of([5], [spec.speech_stop], spec=spec) == "ids-outside"
    assert code_of([3_000], [0], spec=spec) == "ids-outside"
