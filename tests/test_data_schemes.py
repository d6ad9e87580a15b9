"""Schemes of tags: found, brought to BIO, and their faults named; against seqeval wherever it has an opinion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities  # type: ignore[import-untyped]
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities, Token  # type: ignore[import-untyped]

from bothways.data.schemes import Scheme, Span, detect, from_spans, problems, spans, to_bio
from helpers import refused

SCHEMES: list[Scheme] = ["BIO", "IOB1", "BIOES", "BILOU", "BMES"]
LETTERS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
JUDGES: dict[str, type[Token]] = {"BIO": IOB2, "IOB1": IOB1, "BIOES": IOBES, "BILOU": BILOU}


@st.composite
def sentences(draw: st.DrawFn, types: tuple[str, ...] = ("PER", "LOC")) -> tuple[list[Span], int]:
    """Entities that do not overlap, and the number of words."""
    found: list[Span] = []
    length = 0
    for _ in range(draw(st.integers(0, 5))):
        first = length + draw(st.integers(0, 2))
        length = first + draw(st.integers(1, 4))
        found.append((draw(st.sampled_from(types)), first, length))
    return found, length + draw(st.integers(0, 2))


def tags_of(letters: str, most: int = 9) -> st.SearchStrategy[list[str]]:
    """Any tags of these letters, most of them against all rules."""
    names = [f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC")]
    return st.lists(st.sampled_from(["O", *names]), max_size=most)


@given(sentence=sentences(), scheme=st.sampled_from(SCHEMES))
def test_there_and_back(sentence: tuple[list[Span], int], scheme: Scheme) -> None:
    entities, length = sentence
    tags = from_spans(entities, length, scheme)
    assert len(tags) == length
    assert spans(tags) == entities
    assert problems(tags, scheme) == []
    bio = to_bio(tags, scheme)
    assert bio == from_spans(entities, length)
    assert spans(bio) == entities
    assert to_bio(bio, "BIO") == bio


@given(sentence=sentences(types=("",)), scheme=st.sampled_from(SCHEMES))
def test_there_and_back_without_types(sentence: tuple[list[Span], int], scheme: Scheme) -> None:
    entities, length = sentence
    assert spans(to_bio(from_spans(entities, length, scheme), scheme)) == entities


@given(sentence=sentences(), scheme=st.sampled_from(list(JUDGES)))
def test_what_is_written_is_what_seqeval_reads(sentence: tuple[list[Span], int], scheme: Scheme) -> None:
    """In its strict mode, which sees only what follows the scheme."""
    entities, length = sentence
    read = Entities([list(from_spans(entities, length, scheme))], JUDGES[scheme])
    assert [(e.tag, e.start, e.end) for e in read.entities[0]] == entities


@given(tags=tags_of("BIES"))
def test_broken_tags_are_read_as_seqeval_and_conlleval_do(tags: list[str]) -> None:
    assert spans(tags) == [(kind, first, last + 1) for kind, first, last in get_entities(tags)]
    assert spans(to_bio(tags, "BIOES")) == spans(tags)


@given(tags=tags_of("BMES"))
def test_other_letters_mean_the_same(tags: list[str]) -> None:
    bioes = [tag.replace("M-", "I-") for tag in tags]
    bilou = [tag.replace("S-", "U-").replace("E-", "L-") for tag in bioes]
    assert to_bio(tags, "BMES") == to_bio(bioes, "BIOES") == to_bio(bilou, "BILOU")
    assert [index for index, _ in problems(tags, "BMES")] == [index for index, _ in problems(bilou, "BILOU")]


@given(data=st.data(), scheme=st.sampled_from(SCHEMES))
def test_tags_have_problems_unless_they_are_those_of_their_entities(data: st.DataObject, scheme: Scheme) -> None:
    tags = data.draw(tags_of(LETTERS[scheme]))
    found = problems(tags, scheme)
    assert (not found) == (from_spans(spans(tags), len(tags), scheme) == tuple(tags))
    assert all(0 <= index < len(tags) and tags[index] in sentence for index, sentence in found)


@pytest.mark.parametrize(
    ("tags", "scheme", "found"),
    [
        ("O I-PER", "BIO", [(1, "I-PER after O")]),
        ("I-PER", "BIO", [(0, "I-PER at the beginning")]),
        ("B-LOC I-PER", "BIO", [(1, "I-PER after B-LOC")]),
        ("B-PER S-PER", "BIO", [(1, "S-PER is not of BIO")]),
        ("O B-PER", "IOB1", [(1, "B-PER after O")]),
        ("I-PER B-PER I-LOC", "IOB1", []),
        ("B-PER O", "BIOES", [(0, "B-PER before O, though no entity of BIOES ends with it")]),
        ("S-PER E-PER", "BIOES", [(1, "E-PER after S-PER")]),
        ("B-PER M-PER", "BMES", [(1, "M-PER at the end, though no entity of BMES ends with it")]),
        ("NOUN VERB", "plain", []),
    ],
)
def test_problems(tags: str, scheme: Scheme, found: list[tuple[int, str]]) -> None:
    assert problems(tags.split(), scheme) == found


@pytest.mark.parametrize(
    ("lines", "scheme"),
    [
        (["B-PER I-PER O", "O B-LOC"], "BIO"),
        (["I-PER I-PER O", "I-LOC B-LOC I-LOC"], "IOB1"),
        (["I-PER O", "O O"], "IOB1"),
        (["O B-PER", "I-PER I-LOC I-PER"], "IOB1"),
        (["O I-PER", "B-PER B-LOC B-PER"], "BIO"),
        (["B-PER I-PER O B-LOC", "O I-LOC O"], "BIO"),  # one fault does not change the scheme
        (["B-PER B-PER I-PER"], "BIO"),
        (["B-PER I-PER E-PER O S-LOC"], "BIOES"),
        (["O S-PER"], "BIOES"),
        (["B-PER I-PER L-PER", "U-LOC"], "BILOU"),
        (["B-PER M-PER E-PER", "S-LOC O"], "BMES"),
        (["B M E S", "S S"], "BMES"),
        (["B I O"], "BIO"),
        (["B_PER I_PER O"], "BIO"),
        (["O O"], "BIO"),
        ([], "BIO"),
        (["NOUN VERB"], "plain"),
        (["S M", "S"], "plain"),
        (["B-PER X O"], "plain"),
        (["E-PER- O"], "BIOES"),
    ],
)
def test_detect(lines: list[str], scheme: Scheme) -> None:
    assert detect(line.split() for line in lines) == scheme


@given(sentence=sentences(), scheme=st.sampled_from(SCHEMES))
def test_what_is_detected_reads_the_same(sentence: tuple[list[Span], int], scheme: Scheme) -> None:
    """Few tags may follow several schemes; the entities are the same in each."""
    entities, length = sentence
    tags = from_spans(entities, length, scheme)
    assert spans(to_bio(tags, detect([tags]))) == entities
    if any(end - first > 2 for _, first, end in entities) and scheme != "IOB1":
        assert detect([tags]) == scheme


def test_an_underscore_becomes_a_dash() -> None:
    assert to_bio(["B_PER", "I_PER", "O"], "BIO") == ("B-PER", "I-PER", "O")


def test_letters_of_no_scheme() -> None:
    with refused("unknown-scheme", "BIM"):
        detect([["B-PER", "M-PER", "I-PER"]])
    with refused("bad-tag", "NOUN"):
        spans(["NOUN"])
