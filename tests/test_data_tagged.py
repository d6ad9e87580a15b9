"""Sentences with tags out of columns, CoNLL-U and JSON, in English and Chinese."""

import json
import lzma
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.schemes import spans
from bothways.data.tagged import read_tagged
from bothways.data.words import is_cjk, join_words, split_words
from bothways.errors import BothwaysError
from helpers import refused


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def write_json(path: Path, *rows: object) -> Path:
    return write(path, *(json.dumps(row, ensure_ascii=False) for row in rows))


def words(example: Tagged) -> list[str]:
    return [example.text[first:last] for first, last in example.words]


def entities(example: Tagged) -> list[tuple[str, str]]:
    assert example.gold is not None
    return [
        (kind, example.text[example.words[first][0] : example.words[end - 1][1]])
        for kind, first, end in spans(example.gold)
    ]


CONLL = ["-DOCSTART- -X- -X- O", "", "EU NNP B-NP B-ORG", "rejects VBZ B-VP O", "German JJ B-NP B-MISC", "call NN I-NP O", ". . O O", "", "", "Peter NNP B-NP B-PER", "Blackburn NNP I-NP I-PER"]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
@pytest.mark.parametrize("tab", [" ", "\t"])
def test_conll_2003(tmp_path: Path, tab: str, end: str) -> None:
    path = write(tmp_path / "train.conll", *(line.replace(" ", tab) for line in CONLL), end=end)
    notes = Notes()
    first, second = read_tagged(path, notes=notes)
    assert first.text == "EU rejects German call ."
    assert words(first) == ["EU", "rejects", "German", "call", "."]
    assert first.gold == ("B-ORG", "O", "B-MISC", "O", "O")
    assert first.where == f"{path}, line 3"
    assert second == Tagged("Peter Blackburn", ((0, 5), (6, 15)), ("B-PER", "I-PER"), f"{path}, line 10")
    assert not notes
    assert [example.gold for example in read_tagged([path], column=2)][1] == ("NNP", "NNP")
    assert [example.gold for example in read_tagged([path], column="3")][1] == ("B-NP", "I-NP")


def test_the_original_files_are_iob1(tmp_path: Path) -> None:
    path = write(
        tmp_path / "eng.testa", "EU NNP I-NP I-ORG", "Rome NNP I-NP I-LOC", "Paris NNP I-NP B-LOC", "on IN I-PP O"
    )
    notes = Notes()
    assert [example.gold for example in read_tagged(path, notes=notes)] == [("B-ORG", "B-LOC", "B-LOC", "O")]
    assert not notes


def test_chinese_characters_in_bmes(tmp_path: Path) -> None:
    path = tmp_path / "train.char.bmes.xz"
    lines = ["吴 B-NAME", "重 M-NAME", "阳 E-NAME", "， O", "男 S-X", "", "A O", "股 O", "“ O", "好 O"]
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    first, second = read_tagged(path)
    assert first == Tagged("吴重阳，男", ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5)), ("B-NAME", "I-NAME", "I-NAME", "O", "B-X"), f"{path}, line 1")  # fmt: skip
    assert second.text == "A 股“好"


def test_blank_characters_are_characters(tmp_path: Path) -> None:
    """In Chinese files of a character a line, a space and a wide space have their lines too."""
    (example,) = read_tagged(write(tmp_path / "a.txt", "北 B-LOC", "\u3000 O", "  O", "京 O"))
    assert words(example) == ["北", "\u3000", " ", "京"]
    assert example.gold == ("B-LOC", "O", "O", "O")


def test_word_segmentation_has_no_types(tmp_path: Path) -> None:
    (example,) = read_tagged(write(tmp_path / "a.txt", "上\tB", "海\tM", "市\tE", "的\tS"))
    assert example.gold == ("B", "I", "I", "B")


def test_faults_are_repaired_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a B-PER", "b I-LOC", "", "c O", "d I-PER", "e I-PER", "", "f B-LOC", "g B-LOC")
    notes = Notes()
    golds = [example.gold for example in read_tagged(path, notes=notes)]
    assert golds == [("B-PER", "B-LOC"), ("O", "B-PER", "I-PER"), ("B-LOC", "B-LOC")]
    assert notes.counts == {"broken-tags": 2}
    assert notes.first == {"broken-tags": f"{path}, line 1"}
    assert notes.values == {"broken-tags": ("BIO", "I-LOC after B-PER")}


def test_tags_that_are_no_entities_among_some_that_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a B-PER", "b I-PER", "", "c BPER")
    notes = Notes()
    assert [example.gold for example in read_tagged(path, notes=notes)] == [("B-PER", "I-PER"), ("BPER",)]
    assert (notes.counts, notes.first, notes.values) == (
        {"mixed-tags": 1},
        {"mixed-tags": f"{path}, line 4"},
        {"mixed-tags": "BPER"},
    )
    list(read_tagged(write(tmp_path / "b.conll", "a NOUN", "b PRON-X"), notes=(plain := Notes())))
    assert not plain


def test_words_without_tags(tmp_path: Path) -> None:
    first, second = read_tagged(write(tmp_path / "a.txt", "Peter", "sleeps", "", "Well"))
    assert (first.text, first.gold, second.gold) == ("Peter sleeps", None, None)


def test_comments_of_multiconer(tmp_path: Path) -> None:
    (example,) = read_tagged(write(tmp_path / "a.conll", "# id 5239d808 domain=en", "# _ _ O", "rome _ _ B-LOC"))
    assert words(example) == ["#", "rome"]


SENTENCES = """# sent_id = 1
# text = Don't  go (now).
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4\t(\t(\tPUNCT\t-LRB-\t_\t5\tpunct\t_\tSpaceAfter=No
5\tnow\tnow\tADV\tRB\t_\t3\tadvmod\t_\tSpaceAfter=No|Gloss=x
6\t)\t)\tPUNCT\t-RRB-\t_\t5\tpunct\t_\tSpaceAfter=No
7\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# sent_id = 2
1\t施力\t施力\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No
2\t大\t大\tADJ\tJJ\t_\t1\tamod\t_\tSpaceAfter=No
3\t。\t。\tPUNCT\t.\t_\t1\tpunct\t_\tSpaceAfter=No
"""
UD = SENTENCES.split("\n")


@pytest.mark.parametrize("name", ["a.conllu", "a.txt", "a.CONLLU"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_conllu(tmp_path: Path, name: str, end: str) -> None:
    path = write(tmp_path / name, *UD, end=end)
    notes = Notes()
    first, second = read_tagged(path, notes=notes)
    assert first.text == "Don't  go (now)."
    assert words(first) == ["Do", "n't", "go", "(", "now", ")", "."]
    assert first.gold == ("AUX", "PART", "VERB", "PUNCT", "ADV", "PUNCT", "PUNCT")
    assert first.where == f"{path}, line 3"
    assert (second.text, words(second)) == ("施力大。", ["施力", "大", "。"])
    assert not notes
    assert [example.gold for example in read_tagged(path, "XPOS")][1] == ("NN", "JJ", ".")
    with refused("no-column", "ner"):
        list(read_tagged(path, "ner"))


@pytest.mark.parametrize(
    "text",
    ["# sent_id = 1", "# text = something else (now).", "# text = Don't ever go (now).", "# text = Don't go (now). Or"],
)
def test_conllu_without_its_text(tmp_path: Path, text: str) -> None:
    notes = Notes()
    first, _ = read_tagged(write(tmp_path / "a.conllu", UD[0], text, *UD[2:]), notes=notes)
    assert first.text == "Don't go (now)."
    assert words(first) == ["Do", "n't", "go", "(", "now", ")", "."]
    assert notes.counts == ({"text-mismatch": 1} if "text" in text else {})


def test_words_that_cannot_be_parted(tmp_path: Path) -> None:
    lines = ["1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_", "1\tde\tde\tADP\t_\t_\t3\tcase\t_\t_", "2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_", "3\tpain\tpain\tNOUN\t_\t_\t0\troot\t_\t_"]  # fmt: skip
    notes = Notes()
    (example,) = read_tagged(write(tmp_path / "a.conllu", *lines), notes=notes)
    assert (words(example), example.gold) == (["du", "pain"], ("ADP+DET", "NOUN"))
    assert notes.counts == {"joined-words": 1}
    (example,) = read_tagged(write(tmp_path / "b.conllu", lines[3]), "xpos")
    assert example.gold is None  # nobody has filled that column


def test_tokens_in_json(tmp_path: Path) -> None:
    rows = [{"tokens": ["Peter", "in", "Rome"], "ner_tags": ["B-PER", "O", "S-LOC"]}, {"tokens": ["北", "京"], "ner_tags": ["B-LOC", "E-LOC"]}, {"tokens": ["so"]}]  # fmt: skip
    path = write_json(tmp_path / "a.jsonl", *rows)
    first, second, third = read_tagged(path, notes=(notes := Notes()))
    assert (first.text, first.gold) == ("Peter in Rome", ("B-PER", "O", "B-LOC"))
    assert (second.text, second.gold, second.where) == ("北京", ("B-LOC", "I-LOC"), f"{path}, line 2")
    assert third.gold is None
    assert notes.counts == {"broken-tags": 1}  # B-PER is not closed
    assert notes.values["broken-tags"] == ("BIOES", "B-PER before O, though no entity of BIOES ends with it")
    (example,) = read_tagged(write_json(tmp_path / "b.jsonl", {"words": ["a", "b"], "pos": ["DET", "NOUN"]}))
    assert example.gold == ("DET", "NOUN")


def test_tokens_in_parquet(tmp_path: Path) -> None:
    table = {"tokens": [["EU", "in", "Rome"]], "pos_tags": [[1, 2, 3]], "ner_tags": [["B-ORG", "O", "B-LOC"]]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with refused("ambiguous-column", ("ner_tags", "pos_tags")):
        list(read_tagged(tmp_path))
    (example,) = read_tagged(tmp_path, "ner_tags")
    assert entities(example) == [("ORG", "EU"), ("LOC", "Rome")]
    (example,) = read_tagged(tmp_path, "pos_tags", notes := Notes())
    assert example.gold == ("1", "2", "3")
    assert notes.counts == {"numeric-tags": 1}


TEXT = "Peter's dog left NewYork, 去了北京大学。"
MARKED = [[0, 5, "PER"], [17, 20, "X"], [20, 24, "LOC"], [28, 30, "LOC"]]
SPANS: dict[str, dict[str, object]] = {
    "doccano": {"id": 1, "text": TEXT, "label": MARKED},
    "doccano, labels": {"text": TEXT, "labels": list(reversed(MARKED))},
    "doccano, relations": {"text": TEXT, "entities": [{"id": 7, "label": kind, "start_offset": first, "end_offset": end} for first, end, kind in MARKED], "relations": []},
    "prodigy": {"text": TEXT, "spans": [{"start": first, "end": end, "label": kind, "token_start": 0} for first, end, kind in MARKED], "answer": "accept"},
}  # fmt: skip


WIDENED = "widened-entity"
SHARED = "overlapping-entity"


@pytest.mark.parametrize("layout", SPANS)
def test_places_of_entities(tmp_path: Path, layout: str) -> None:
    """The words are those that a text has whose entities nobody knows, or a score would be had with their help."""
    notes = Notes()
    (example,) = read_tagged(write_json(tmp_path / "a.jsonl", SPANS[layout]), notes=notes)
    assert words(example) == ["Peter", "'s", "dog", "left", "NewYork", ",", "去", "了", "北", "京", "大", "学", "。"]
    assert example.words == tuple(split_words(TEXT))
    assert entities(example) == [("PER", "Peter"), ("X", "NewYork"), ("LOC", "北京")]
    assert example.text == TEXT
    assert notes.counts == {WIDENED: 1, SHARED: 1}


def test_tokens_of_prodigy_are_kept(tmp_path: Path) -> None:
    tokens = [{"text": text, "start": TEXT.index(text), "end": TEXT.index(text) + len(text), "id": i} for i, text in enumerate(["Peter's", "dog", "left", "NewYork", ",", "去了北京大学", "。"])]  # fmt: skip
    rows = [{**SPANS["prodigy"], "tokens": tokens}, {**SPANS["prodigy"], "answer": "reject"}, {"text": "No more", "spans": []}, {"text": "To do"}]  # fmt: skip
    notes = Notes()
    first, second, third = read_tagged(write_json(tmp_path / "a.jsonl", *rows), notes=notes)
    assert words(first) == ["Peter's", "dog", "left", "NewYork", ",", "去了北京大学", "。"]
    assert entities(first) == [("PER", "Peter's"), ("X", "NewYork"), ("LOC", "去了北京大学")]
    assert second.gold == ("O", "O")
    assert third.gold is None
    assert notes.counts == {WIDENED: 3, SHARED: 1, "rejected-annotation": 1}


def test_what_is_to_be_answered_is_read_whatever_its_annotator_thought(tmp_path: Path) -> None:
    path = write_json(
        tmp_path / "a.jsonl", {"text": "One", "spans": [], "answer": "reject"}, {"text": "Two", "spans": []}
    )
    assert [example.text for example in read_tagged(path)] == ["Two"]
    assert [example.text for example in read_tagged(path, notes=Notes(whole=True))] == ["One", "Two"]


def test_entities_with_spaces_around_them(tmp_path: Path) -> None:
    notes = Notes()
    rows = [{"text": "a  Rome b", "label": [[1, 2, "X"], [2, 8, "LOC"]]}]
    (example,) = read_tagged(write_json(tmp_path / "a.jsonl", *rows), notes=notes)
    assert entities(example) == [("LOC", "Rome")]
    assert list(notes.counts) == ["empty-entity"]


def test_a_field_that_holds_no_entities(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.jsonl", {"text": "a", "mine": None}, {"text": "a", "mine": "PER"})
    examples = read_tagged(path, "mine")
    with refused("no-entities", f"{path}, line 2"):
        list(examples)
    path = write_json(tmp_path / "a.jsonl", {"text": "a", "mine": None}, {"text": "a", "mine": [[0, 1, "PER"]]})
    assert [example.gold for example in read_tagged(path, "mine")] == [None, ("B-PER",)]


def test_an_invented_scheme_in_a_type(tmp_path: Path) -> None:
    (example,) = read_tagged(write_json(tmp_path / "a.jsonl", {"text": "a b", "label": [[0, 3, "I-PER_X"]]}))
    assert example.gold == ("B-I-PER_X", "I-I-PER_X")


BAD: dict[str, tuple[str, str, str, str]] = {
    "overlap": ("a.jsonl", '{"text": "abc", "label": []}\n{"text": "abcdef", "label": [[0, 3, "X"], [2, 5, "Y"]]}', "overlapping-entities", "{path}, line 2"),
    "twice the same": ("a.jsonl", '{"text": "abc", "label": [[0, 3, "X"], [0, 3, "X"]]}', "overlapping-entities", "{path}, line 1"),
    "outside": ("a.jsonl", '{"text": "abc", "label": [[0, 4, "X"]]}', "bad-entity", "{path}, line 1"),
    "empty": ("a.jsonl", '{"text": "abc", "label": [[2, 2, "X"]]}', "bad-entity", "{path}, line 1"),
    "no entity": ("a.jsonl", '{"text": "abc", "label": ["X"]}', "bad-entity", "{path}, line 1"),
    "no end": ("a.jsonl", '{"text": "abc", "spans": [{"start": 1, "label": "X"}]}', "bad-entity", "{path}, line 1"),
    "fewer tags": ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', "count-mismatch", "{path}, line 1"),
    "no words": ("a.jsonl", '{"id": 5}', "unknown-layout", "{path}, line 1"),
    "two columns of tags": ("a.jsonl", '{"tokens": ["a"], "tags": ["O"], "pos": ["X"]}', "ambiguous-column", "('tags', 'pos')"),
    "fewer columns": ("a.conll", "a X O\n\nb O\n", "wrong-cell-count", "{path}, line 3"),
    "no scheme": ("a.conll", "a B-X\nb M-X\nc L-X\n", "unknown-scheme", "BLM"),
    "conllu columns": ("a.conllu", "1\tb\tc\n", "wrong-cell-count", "{path}, line 1"),
    "conllu number": ("a.conllu", "x\tb" + "\t_" * 8, "bad-word-id", "{path}, line 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_errors_name_the_place(tmp_path: Path, what: str) -> None:
    name, content, code, value = BAD[what]
    (tmp_path / name).write_text(content)
    with pytest.raises(BothwaysError) as caught:
        list(read_tagged(tmp_path / name))
    assert (caught.value.code, str(caught.value.value)) == (code, value.format(path=tmp_path / name))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("column", "code"), [(5, "wrong-cell-count"), (0, "bad-column"), ("ner", "bad-column")])
def test_columns_that_are_not_there(tmp_path: Path, column: str | int, code: str) -> None:
    path = write(tmp_path / "a.conll", *CONLL[2:])
    with refused(code, f"{path}, line 1" if column == 5 else column):
        list(read_tagged(path, column))
    with refused("no-column", str(column)):
        list(read_tagged(write_json(tmp_path / "a.jsonl", {"tokens": ["a"], "tags": ["O"]}), column))


@pytest.mark.parametrize(
    ("lines", "gold"),
    [
        (CONLL[2:4], ("B-ORG", "O")),
        (UD[2:7], ("AUX", "PART", "VERB")),
        (['{"tokens": ["a"], "tags": ["S-X"]}'], ("B-X",)),
    ],
)
def test_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], gold: tuple[str, ...]
) -> None:
    write(tmp_path / "in", *lines)
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        (example,) = read_tagged(["-"])
    assert example.gold == gold
    assert example.where.startswith("standard input, line 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't think it'll work.", "I do n't think it 'll work ."),
        ("Can’t WON'T you're he'd I'm John's", "Ca n’t WO N'T you 're he 'd I 'm John 's"),
        ("shouldn't've n't", "should n't 've n't"),
        ("It 's here, do n't go. 's", "It 's here , do n't go . 's"),
        ("She cannot; CANNOT, Cannota", "She can not ; CAN NOT , Cannota"),
        ("O'Brien’s x's1 90's dogs' l'eau aujourd'hui", "O'Brien ’s x ' s1 90 's dogs ' l ' eau aujourd ' hui"),
        ("At 5 o'clock, ma’am, D'Arcy and do'Brien", "At 5 o'clock , ma’am , D'Arcy and do ' Brien"),
        ("北京's café's", "北 京 's café 's"),
        ("3.14, 5,000.50; 10:30am on 8/16/2000.", "3.14 , 5,000.50 ; 10:30 am on 8/16/2000 ."),
        ("v1.2 1. 2,3 x", "v1 . 2 1 . 2,3 x"),
        ("The U.S. and Mr. Smith, e.g. at 5 a.m.", "The U.S. and Mr. Smith , e.g. at 5 a.m."),
        ("No... --why?!!! a-b", "No ... -- why ? !!! a - b"),
        (
            "See www.a.org/b_c?d=1, (http://x.y/). me.too@a-b.co.uk!",
            "See www.a.org/b_c?d=1 , ( http://x.y/ ) . me.too@a-b.co.uk !",
        ),
        ("Nice :-) or :( :D ;) :P :)) a:b :Paris (a;b;)", "Nice :-) or :( :D ;) :P :)) a : b : Paris ( a ; b ; )"),
        ("St. Ives, Acme Inc. Sam Jr.'s Dr. Ng, Hmr. st.", "St. Ives , Acme Inc. Sam Jr. 's Dr. Ng , Hmr . st ."),
        ("U.S.'s abx.U.S. a.k.a e.g.this", "U.S. 's abx . U . S . a.k.a e.g. this"),
        ("== ** ~~ ## $$ << >> ++ -- !! ?? ::", "== ** ~~ ## $$ << >> ++ -- !! ?? : :"),
        ("<https://a.b>, (me@a.bc), to:me@a.bc", "< https://a.b > , ( me@a.bc ) , to : me@a.bc"),
        ("價格3.5元，……好！！www.a.cn网站", "價 格 3.5 元 ， … … 好 ！ ！ www.a.cn 网 站"),
    ],
)
def test_words_are_those_of_treebanks(text: str, words: str) -> None:
    assert [text[first:last] for first, last in split_words(text)] == words.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cafe\u0301 co\u00adoperate", ["cafe\u0301", "co\u00adoperate"]),
        ("\U0001f44d\U0001f3fd!", ["\U0001f44d\U0001f3fd", "!"]),
        ("I \u2764\ufe0f\u200d you\x00", ["I", "\u2764\ufe0f\u200d", "you\x00"]),
        ("\u200b \x00 a \ufe0f", ["a"]),
        ("no...\u200bgo cafe\u0301's 3.5\u00adkg", ["no", "...\u200b", "go", "cafe\u0301", "'s", "3.5\u00ad", "kg"]),
        ("see http://a.b/it's/3.14?x=... now", ["see", "http://a.b/it's/3.14?x", "=", "...", "now"]),
        ("\u845b\U000e0100\u57ce", ["\u845b\U000e0100", "\u57ce"]),
    ],
)
def test_what_nobody_sees_is_no_word(text: str, words: list[str]) -> None:
    assert [text[first:last] for first, last in split_words(text)] == words


UNSEEN = "\u0301\ufe0f\u200b\x00"


@given(text=st.text(st.sampled_from("aénst9 _'.:/@-!北京，カ한\u2764\u3000" + UNSEEN)))
def test_words_of_a_text(text: str) -> None:
    places = split_words(text)
    said = [text[first:last] for first, last in places]
    assert [c for c in "".join(said) if c not in UNSEEN] == [c for c in "".join(text.split()) if c not in UNSEEN]
    assert all(first < last for first, last in places)
    assert [first for first, _ in places] == sorted(first for first, _ in places)
    assert all(last <= first for (_, last), (first, _) in pairwise(places))
    assert all(len(word.strip(UNSEEN)) == 1 for word in said if is_cjk(word[0]))


@given(words=st.lists(st.text(st.sampled_from("ab9.北京，“"), min_size=1, max_size=3)))
def test_joined_words(words: list[str]) -> None:
    text, places = join_words(words)
    assert [text[first:last] for first, last in places] == words
    assert "".join(words) == text.replace(" ", "")
    for (_, end), (start, _) in pairwise(places):
        if is_cjk(text[end - 1]) and is_cjk(text[start]):
            assert start == end
        if text[end - 1].isascii() or text[start].isascii():
            assert start == end + 1
