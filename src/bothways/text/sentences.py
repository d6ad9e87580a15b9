"""Rule-based sentence splitting for English and Chinese, for next-sentence prediction, which tolerates some errors."""

import re

_MARK = "[.!?…。！？]"  # not ；: like ; and ， it stands inside a sentence (GB/T 15834, the Chinese standard)
_CLOSE = r"[\"'”’»›)\]}）」』】》〉〕]"
_OPEN = r"\"'“‘«‹(\[{（「『【《〈〔"
_HAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # and kana
_LOWER = "a-zß-öø-ÿα-ωа-я"
_BEFORE_HAN = rf"(?=[{_OPEN}]*+[{_HAN}])"
_BEFORE_SPACE = (
    rf"(?=\s)(?!\s[\s{_OPEN}–—-]*+[{_LOWER}])"  # and no lower-case letter after it, which would continue the sentence
)

# The search runs on the first class. Repeats are possessive (*+): a run of a million dots is scanned once.
_END = re.compile(
    rf"""
    [\n\r\u2028\u2029.!?…。！？]
    (?: (?<=[a-z0-9]{{4}}\.) {_CLOSE}*+ {_BEFORE_SPACE}             # after four lower-case letters: no abbreviation
      | (?<=[\n\r\u2028\u2029])                                   # a line end
      | (?<!{_MARK}.)                                             # a run of marks, matched at its first, that is
        (?: (?<=[。！？]) {_MARK}*+ {_CLOSE}*+                      # Chinese,
          | (?: (?<=[!?…]) | (?={_MARK}) ) {_MARK}*+ {_CLOSE}*+   # or more than a dot,
            (?: {_BEFORE_HAN} | {_BEFORE_SPACE} )
          | (?<=[{_HAN}]\.) {_CLOSE}*+ {_BEFORE_HAN}              # or a dot between Chinese characters,
          | (?P<dot> {_CLOSE}*+ {_BEFORE_SPACE} )                 # or one that the word before it decides
        )
    )
    """,
    re.VERBOSE,
)


def _words(written: str) -> frozenset[str]:
    return frozenset(written.split())


# None has four lower-case letters in a row: see above.
_TITLES = _words(
    "Mr Mrs Ms Mx Mme Mlle Dr Drs Prof Rev Hon Fr Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Adm Gov Sen Rep Pres Supt "
    "e.g i.e E.g I.e cf Cf vs v viz"
)
_NUMBERED = _words(  # inside a sentence if a number follows: "No. 5"
    "No Nos no nos Fig Figs fig Eq Eqs eq eqs Vol Vols vol Ch ch Sec sec Art art Op op p pp c ca "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
_EITHER = _words("St Mt Ft Jr Sr Esq Inc Ltd Co Corp Bros Assn Dept Univ Ave Blvd Rd al etc est ed eds")
_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}|[A-ZÀ-ÖØ-ÞА-Я]")  # U.S, Ph.D, J
_BEGINNERS = _words(  # _EITHER and _LETTERS are at the end of a sentence if one of these follows
    "The This That These Those There Then They Their It Its He His She Her We Our You Your In On At For From To With "
    "By As And But Or If When While After Before Since During Although However Here What Who Why How Where Some Many "
    "Most Both Each One Another Other Until Under Because Also Thus Such Despite According"
)
_NEXT = re.compile(rf"\s[\s{_OPEN}]*+(\w+)")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, stripped and not empty; only white space is lost.

    A line end always ends a sentence. The dot of an abbreviation, of initials or of a list number does not, nor does
    any mark before a lower-case letter.

    >>> split_sentences("Dr. Wu paid $3.50 for No. 5. “真的吗？”他问。")
    ['Dr. Wu paid $3.50 for No. 5.', '“真的吗？”', '他问。']
    """
    sentences = []
    start = 0
    for match in _END.finditer(text):
        if match.lastgroup and not _is_end(text, start, match):
            continue
        if sentence := text[start : match.end()].strip():
            sentences.append(sentence)
        start = match.end()
    if sentence := text[start:].strip():
        sentences.append(sentence)
    return sentences


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the dot at `match` ends the sentence that began at `start`."""
    dot = match.start()
    words = text[max(start, dot - 12) : dot].split()  # longer words are not abbreviations
    word = words[-1].lstrip(_OPEN) if words else ""
    if word in _TITLES:
        return False
    if word in _NUMBERED:
        return not _next(text, match)[:1].isdecimal()
    if word in _EITHER or _LETTERS.fullmatch(word):
        return _next(text, match) in _BEGINNERS
    # The number of a list item stays with it.
    return not (len(word) < 4 and word.isdecimal() and text[start:dot].strip() == word)


def _next(text: str, match: re.Match[str]) -> str:
    found = _NEXT.match(text, match.end())
    return found[1] if found else ""
