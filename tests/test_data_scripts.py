"""The scripts in benchmarks/ that make data: what is held out is in no training text."""

import json
import lzma
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


def run(name: str, data: Path, out: Path, *words: str) -> str:
    command = [sys.executable, str(SCRIPTS / name), "--data", str(data), "--out", str(out), *words]
    return subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout


def put(data: Path, files: dict[str, Any]) -> None:
    """Writes text as it is, .json whole and other values as rows."""
    for name, value in files.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(value, str):
            lines = [value] if name.endswith(".json") else value
            value = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        path.write_text(value, encoding="utf-8")


def text(out: Path, pattern: str) -> str:
    return "".join(lzma.open(file, "rt", encoding="utf-8").read() for file in sorted(out.glob(pattern)))


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.open(file, "rt", encoding="utf-8")]


def pair(first: str, second: str, label: str = "0") -> dict[str, str]:
    return {"sentence1": first, "sentence2": second, "label": label}


def chinese(data: Path) -> None:
    review = "这家酒店的房间很大，早餐也非常好吃。"
    squad = {"data": [{"paragraphs": [{"context": "长江是亚洲最长的一条大河。", "qas": [{"question": "多长？"}]}]}]}
    choice = [[["女：明天我们一起去北京看望老师吧。"], [{"question": "去哪？", "choice": ["北京"]}], "1"]]
    tags = "张 B-NAME\n三 E-NAME\n\n"
    put(
        data / "labelled",
        {
            **{
                f"chnsenticorp/{part}.jsonl": [{"text_a": part + review, "label": "1"}]
                for part in ("train", "dev", "test")
            },
            "ocnli/train.10k.jsonl": [pair("甲", "乙"), pair("丙", "丁", "-")],
            "ocnli/dev.jsonl": [pair("甲", "丁")],
            **{f"lcqmc/{part}.jsonl": [pair(part, "乙")] for part in ("dev", "test")},
            "atec/train.jsonl": [pair(f"怎么还款{i}", "如何还款") for i in range(60)],
            **{f"zh_stsb/{part}.jsonl": [pair("甲", "乙")] for part in ("valid", "test")},
            **{f"cmrc2018/{part}.json": squad for part in ("train", "dev", "trial")},
            "xquad/xquad.zh.json": squad,
            **{f"c3/c3-{kind}-{part}.json": choice for kind in "dm" for part in ("train", "dev", "test")},
            **{f"msra_ner/{part}.conll": tags for part in ("train", "dev")},
            **{f"resume_ner/{part}.char.bmes": tags for part in ("train", "dev", "test")},
            **{f"ud_chinese_gsdsimp/ud-{part}.conllu": f"# text = {part}\n" for part in ("dev", "test")},
        },
    )
    put(
        data / "corpus/zh",
        {
            "valid.txt": "齉齉齉齉齉齉\n",
            "valid2.txt": "另一篇。\n",
            "wiki-000.txt": "随著时间过去，他看著著名的著作，又看著作。\n原著又著重。\n\n有人说 dev这家酒店的房间很大,早餐也非常好吃！\n",
            "wiki-001.txt": "听说：长江是亚洲最长的一条大河。\n\n长江很长。\n",
            "chat-000.txt": "他看着我。\n" * 6 + "他看著。\n" + "wonderful " * 20 + "\n",
            "old-000.txt": "不要。\n",
        },
    )


def test_chinese_text_has_no_sentence_that_is_held_out(tmp_path: Path) -> None:
    chinese(tmp_path / "data")
    out = tmp_path / "out"
    told = run(
        "chinese_data.py", tmp_path / "data", out, "--mend", "wiki", "--leave-out", "old", "--mebibytes", "0.00018"
    )
    assert "2 paragraphs left out" in told
    wiki = text(out, "text-*/wiki-*.txt.xz")
    assert wiki == "随着时间过去，他看着著名的著作，又看著作。\n原著又着重。\n\n长江很长。\n"
    assert "看著" in text(out, "text-*/chat-*.txt.xz"), "only the source that is named is mended"
    assert not list(out.glob("text-*/old*"))
    folders = [sum(file.stat().st_size for file in folder.iterdir()) for folder in out.glob("text-*")]
    assert len(folders) > 1
    assert max(folders) <= 0.00018 * 2**20
    assert text(out, "valid.txt.xz") == "齉齉齉齉齉齉\n\n另一篇。\n"
    pieces = (out / "vocabulary/vocab.txt").read_text(encoding="utf-8").split("\n")
    assert {"看", "wonderful", "。", "z"} <= set(pieces)
    assert not {"齉", "时", "酒"} & set(pieces), "held out, or rare"
    labelled = out / "labelled"
    assert rows(labelled / "chnsenticorp/test.jsonl.xz")[0]["text"].startswith("test")
    assert rows(labelled / "ocnli/train.jsonl.xz") == [pair("甲", "乙")]
    assert [rows(labelled / f"lcqmc/{part}.jsonl.xz")[0]["sentence1"] for part in ("train", "dev")] == ["dev", "test"]
    assert (labelled / "ud_chinese_gsdsimp/train.conllu").read_text() == "# text = dev\n"
    train, dev = ({row["sentence1"] for row in rows(labelled / f"atec/{part}.jsonl.xz")} for part in ("train", "dev"))
    assert train
    assert dev
    assert not train & dev
    assert not list(labelled.glob("c*/*t[er][si]*[tl].json")), "neither test nor trial"


def test_vectors_are_not_trained_on_what_judges_them(tmp_path: Path) -> None:
    judged = {
        name: f"The {name} sentence that nobody may learn from." for name in ("sts", "stsb", "sick", "title", "query")
    }
    shown = {name: sentence.upper().rstrip(".") + "!" for name, sentence in judged.items()}
    free = "Everybody may learn from this sentence here."
    scored = [{"sentence1": judged["sts"], "sentence2": "b", "score": 1.0, "dataset": "x"}]
    sick = [{"sentence_A": judged["sick"], "sentence_B": "b", "relatedness_score": "3.3"}]
    long = "A long paragraph about nothing in particular that goes on and on. " * 6
    put(
        tmp_path / "data",
        {
            "corpus/en/valid.txt": "Held-out text is not read by anybody.\n",
            "corpus/en/wiki-000.txt": "\n".join([free, *shown.values(), free, long.strip()]),
            "pairs/nli-snli-mnli.jsonl": [
                {"a": "An entailed first text.", "b": "Its second text.", "relation": "entailment"},
                {"a": shown["stsb"], "b": "Its other text.", "relation": "entailment"},
                {"a": "Not entailed, the first.", "b": "Not entailed, the second.", "relation": "neutral"},
            ],
            "pairs/enzh-t.jsonl": [{"a": "An English sentence.", "b": "一个中文的句子在这里 abcdefghijklmnop"}],
            "pairs/left.jsonl": [{"a": "This was to be left out.", "b": "And this as well, I think."}],
            **{f"labelled/sts12_16/sts{year}.jsonl": scored for year in range(12, 17)},
            **{
                f"labelled/glue_stsb/{part}.jsonl": [scored[0] | {"sentence2": judged["stsb"]}]
                for part in ("dev", "test")
            },
            "labelled/sick/test.jsonl": sick,
            "labelled/scifact/corpus.jsonl": [{"_id": "1", "title": judged["title"], "text": "abstract"}],
            "labelled/scifact/queries.jsonl": [{"_id": "2", "text": judged["query"]}],
            "labelled/scifact/qrels_test.tsv": "query-id\tcorpus-id\tscore\n2\t1\t1\n",
            "labelled/flickr8k_captions/captions.jsonl": [
                {"captions": ["A dog.", shown["sick"], "A brown dog.", "A cat."]}
            ],
            "labelled/glue_qqp_subset/pairs.jsonl": [
                {"question1": f"How {i}?", "question2": f"How then {i}?", "is_duplicate": i} for i in (0, 1)
            ],
        },
    )
    out, more = tmp_path / "out", tmp_path / "more.txt"
    more.write_text(f"A term: what it means.\n{judged['title']}\n")
    run("vector_data.py", tmp_path / "data", out, "--leave-out", "left", "--more", str(more))
    texts = {
        path.name.partition("-")[0]: set(text(path.parent, path.name).splitlines()) for path in out.glob("text-1/*")
    }
    everyday = {"An entailed first text.", "Its second text.", "Its other text.", "An English sentence."}
    everyday |= {"Not entailed, the first.", "Not entailed, the second."}
    assert texts == {"wiki": {free, long.strip()}, "everyday": everyday, "science": {"A term: what it means."}}
    everything = text(out, "text-*/*.txt.xz")
    assert everything.count(free) == 1
    assert not [sentence for sentence in shown.values() if sentence in everything]
    learned = {(row["a"], row["b"]) for row in rows(out / "embed/pairs.jsonl.xz")}
    assert learned == {
        ("A dog.", "A brown dog."),
        ("An entailed first text.", "Its second text."),
        ("How 1?", "How then 1?"),
    }
    assert rows(out / "eval/sts/sick-test.jsonl.xz") == [{"sentence1": judged["sick"], "sentence2": "b", "score": 3.3}]
    assert (out / "eval/scifact/qrels/test.tsv").read_text() == "query-id\tcorpus-id\tscore\n2\t1\t1\n"


def test_a_glossary_has_names_definitions_and_examples(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "GO.sqlite") as terms:
        terms.execute("CREATE TABLE go_term (term, definition)")
        terms.execute("CREATE TABLE go_synonym (synonym)")
        terms.execute("INSERT INTO go_term VALUES ('growth', 'It gets larger.')")
        terms.executemany("INSERT INTO go_synonym VALUES (?)", [("growing",), ("GO:0000001",)])
    term = '[Term]\nid: HP:1\nname: Tall stature\ndef: "A great height." [x]\nsynonym: "Tallness" EXACT []\n'
    (tmp_path / "hp.obo").write_text(f"format-version: 1.2\n\n{term}")
    for part in ("verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text("  1 The licence.\n")
    noun = '00000001 03 n 02 hot_dog 0 frank(p) 0 001 @ 00000002 n 0000 | a sausage; "eat a hot dog"  \n'
    (tmp_path / "data.noun").write_text(f"  1 The licence.\n{noun}")
    sources = ["--go", "GO.sqlite", "--hpo", "hp.obo", "--wordnet", ".", "--out", "glossary.txt"]
    command = [sys.executable, str(SCRIPTS / "glossary.py"), *sources]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=tmp_path)
    assert (tmp_path / "glossary.txt").read_text().splitlines() == [
        "growth", "It gets larger.", "growth: It gets larger.", "growing",
        "Tall stature", "Tallness", "A great height.", "Tall stature: A great height.",
        "hot dog, frank", "a sausage", "hot dog, frank: a sausage", "eat a hot dog",
    ]  # fmt: skip


def catalogue(pairs: dict[str, str]) -> bytes:
    """A .mo file as gettext writes it."""
    texts = [text.encode() for text in (*pairs, *pairs.values())]
    place, table = 28 + 16 * len(pairs), b""
    for text in texts:
        table += struct.pack("<2I", len(text), place)
        place += len(text) + 1
    return (
        struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0) + table + b"\0".join(texts) + b"\0"
    )


def package(path: Path, files: dict[str, bytes]) -> None:
    root = path.parent / "root"
    put(root, {"DEBIAN/control": "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"})
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    subprocess.run(["dpkg-deb", "--build", str(root), str(path)], check=True, capture_output=True)
    shutil.rmtree(root)


CEDICT = [
    {"traditional": traditional, "simplified": simplified, "english": [english]}
    for traditional, simplified, english in (
        ("愛", "爱", "to love"),
        ("么", "幺", "surname Yao"),
        ("什麼", "什么", "what"),
        ("夏天", "夏天", "summer"),
        ("著名", "著名", "famous"),
    )
]


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb")
def test_translations_come_from_packages_and_repositories_without_their_markup(tmp_path: Path) -> None:
    page = "---\ntitle: x\n---\n\n# {}\n\n{}\n\n```js\ncode\n```\n\n- {}\n"
    put(
        tmp_path,
        {
            "cedict.json": json.dumps(CEDICT),
            "downloads/DaoChaShao/py-st-dl-translater-2.0/data/cmn.txt": "I love the famous summer.\t我愛著名的夏天。\tCC-BY\n"
            "What do you love?\t你爱什么？\n"
            "The year was 1999.\t那一年是2024年。\nEnglish only.\tno\nI love.\t这个句子比英文的长得太多了，不会是它的翻译。\n",
            "downloads/python/python-docs-zh-cn/a.po": '#, fuzzy\nmsgid "Not this."\nmsgstr "不是这个。"\n\n'
            'msgid ""\n"See :ref:`the "\n"table <x>`."\nmsgstr "参见 :ref:`表格 <x>`。"\n',
            "downloads/kubernetes/website/content/zh-cn/a.md": '<!--\nA {{< glossary_tooltip text="pod" term_id="pod" >}} '
            '**runs** here.\n-->\n{{< glossary_tooltip text="Pod" >}} 在这里**运行**着。\n',
            "downloads/mdn/content/files/en-us/a.md": page.format(
                "The table", "It has rows. It has columns.", "See `row`."
            ),
            "downloads/mdn/translated-content/files/zh-cn/a.md": page.format(
                "表格", "它有一些行。它有一些列。", "参见 `row` 元素。"
            ),
        },
    )
    (tmp_path / "downloads/debian").mkdir()
    said = {
        "": "header",
        "menu|_Open the file": "打开文件(_O)",
        "Could not read “%s”.": "无法读取“%s”。",
        "Width": "宽度",
    }
    package(tmp_path / "downloads/debian/wget_1_all.deb", {"usr/share/locale/zh_CN/LC_MESSAGES/a.mo": catalogue(said)})
    manual = {
        "usr/share/help/C/a.page": b"<page><title>The help</title><p>Click <gui>Open</gui>.</p></page>",
        "usr/share/help/zh_CN/a.page": "<page><title>帮助</title><p>点击<gui>打开</gui>。</p></page>".encode(),
    }
    package(tmp_path / "downloads/debian/gnome-user-docs_1_all.deb", manual)
    command = [sys.executable, str(SCRIPTS / "parallel_sources.py"), "--downloads", "downloads", "--out", "out"]
    told = subprocess.run([*command, "--dictionary", "cedict.json"], check=True, capture_output=True, timeout=120,
                          text=True, cwd=tmp_path).stdout  # fmt: skip
    found = {
        path.name.split(".")[0]: {(row["a"], row["b"]) for row in rows(path)}
        for path in (tmp_path / "out").glob("*.xz")
    }
    assert found == {
        "tatoeba": {("I love the famous summer.", "我爱著名的夏天。"), ("What do you love?", "你爱什么？")},
        "python": {("See the table.", "参见表格。")},
        "kubernetes": {("A pod runs here.", "Pod 在这里运行着。")},
        "mdn": {("The table", "表格"), ("It has rows. It has columns.", "它有一些行。它有一些列。"), ("It has rows.", "它有一些行。"),
                ("It has columns.", "它有一些列。"), ("See row.", "参见 row 元素。")},
        "messages": {("Open the file", "打开文件"), ("Could not read.", "无法读取。"), ("Width", "宽度")},
        "manuals": {("The help", "帮助"), ("Click Open.", "点击打开。")},
    }  # fmt: skip
    assert "news: without MicrosoftTranslator/NTREX" in told
    assert "| tatoeba | 2 | CC BY 2.0 FR |" in (tmp_path / "out/SOURCES.md").read_text(encoding="utf-8")


def committed(folder: Path, files: dict[str, str]) -> str:
    put(folder, files)
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def jats(title: str, abstract: str, body: str, licence: str = "by") -> str:
    link = f'<license xmlns:x="x" x:href="http://creativecommons.org/licenses/{licence}/4.0/"/>'
    meta = f"<title-group><article-title>{title}</article-title></title-group><permissions>{link}</permissions>"
    front = f"<front><article-meta>{meta}<abstract>{abstract}</abstract></article-meta></front>"
    return f'<?xml version="1.0"?><article>{front}<body><sec><title>Results</title><p>{body}</p></sec></body></article>'


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_biomedical_texts_leave_out_what_judges_them(tmp_path: Path) -> None:
    judged = "The judged sentence says that nobody may learn from the whole of its document."
    short = "The cells of the mice grew well in the water."
    cite = '[<xref ref-type="bibr">1</xref>]'
    body = f"We gave 2×10<sup>6</sup> cells to the mice in the morning {cite}–{cite} and in the evening as well{cite}."
    online = "The online version of this article (10.1/x) contains supplementary material, which is available to "
    publisher = f"<title>Electronic supplementary material</title><p>{online}authorized users.</p>"
    articles = {
        "elife-1-v1.xml": jats("The first version of it", f"<p>An older one: {short}</p>", ""),
        "elife-1-v2.xml": jats("Growth of cells", f"<p>{short}</p><sec>{publisher}</sec>", body),
        "elife-2-v1.xml": jats("Of the judged", f"<p>{short} {judged.upper()}</p>", "And this is lost with it, though it is free to use."),
        "elife-3-v1.xml": jats("For no money", "<p>This abstract is for the use of those who sell nothing.</p>", "", "by-nc"),
    }  # fmt: skip
    term = '[Term]\nid: {}\nname: {}\ndef: "{}" [x:1]\n\n'
    long = "A part of the body that is told about at length. "
    ontologies = {
        "a.obo": term.format("CL:1", "cell", "The smallest part of all that lives.")
        + term.format("X:1", "other", "A term of an ontology that is not ours."),
        "b.owl": 'Prefix(:=<x>)\nAnnotationAssertion(rdfs:label obo:CL_1 "cell")\n'
        'AnnotationAssertion(obo:IAO_0000115 obo:CL_1 "The smallest part of all that lives.")\n',
        "c.owl": '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://www.w3.org/2002/07/owl#" '
        'xmlns:s="http://www.w3.org/2000/01/rdf-schema#" xmlns:o="http://purl.obolibrary.org/obo/"><Class r:about="x/MP_1">'
        f"<s:label>arm</s:label><o:IAO_0000115>{long * 60}</o:IAO_0000115></Class></r:RDF>",
        "d.obo": term.format("CL:2", "large", "It is in a file that is too large.") + "x" * 2**22,
    }
    question = "what research (or clinical trials) is being done for X?"
    answer = "The mission of the institute is to find out more about it."
    qa = f"<D><QAPair><Question>{question}</Question><Answer>{answer} Yes. It is.</Answer></QAPair></D>"
    words = "The gene is known [ 45 ] - [ 47 ] in all of these people .".replace(" ", "\tO\n")
    sources = [
        ("x/articles", "article 1 2", r"\.xml$", articles), ("x/terms", "terms", r"\.(?:obo|owl)$", ontologies),
        ("x/questions", "medquad", r"\.xml$", {"a.xml": qa}), ("x/tagged", "tagged", r"\.tsv$", {"a.tsv": f"{words}\tO\n"}),
    ]  # fmt: skip
    table = "source\tcommit\treader\tfiles\tlicence\tabout\nx/missing\t0\tterms\tx\tCC0\tx\n"
    for name, reader, pattern, files in sources:
        commit = committed(tmp_path / "downloads" / name, files)
        table += f"{name}\t{commit}\t{reader}\t{pattern}\tCC0\tof a test\n"
    judge = {"corpus.jsonl": [{"_id": "1", "title": "", "text": f"Before it. {judged} After it."}], "queries.jsonl": []}
    put(tmp_path, {"sources.tsv": table, **{f"judge/{name}": value for name, value in judge.items()}})
    command = [sys.executable, str(SCRIPTS / "bio_sources.py"), "--sources", "sources.tsv", "--out", "bio.txt"]
    told = subprocess.run([*command, "--downloads", "downloads", "--held-out", "judge"], check=True, timeout=120,
                          capture_output=True, text=True, cwd=tmp_path).stdout  # fmt: skip
    found = (tmp_path / "bio.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(found) == sorted([
        f"Growth of cells. {short}", short, "We gave 2×10^6 cells to the mice in the morning and in the evening as well.",
        "cell: The smallest part of all that lives.", f"arm: {long * 52}".strip(),
        f"{answer} Yes. It is.", answer, "The gene is known in all of these people.",
    ])  # fmt: skip
    assert "without x/missing" in told
    assert "| x/articles | 3 | 0.00 | CC0 | of a test |" in told
    assert "Left out: documents with held-out text 1, duplicates 1\n" in told


def test_translations_leave_out_what_judges_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    squad = {
        part: {"data": [{"paragraphs": [{"context": context, "qas": [{"id": "1", "question": question}]}]}]}
        for part, context, question in (
            ("zh", "长江是亚洲最长的一条大河。", "长江有多长？"),
            ("en", "The Yangtze is the longest river.", "How long is it?"),
        )
    }
    put(
        data,
        {
            **{f"labelled/xquad/xquad.{part}.json": value for part, value in squad.items()},
            "labelled/cmrc2018/train.json": squad["zh"],
            **{
                f"labelled/zh_stsb/{part}.jsonl": [
                    {"sentence1": f"这是{part}的句子。", "sentence2": "另一个句子。", "score": 1}
                ]
                for part in ("valid", "test")
            },
            "labelled/zh_stsb/train.jsonl": [
                {"sentence1": "一个人在弹钢琴。", "sentence2": "一个人在弹吉他。", "score": 2},
                {"sentence1": "3个孩子在跑。", "sentence2": "这是test的句子。", "score": 1},
                {"sentence1": "两条狗在雪地里玩。", "sentence2": "狗在雪里玩。", "score": 4},
            ],
            **{
                f"labelled/glue_stsb/{part}.jsonl": [
                    {"sentence1": f"Of {part}.", "sentence2": "A word.", "score": 1.0, "filename": "images"}
                ]
                for part in ("dev", "test")
            },
            "labelled/glue_stsb/train.jsonl": [
                {
                    "sentence1": "A man is playing piano.",
                    "sentence2": "A man is playing guitar.",
                    "score": 2.2,
                    "filename": "MSRvid",
                },
                {
                    "sentence1": "It rains.",
                    "sentence2": "The sun is shining on all of the houses.",
                    "score": 2.5,
                    "filename": "images",
                },
                {
                    "sentence1": "3 children run.",
                    "sentence2": "This is of the test.",
                    "score": 1.0,
                    "filename": "images",
                },
                {
                    "sentence1": "Two dogs play in the snow.",
                    "sentence2": "Dogs play in snow.",
                    "score": 4.6,
                    "filename": "images",
                },
            ],
            "pairs/enzh-translation-x.jsonl": [{"a": "Good morning.", "b": "早上好。"}],
            "pairs/zh-x.jsonl": [{"a": "怎么办？", "b": "这样办。"}],
            "corpus/zh/wiki.txt": "没有什么句子。\n",
            "cedict.json": json.dumps(CEDICT),
            "talk.jsonl": [{"a": "How are you?", "b": "你好吗？"}],
            "more.jsonl": [
                {"a": "Good morning.", "b": "早上好。"},
                {"a": "A sentence to learn from.", "b": "可以学习的句子。"},
                {"a": "A sentence of the test.", "b": "这是test的句子。"},
                {"a": "Look. How long is it?", "b": "看，它有多长呢？"},
            ],
        },
    )
    run(
        "parallel_data.py",
        data,
        tmp_path / "out",
        "--dictionary",
        str(data / "cedict.json"),
        "--more",
        str(data / "more.jsonl"),
        "--everyday",
        str(data / "talk.jsonl"),
    )
    pairs = [(row["a"], row["b"]) for row in rows(tmp_path / "out/translations.jsonl.xz")]
    assert sorted(pairs) == sorted([
        ("A sentence to learn from.", "可以学习的句子。"), ("summer", "夏天"), ("famous", "著名"), ("what", "什么"),
    ])  # fmt: skip
    assert [(row["a"], row["b"]) for row in rows(tmp_path / "out/everyday.jsonl.xz")] == [
        ("How are you?", "你好吗？"), ("Good morning.", "早上好。"), ("3 children run.", "3个孩子在跑。"),
        ("Two dogs play in the snow.", "两条狗在雪地里玩。"), ("Dogs play in snow.", "狗在雪里玩。"),
    ]  # fmt: skip
    assert [row["score"] for row in rows(tmp_path / "out/sts.jsonl.xz")] == [4]
