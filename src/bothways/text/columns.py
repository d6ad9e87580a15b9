"""Finds the text, pair and label columns of a table: named by the user, or known by their usual names."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bothways.errors import BothwaysError, name_list

TEXTS = (
    "text", "sentence", "content", "review", "review_body", "comment", "comment_text", "tweet", "text_a", "body",
    "utterance", "message", "headline", "question", "query", "document", "review_text", "review_content", "tweet_text",
    "post_text", "message_text", "feedback",
    "文本", "内容", "评论", "评论内容", "评价", "评价内容", "正文", "句子", "文章", "文章内容", "微博", "微博正文",
    "微博中文内容", "留言", "弹幕", "消息", "反馈", "反馈内容", "描述", "原文", "问题", "提问",
    "文字", "讯息", "回馈", "贴文",
)  # fmt: skip
PAIRS = (
    ("sentence1", "sentence2"), ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("question", "passage"),
    ("question", "context"), ("query", "passage"), ("query", "document"), ("query", "title"), ("text_a", "text_b"),
    ("text1", "text2"), ("text", "text_pair"), ("text", "pair"), ("sent1", "sent2"), ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("句子1", "句子2"), ("句子一", "句子二"), ("文本1", "文本2"), ("文本一", "文本二"), ("句1", "句2"),
    ("前提", "假设"), ("问题1", "问题2"), ("问题一", "问题二"), ("问题", "段落"), ("问题", "上下文"),
)  # fmt: skip
ALONE = ("标题",)
"""The text where a table has no other: beside a text it is the title."""
LABELS = (
    "label", "labels", "gold_label", "quality", "is_duplicate", "score", "similarity_score", "relatedness_score",
    "entailment_judgment", "category", "class", "class index", "sentiment", "target", "stars", "rating", "intent",
    "emotion",
    "标签", "类别", "类目", "分类", "类型", "情感", "情感倾向", "情感极性", "情感标签", "情绪", "评分", "打分", "星级",
    "分数", "得分", "意图", "相似度", "关系",
)  # fmt: skip
_OF_QUESTIONS = {
    "问题": "question", "提问": "question", "上下文": "context", "段落": "context", "篇章": "context",
    "文章": "context", "原文": "context", "答案": "answer", "回答": "answer", "答案位置": "answer_start", "编号": "id",
    "选项": "options", "question": "question", "context": "context", "answer": "answer", "answers": "answers",
    "answerstart": "answer_start", "isimpossible": "is_impossible", "options": "options",
}  # fmt: skip
"""The plain names of the columns of questions, and as readers of questions know them."""
_TRADITIONAL = str.maketrans(
    "評論內價標籤簽類別極緒數級圖關係彈饋問題設編號選項譯訊貼",
    "评论内价标签签类别极绪数级图关系弹馈问题设编号选项译讯贴",
)
"""The characters of usual names that are written in another way in Taiwan and Hong Kong."""
_BETWEEN_WORDS = re.compile(r"[\s_-]+")
POSITIVE = re.compile(r"pos(itives?)?(_?\d+|_\w+)?", re.IGNORECASE)
NEGATIVE = re.compile(r"(hard_?)?neg(atives?)?(_?\d+|_\w+)?", re.IGNORECASE)
"""Names of the texts that belong to a query or anchor, and of those that do not: negative, neg_2, hard_negatives."""


def named_like(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """The names that a pattern describes.

    >>> named_like(["query", "negative_2", "hard_neg", "negation"], NEGATIVE)
    ['negative_2', 'hard_neg']
    """
    return [name for name in names if pattern.fullmatch(str(name).strip())]


@lru_cache(4096)
def plain_name(name: str) -> str:
    """The name of a column without what differs between files: case, spaces, hyphens, traditional and wide characters.

    >>> plain_name("Review Text"), plain_name("review_text"), plain_name("評論內容"), plain_name("句子１")
    ('reviewtext', 'reviewtext', '评论内容', '句子1')
    """
    return _BETWEEN_WORDS.sub("", unicodedata.normalize("NFKC", name)).lower().translate(_TRADITIONAL)


def is_usual_label(name: object) -> bool:
    """Whether this is a usual name of a column of labels."""
    return plain_name(str(name)) in _PLAIN_LABELS


def in_english(row: Any) -> Any:
    """The row of a question with the usual names of its columns, in English; anything else as it is.

    >>> in_english({"问题": "谁?", "段落": "我。", "n": 1}), in_english({"Question": "Who?", "Context": "Me."})
    ({'question': '谁?', 'context': '我。', 'n': 1}, {'question': 'Who?', 'context': 'Me.'})
    """
    if not isinstance(row, dict):
        return row
    found: dict[Any, Any] = {}
    for name, value in row.items():
        known = _OF_QUESTIONS.get(plain_name(str(name)), name)
        found[name if known in row or known in found else known] = value
    return found


def first_like(wanted: Iterable[str], names: Iterable[str]) -> str | None:
    """The first of these names that a table has, as the table writes it.

    >>> first_like(("_id", "id"), ["ID", "text"])
    'ID'
    """
    own = list(map(str, names))
    of_each = (name for one in wanted for name in ([one] if one in own else own) if plain_name(name) == plain_name(one))
    return next(of_each, None)


@dataclass(frozen=True)
class Columns:
    """The names of the columns, where they are not the usual ones. Case does not matter.

    `title+description` joins two columns into one text, with a space between them. The label `joy+awe` names two
    columns of 0 and 1, one for each of several labels. Numbers, such as text "2" and label "1", count the columns of a
    table that has no header.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    reads_label: bool = True
    """False: only texts are wanted, so that it does not matter which column is the label, or what is in it."""

    @property
    def are_usual(self) -> bool:
        """Whether no column is named."""
        return not (self.text or self.pair or self.label)


@dataclass(frozen=True)
class ResolvedColumns:
    """The columns of a table that hold the texts and the label of an example."""

    texts: tuple[tuple[str, ...], ...]
    """One or two texts, each of one or more columns."""
    label: str | None
    indicators: tuple[str, ...] = ()
    """Instead of a label: the columns of 0 and 1 that the user names, one for each label."""


def names_without_header(columns: Columns, first: list[str]) -> list[str] | None:
    """The names of the columns if the table has no header, so that its first row is an example; else None.

    CoLA's rows are recognised: source, label, the author's mark, sentence.
    """
    joined = (columns.text, columns.pair, columns.label)
    given = [name for names in joined for name in (names or "").split("+") if name]
    if given and all(name.isdecimal() for name in given) and not set(given) <= set(first):
        return [str(number) for number in range(1, len(first) + 1)]
    if len(first) == 4 and first[1] in ("0", "1") and first[2] in ("", "*"):
        return ["source", "label", "mark", "sentence"]
    return None


def find_columns(
    columns: Columns, names: Sequence[str], where: str, *, has_header: bool = False, has_types: bool = False
) -> ResolvedColumns:
    """The text, pair and label columns among these names; an error if that is ambiguous.

    With `has_header` the names are the first line of a table, which may in truth be its first row. With `has_types` all
    rows have these columns for sure, so that the only one is the text, whatever its name.
    """
    hint = "; if its first line is no header, count them, as in `text` 1 and `label` 2" * has_header
    table = _Header(names, where, hint, has_types=has_types)
    if columns.pair and not columns.text:
        raise BothwaysError("`pair` names the second text: name the first one with `text`", "pair-without-text")
    labels = table.named(columns.label, "label") if columns.label else ()
    label = labels[0] if len(labels) == 1 else None
    if columns.text:
        given = (("text", columns.text), ("pair", columns.pair))
        texts = [table.named(name, argument) for argument, name in given if name]
    else:
        texts = table.known_texts(*labels)
    used = {name for text in texts for name in text}
    if not columns.reads_label:
        return ResolvedColumns(tuple(texts), None)
    if len(labels) > 1:
        return ResolvedColumns(tuple(texts), None, labels)
    return ResolvedColumns(tuple(texts), label or table.known_label(used))


def find_text(
    text: str | None, names: Sequence[str], where: str, *, has_header: bool = False, has_types: bool = False
) -> tuple[str, ...]:
    """The columns of the one text of a row, where no second text and no label is read.

    A column `text` is taken whatever else there is; without one the rules are those of `find_columns`.

    >>> find_text(None, ["id", "review"], "a.csv"), find_text("title+body", ["title", "body"], "a.csv")
    (('review',), ('title', 'body'))
    """
    hint = "; if its first line is no header, count them, as in `text` 1" * has_header
    table = _Header(names, where, hint, "`text`", has_types)
    if text:
        return table.named(text, "text")
    if exact := table.like("text"):
        return (table.one(exact, "`text`"),)
    found = table.known_texts()
    if len(found) > 1:
        table.one([name for one in found for name in one], "`text`")
    return found[0]


def named_column(wanted: str, names: Sequence[str], where: str, argument: str) -> str:
    """The one column that the user names; upper and lower case are equal."""
    table = _Header(names, where, "")
    return table.one(list(table.named(wanted, argument)), f"`{argument}`")


_PLAIN_LABELS = frozenset(map(plain_name, LABELS))


class _Header:
    """The column names of one table."""

    def __init__(
        self,
        names: Sequence[str],
        where: str,
        hint: str,
        arguments: str = "`text`, and a second text with `pair`",
        has_types: bool = False,
    ) -> None:
        self.names, self.where, self.hint, self.arguments = names, where, hint, arguments
        self.has_types = has_types
        self.all = f"its columns are {name_list(names) or 'none'}"

    def like(self, name: str) -> list[str]:
        return [own for own in self.names if plain_name(own) == plain_name(name)]

    def named(self, wanted: str, argument: str) -> tuple[str, ...]:
        """The columns that the user names: one, or several joined with +."""
        if found := ([wanted] if wanted in self.names else self.like(wanted)):
            return (self.one(found, f"`{argument}`"),)
        if "+" in wanted:
            return tuple(name for part in wanted.split("+") for name in self.named(part, argument))
        says = f"{self.where} has no column {wanted!r}, which `{argument}` names: {self.all}{self.hint}"
        raise BothwaysError(says, "no-column", wanted)

    def one(self, found: list[str], arguments: str) -> str:
        if len(found) > 1:
            says = f"{self.where} could mean {' or '.join(found)} ({self.all}): name one with {arguments}"
            raise BothwaysError(says, "ambiguous-column", tuple(found))
        return found[0]

    def known_texts(self, *labels: str) -> list[tuple[str, ...]]:
        """The one pair or the one text with a usual name, which is none of the labels."""
        pairs = [(a, b) for first, second in PAIRS for a in self.like(first) for b in self.like(second)]
        pairs = [pair for pair in pairs if not set(labels) & set(pair)]
        used = {name for pair in pairs for name in pair}
        singles = [own for name in TEXTS for own in self.like(name) if own not in used and own not in labels]
        found = [f"{a} with {b}" for a, b in pairs] + singles
        if len(found) > 1:
            self.one(found, self.arguments)
        if found:
            return [(name,) for name in (pairs[0] if pairs else singles)]
        # AG News and similar: the title and the description are one text.
        if (title := self.like("title")) and (description := self.like("description")):
            return [(title[0], description[0])]
        if alone := [own for name in ALONE for own in self.like(name) if own not in labels]:
            return [(alone[0],)]
        if len(self.names) == 1 and self.has_types and self.names[0] not in labels:
            return [(self.names[0],)]
        says = f"{self.where} has no column with a usual name for the text ({self.all})"
        advice = f"name it with {self.arguments}{self.hint}"
        raise BothwaysError(f"{says}: {advice}", "no-text-column", tuple(self.names))

    def known_label(self, used: set[str]) -> str | None:
        """The one label with a usual name; None if the rows have no labels."""
        found = [own for name in LABELS for own in self.like(name) if own not in used]
        return self.one(found, "`label`") if found else None
