"""Splitting a text into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.text.sentences import _EITHER, _END, _NUMBERED, _TITLES, split_sentences

# Each text is written with | where a sentence is to end.
ENGLISH = [
    "The cat sleeps. | The dog walks! | Does it? | Yes.",
    "No end at all",
    "He left in 1990. | 1991 was cold. | It snowed.",
    "Pi is 3.14 and e is 2.72. | Version 1.2.3 of a.b.c is out.",
    "Mr. Smith met Dr. J. K. Rowling and Prof. A. Einstein. | They spoke.",
    "(Mr. Smith left.) | “Dr. No is here.” | [Mrs. Dalloway came.]",
    "Some, e.g. Tom, i.e. Thomas, vs. Jerry, cf. Disney, won. | Others lost.",
    "The U.S. Army and the U.K. Navy met at 5 p.m. London time. | It rained.",
    "He lives in the U.S. | The city is small. | She has a Ph.D. | They know.",
    "It was World War I. | Then came peace. | Take vitamin C. | It helps.",
    "See No. 5, Fig. 3 and pp. 7 of Vol. 2 on Jan. 4. | He said no. | She left.",
    "He came in Jan. | Peace came in Feb. | Nothing else did.",
    "Apple Inc. Chairman Tim of St. Louis and King Jr. High School. | Right.",
    "He works for Apple Inc. | The firm is large. | She knows Sammy Davis Jr. | He sings.",
    "Well... maybe. | Wait... | What? | I see… perhaps not. | And so… | He left.",
    "“Stop!” he said. | “Why?” – asked she. | (Really?) | Yes!",
    "'Stop!' | He ran. | \"Go.\" | She went. | «Oui.» | Il part. | ‘No.’ | Fine.",
    "What?! | No!!! | Never... | Ever?... | So.",
    "1. Introduction follows. | 2. Methods come next. | 12. Results are last. | It was 5. | Then 6.",
    "Visit example.com. | See t.com. | Apples grow there.? | Apples fall.",
    "Go to example.com or file.Txt or a.b. | Then stop.",
    "It ends .| Tokens apart . | The next one ! | Last ?",
    "Ça va. école d'été. | Été. | Ну. вот. | Да. | Ναι. ναι.",
    "Smith et al. found it, etc. and more. | See Smith et al. | They agree.",
    "A new\xa0Mr. Brown. | A tab\tDr.\tWho.",
    "By É. Zola and А. П. Чехов. | The end.",
]
CHINESE = [
    "北京是中国的首都。|上海在哪里？|很远！|是的",
    "他说：“你好！”|她笑了。|（真的吗？）|「好。」|『是。』|【完。】|他走了。",
    "真的？！|当然！！！|什么……？|没有。",
    "他想了想……|然后走了。|也许…|不。",
    "真的?|是的!|那就好.|走吧.",
    "第一；第二；第三。|完",
    "圆周率是3.14，见第1.2节。|好。",
    "1.北京 2.上海 A.天津 Mr.王来了。|好。",
    "他用iPhone。|It works. | 很好！|OK! | 再见。",
    "你好!|“世界”",
    "他说.”|“好",
    "これはペンです。|そうですか？|はい!|カタカナ.|です。",
]


@pytest.mark.parametrize("marked", [*ENGLISH, *CHINESE])
def test_sentences_end_where_a_reader_would_end_them(marked: str) -> None:
    expected = [sentence.strip() for sentence in marked.split("|")]
    assert split_sentences(marked.replace("|", "")) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n", " \n\t", "\u2028", "\u2029"])
def test_a_line_end_always_ends_a_sentence(end: str) -> None:
    assert split_sentences(f"Title{end}Mr.{end}and lower, {end}more") == ["Title", "Mr.", "and lower,", "more"]


@pytest.mark.parametrize("text", ["", " ", "\n", " \r\n\t\u3000"])
def test_no_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


def test_marks_alone_are_kept() -> None:
    assert split_sentences("...\n?! \n。") == ["...", "?!", "。"]


PIECES = st.sampled_from(
    [
        "Mr",
        "U.S",
        "etc",
        "No",
        "the",
        "The",
        "cat",
        "5",
        "12",
        "北京",
        "は",
        "é",
        "É",
        *".!?…。！？；;,",
        *"\"'“”‘’()（）「」[]-–",
        *" \n\t\r\u3000\u2028",
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
    assert not any(set(sentence) & set("\n\r\u2028\u2029") for sentence in sentences)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_every_line_stands_alone(text: str) -> None:
    by_line = [sentence for line in text.splitlines() for sentence in split_sentences(line)]
    assert split_sentences(text) == by_line


def test_no_abbreviation_hides_behind_the_quick_rule() -> None:
    """A dot after four small letters or digits is an end without a look at the word."""
    for word in _TITLES | _NUMBERED | _EITHER:
        for follower in ("5", "Xylophones"):
            match = _END.search(f"x {word}. {follower}")
            assert match is not None
            assert match.lastgroup == "dot", word


@pytest.mark.parametrize("piece", [*".!…。'x\n", "a.\t", "A. ", ". ", "! (", "? - ", ".)", "1. ", "。”", "北.", "Mr. "])
def test_long_monotony_takes_no_longer_than_text(piece: str) -> None:
    """Whatever is not linear would take minutes here."""
    text = piece * (200_000 // len(piece)) + "x"
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
