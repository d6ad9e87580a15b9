"""Strings of every kind, with which tokenizers are compared."""

import random

from helpers import PIECES

ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "accents": "éèêëàâäùûüôöîïçñßøåæœÉÀÜÑŁłŠžĞğİıǅ",
    "digits": "0123456789٠١٢٣०१२³½Ⅷ",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿«»—–…‘’“”、。，！？；：「」『』（）《》",
    "chinese": "中国的首都是北京巴黎法猫狗日本㐀㐁豈更𠀀𠀁𪜶",
    "japanese": "ひらがなカタカナ漢字々ー",
    "korean": "한국어서울",
    "scripts": "Привет мир שלום عليكم สวัสดี नमस्ते Ελλάδα გამარჯობა",
    "emoji": "😀🎉👩‍👩‍👧🏳️‍🌈❤️🇫🇷👍🏽",
    "space": " \t\n\r\u00a0\u2003\u3000\u1680",
    "control": "\x00\x01\x07\x08\x0b\x0c\x1b\x7f\x80\x85\x9f\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\ufffd\ue000",
    "combining": "e\u0301a\u0308\u0327o\u0302\u0300",
}
FIXED = [
    "", " ", "\n", "\t \r\n", "a" * 99, "a" * 100, "a" * 101, "x" * 5000, "猫" * 600, "[MASK]", "a[MASK]b", "[CLS] [SEP] [PAD] [UNK]",
    "[mask] [ MASK ]", "The capital of France is [MASK].", "unbelievable unbelievably walking", "ab\x00cd", "a\u200bb", "\ufeffstart",
    "don't won't it's", "1,234.56%", "http://example.org/a?b=c#d", "C++ & C#", "naïve café Ångström", "I\u0307stanbul İstanbul",
    "北京is the capital of中国。", "法国的首都是[MASK]。", "😀😀", "##ing ##", "ﬁ ﬂ ﬃ", "ＡＢＣ１２３", "２０２４年ＡＩ课，１０：３０开始", "３.５斤a９", "\u0130", "ǅ", "a\u0300\u0301\u0302",
]  # fmt: skip


def many_strings(count: int = 12_000) -> list[str]:
    """Strings of every kind, mixed: the same at each run."""
    draws = random.Random(0)
    kinds = list(ALPHABETS.values())
    words = [*PIECES[104:], "Paris", "FRANCE", "Unbelievable", "walking"]
    found = list(FIXED)
    while len(found) < count:
        parts = []
        for _ in range(draws.randint(0, 12)):
            if draws.random() < 0.5:
                parts.append(draws.choice(words))
            else:
                parts.append("".join(draws.choices(draws.choice(kinds), k=draws.randint(1, 9))))
        found.append(draws.choice(["", " "]).join(parts))
    found += ["".join(draws.choices("".join(kinds), k=draws.randint(90, 400))) for _ in range(200)]
    return found
