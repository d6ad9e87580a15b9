"""着 for 著 in text that a converter from traditional characters left half-way: 随著 is 随着, and 著名 stays."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bothways.text.streams import read_lines

_VERBS = frozenset("随接沿绕跟靠藉凭趁味朝")  # 随着, 接着 …
_ADVERBS = frozenset("又也并曾素无一不")  # 又著: also wrote
_NOUNS = frozenset("显土原专名卓巨论编合译昭遗撰执所")  # 显著, 土著, 专著 …
_WROTE = frozenset("曾他她还另也并其")  # 他著有: he wrote
_AFTER_ZHU = frozenset("名作称述书者录有")  # 著作, 著称, 著者 …
_AFTER_ZHAO = frozenset("手重陆眼火色迷落装力想实急凉床墨魔舰")  # 着手, 着重, 着陆 …


def is_zhao(before: str, after: str, next_after: str, verbs: set[str]) -> bool:
    """Whether 著 between these characters stands for 着."""
    if after == "名":  # 著名, but for 有着名为
        return before == "有" and next_after in ("为", "叫")
    if before in _VERBS:
        return True
    if before in _ADVERBS and after not in _AFTER_ZHAO:
        return False
    if before in _NOUNS:
        return before == "所" and after == "重"
    if after == "有":
        return before in verbs and before not in _WROTE
    if after in _AFTER_ZHU:
        return False
    return after in _AFTER_ZHAO or before in verbs


def mend(text: str, verbs: set[str]) -> str:
    """The text with 着 for 著 where it is meant."""
    letters = list(text)
    for i in (match.start() for match in re.finditer("著", text)):
        if is_zhao(text[max(0, i - 1) : i], text[i + 1 : i + 2], text[i + 2 : i + 3], verbs):
            letters[i] = "着"
    return "".join(letters)


def zhao_verbs(files: Iterable[Path]) -> set[str]:
    """The characters after which these texts write 着 five times or more, and more often than 著."""
    zhao, zhu = Counter[str](), Counter[str]()
    for line in (line for file in files for line in read_lines(file)):
        zhao.update(re.findall("(.)着", line))
        zhu.update(re.findall("(.)著", line))
    return {letter for letter, n in zhao.items() if n >= 5 and n > zhu[letter] and "\u4e00" <= letter <= "\u9fff"}
