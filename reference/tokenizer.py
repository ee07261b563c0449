"""tokenizer.json: texts and their ids under CLIP's tokenizer, START … END, at most 77, without the padding."""

import html
import itertools
import json
import random
from functools import partial
from unittest import mock

import ftfy
import regex
from open_clip.tokenizer import SimpleTokenizer

from golden import GOLDEN

START, END = "<|startoftext|>", "<|endoftext|>"


class Clip(SimpleTokenizer):
    """open_clip's, with the two special tokens spelt as openai/CLIP spells them."""

    def __init__(self):
        super().__init__()
        self.encoder |= {START: 49406, END: 49407}
        self.cache |= {START: START, END: END}
        self.pat = regex.compile(
            r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
            regex.IGNORECASE,
        )


CLIP = Clip()
without_mojibake = partial(ftfy.fix_text, fix_encoding=False)


def ids(text):
    return CLIP(text)[0].tolist()[: 2 + len(CLIP.encode(text))]


def groups(items, size):
    return [" ".join(items[at : at + size]) for at in range(0, len(items), size)]


def captions():
    subjects = ["A brown dog", "Two children", "An old man in a red hat", "The bride", "Three cyclists",
                "A Border Collie", "Someone's cat", "A woman wearing sunglasses", "The tennis player",
                "A baby elephant", "Skateboarders"]
    verbs = ["runs through", "are sitting on", "jumps over", "is photographed in front of", "looks at", "eats beside",
             "sleeps under", "plays frisbee near", "waits for the bus at", "climbs"]
    places = ["a grassy field.", "the snow-covered mountain", "a crowded street, at night", "an orange-and-white boat!",
              "the Eiffel Tower in Paris", "a 1967 Ford Mustang", "the kitchen table (with two chairs)",
              "a chain-link fence", "\"Joe's Diner\"", "the ocean at sunset", "graffiti reading 'NO PARKING'",
              "St. Mary's church", "a #12 jersey"]
    for k in range(180):
        yield f"{subjects[k % 11]} {verbs[k % 10]} {places[k % 13]}"
    classes = ["goldfish", "great white shark", "tench, Tinca tinca", "Yorkshire terrier", "airplane",
               "jack-o'-lantern", "T-shirt", "hair dryer", "potter's wheel", "odometer", "CD player", "crème brûlée"]
    templates = ["a photo of a {}.", "This is a photo of {}", "a bad photo of the {}.", "a {} in a video game.",
                 "itap of my {}.", "graffiti of the {}.", "a jpeg corrupted photo of a {}.", "a tattoo of the {}."]
    for template, name in itertools.product(templates, classes):
        yield template.format(name)


PUNCTUATION = [
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "...", "?!?!", "--", "——", "(a)(b)[c]{d}", "a.b.c", "a,b;c:d", "***bold***",
    "$5.99", "50% off!!", "C++ & C#", "a/b\\c|d", "user@example.com", "https://example.com/a?b=c&d=e#f",
    "#nofilter #tbt", "@someone :-) ;) <3", "~~~~", "</w>", "a</w> b</w>", "<w>", "word</w>", "_underscored_name_",
    "-5°C", "«guillemets»", "¿qué? ¡sí!", "§ 4 ¶ 2", "• bullet", "a–b—c", "…", "′ ″", "‹x›", "‰ € £ ¥ ₹ ₿",
    "→ ← ↔ ∞ ≠ ≤", "½ ¼ ¾ ⅓", "x² y³ H₂O",
]
CONTRACTIONS = [
    "it's", "IT'S", "don't", "we're", "they've", "I'm", "you'll", "he'd", "rock'n'roll", "'tis", "o'clock",
    "dogs' toys", "'s't're've'm'll'd", "'S'T'RE'VE'M'LL'D", "y'all'd've", "'ſ", "it'ſ", "'sand", "'dare", "'llama",
    "x 's", "''s", "'", "''", "can`t", "won't've", "'ReD", "l'été", "d'Artagnan",
]
NUMBERS = [
    "0", "7", "42", "1234567890", "3.14159", "1,000,000", "1e-5", "0xFF", "12:30pm", "1st 2nd 3rd 4th", "2nd-floor",
    "24/7", "٠١٢٣٤٥٦٧٨٩", "०१२३", "一二三", "Ⅷ ⅷ", "①②③", "a1b2c3", "007", "½cup", "1/2", "+44 20 7946 0958", "2024-02-29",
    "𝟘𝟙𝟚",
]
ENTITIES = [
    "salt &amp; pepper", "salt &amp;amp; pepper", "salt &amp;amp;amp; pepper", "&amp;amp;amp;amp;amp;amp; deep", "AT&T",
    "AT&ampT", "&lt;b&gt;bold&lt;/b&gt;", "<b>salt &amp; pepper</b>", "<b>&amp;amp;amp;amp;lt;</b>", "5 &lt 6",
    "a &lta b", "&notit;", "&notin;", "&NotEqualTilde;", "&nbsp;", "a&nbsp;b", "&quot;quoted&quot;", "&apos;s",
    "it&#39;s", "it&#x27;s", "it&#X27;S", "it&#39s", "&#x27", "it&rsquo;s", "<it&rsquo;s>", "&ldquo;curly&rdquo;",
    "<&ldquo;curly&rdquo;>", "caf&eacute;", "caf&eacute", "CAF&EACUTE;", "<CAF&EACUTE;>", "STRA&SZLIG;E",
    "&nTILDE; &NTILDE;", "&;", "&", "&&", "&#;", "&#x;", "&#xZZ;", "&# 39;", "& amp;", "&unknown;",
    "&unknownunknownunknownunknownunknown;", "&#0;", "&#1;", "<&#1;>", "&#13;", "&#11;", "&#128;", "&#129;", "<&#129;",
    "&#x92;", "&#159;", "&#xD800;", "&#xFFFE;", "<&#xFDD0;x", "&#x10FFFF;", "&#x110000;", "&#99999999999999999999;",
    "&#x1F600;", "&#128512", "&#59;", "&#12a;", "&#00065;", "&lt;|endoftext|&gt;", "&CounterClockwiseContourIntegral;",
    "&amp;CounterClockwiseContourIntegral;", "&fjlig;", "<&fjlig;", "&ohm; &angst;", "<&ohm; &angst;",
    "&rsquo; plain\n<i>&rsquo;</i>\n&rsquo;", "1 &lt; 2 &amp;&amp; 3 &gt; 2", "&am\x01p;", "&ａｍｐ;",
    "&amp\uff1blt;",
    "&lt&#59;b", "it&#0000000000000000000000008217;s", "<a&#11;b", "<a&#127;b",
    *("<a&#%d;" % number for number in range(128, 160)),
]
EMOJI = [
    "😀", "😀😀😀", "a 😀 b", "❤️", "❤", "👩‍👩‍👧‍👦", "👨🏿‍🚀", "👍🏻👍🏼👍🏽👍🏾👍🏿", "🇫🇷", "🇬🇧🇺🇸", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🏳️‍🌈", "1️⃣2️⃣",
    "☕️time", "dog🐶cat🐱", "#️⃣", "🤷‍♂️", "🧑‍🤝‍🧑", "✨new✨", "💯%", "🎄🎅🏽🦌", "©️ ®️ ™️", "⛄", "🫠🫡", "(╯°□°)╯︵ ┻━┻",
    "¯\\_(ツ)_/¯", "\ufe0f", "\u200d",
]
SCRIPTS = [
    "一只棕色的狗在草地上奔跑", "這是一張照片", "これは犬の写真です", "カタカナとひらがな", "東京タワー2024", "개가 공을 물고 있다", "한국어 문장", "الكلب يركض في الحديقة",
    "صورة لقطة", "שָׁלוֹם עולם", "कुत्ता पार्क में दौड़ रहा है", "हिन्दी", "বাংলা ভাষা", "தமிழ் மொழி", "తెలుగు",
    "ಕನ್ನಡ", "ไทยภาษาไทย", "ສະບາຍດີ", "မြန်မာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "ᏣᎳᎩ", "Ꭰꭰ", "ΟΔΥΣΣΕΥΣ",
    "ΣΊΣΥΦΟΣ Σ", "ΑΣ ΑΣ. Α.Σ", "ΑΣ'Σ", "Σ", "ΣΑΣ-ΣΑΣ", "ΑΣ\u0301", "ᾳ ᾼ ᾷ", "α\u0345", "\u0345", "!\u0345!",
    "Собака бежит по траве", "ЁЛКА ёлка", "Українська її", "İstanbul", "IŞIK ışık", "İ", "I\u0307", "Straße STRASSE",
    "ẞ ß", "Ǆ ǅ ǆ", "ﬁn ﬂuﬃeﬆ ﬅ", "ŉ", "Ĳssel ĳs", "naïve façade", "Zoë Ærøskøbing", "Łódź", "Ḍḍ̇", "e\u0301",
    "a\u0308\u0323", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "ｶﾞｷﾞ ﾊﾟ", "ＬＯＵＤ　ＮＯＩＳＥＳ", "￥１００", "ﾡￂ", "Å Ω K",
    "𝒜𝓁𝓅𝒽𝒶 𝔉𝔯𝔞𝔨", "Ⓐⓑ", "ǅungla", "Việt Nam đẹp", "Tiếng Vie\u0302\u0323t", "Ⱥ ⱥ", "ꙮ", "𐐀𐐨", "𞤀𞤢", "ℹ️ №5 ™", "µm μm",
    "ªº", "ʼn ʼ", "Hawaiʻi", "ˈfəʊtəʊ", "e̶x̶", "\u0300start", "ﷺ", "ﻼ",
]
QUOTES = [
    "“curly”", "it’s", "‘single’", "‚low‛", "„low‟", "don’t", "the dog’s “ball”", "5′ 10″", "`tick`", "«a» ‹b›",
    "rock ’n’ roll", "«“nested”»", "we’ll", "WE’VE", "\x91a\x92 \x93b\x94",
]
CONTROLS = [
    "", " ", "   ", "\t", "\n", "\r\n", "\n\n\n", "\xa0", "\u3000", "\u2003\u2009", "\u200b", "\ufeff", "\0",
    "\x00a\x00", "a\x01b", "a\x0bb", "a\x0cb", "a\x1cb\x1db\x1eb\x1fb", "a\x7fb", "a\x85b", "a\u2028b\u2029c",
    "a\r\nb\rc\nd", "  lead and trail  ", "many    spaces\t\ttabs", "a\x1b[31mred\x1b[0m b", "\x1b[", "\x1b［1m",
    "\x1b[1;２m", "a\x1b[1;٢mb", "a\x1b[mb\x1b[2Jc", "a\u200cb\u200db\u200eb\u200f", "\u202eabc\u202c",
    "\ufff9x\ufffay\ufffbz\ufffc", "\ufffd", "\u206ax\u206f", "soft\xadhyphen", "\ue000", "\ufdd0", "\U0010ffff",
    "\U000e0041", "a\u034fb", "\u180e", "\u2060x",
]
SPECIAL = [
    START, END, "a <|endoftext|> b", "<|startoftext|>a<|endoftext|>", "<|EndOfText|>", "<|STARTOFTEXT|>",
    "<|endoftext|", "<|endoftext|>>", "<<|endoftext|>", "!<|endoftext|>", "x<|endoftext|>", "<|ſtartoftext|>",
    "<|endo\uff46text|>", "<start_of_text>", "<end_of_text>", "<|endoftext|><|endoftext|>", "&lt;|endoftext|>",
]
MOJIBAKE = [
    "schÃ¶n", "l’Ã©tÃ©", "âœ” No problems", "itâ€™s", "â€œquotedâ€\x9d", "voilÃ  le travail", "FranÃ§ois", "ä¸\xadæ–‡",
    "Ð¡Ð¾Ð±Ð°ÐºÐ°", "ã\x83\x84", "Â£5", "cafÃ© crÃ¨me", "ðŸ˜€", "naÃ¯ve",
]


def long_texts():
    yield "photo " * 74
    yield "photo " * 75
    yield "photo " * 76
    yield "photo " * 77
    yield "a very long caption about nothing in particular, " * 40
    yield "x" * 1000
    yield "!" * 999
    yield "1" * 200
    yield "ab" * 300
    yield "supercalifragilisticexpialidocious" * 20
    yield "汉" * 100
    yield "😀" * 90
    yield "haha" * 80 + " end"
    yield "a " * 74 + "<|endoftext|> b c"
    yield "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"


def mixtures():
    atoms = [*"abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 .,;:!?'\"-_/\\()[]{}<>&#|@\n\t\r", " the ", " photo of ",
             "'s", "'LL", END]
    atoms += ["&amp;", "&lt;", "&AMP", "&#39;", "&rsquo;", "&EACUTE;", "é", "e\u0301", "ſ", "İ", "Σ", "ΑΣ", "ß", "ﬁ",
              "ŉ", "Ｆ", "ｶﾞ"]
    atoms += ["“", "’", "\x1b[31m", "［", "\x01", "\x92", "\xa0", "\u2028", "👩\u200d👧", "🇫🇷", "汉字", "ไทย", "हिन्दी",
              "½", "\u0345", "&#", "amp;"]
    draw = random.Random(0)
    for _ in range(150):
        yield "".join(atoms[int(draw.random() * len(atoms))] for _ in range(1 + int(draw.random() * 24)))


def texts():
    names = sorted(html.entities.html5)
    yield from captions()
    for fixed in (PUNCTUATION, CONTRACTIONS, NUMBERS, ENTITIES, EMOJI, SCRIPTS, QUOTES, CONTROLS, SPECIAL, MOJIBAKE):
        yield from fixed
    yield from long_texts()
    yield from mixtures()
    # Every reference by html.unescape, then by ftfy, then upper-cased by ftfy.
    yield from ("<" + group for group in groups(["&" + name for name in names], 12))
    yield from groups(["&" + name for name in names], 12)
    yield from groups(sorted({"&" + name.upper() for name in names if name == name.lower()}), 14)
    yield from map(chr, range(0x01, 0x250))


def rows():
    """Kind by what ftfy does: nothing, repairs other than mojibake, repairs of mojibake."""
    kinds = {"untouched": [], "fixed": [], "mojibake": []}
    for text in dict.fromkeys(texts()):
        fixed = ftfy.fix_text(text)
        with mock.patch.object(ftfy, "fix_text", without_mojibake):
            unrepaired = ids(text)
        if unrepaired != ids(text):
            kinds["mojibake"].append([text, unrepaired, ids(text)])
        else:
            kinds["untouched" if fixed == text else "fixed"].append([text, unrepaired])
    return kinds


if __name__ == "__main__":
    lines = [f'"{kind}": [\n' + ",\n".join(map(json.dumps, of_kind)) + "\n]" for kind, of_kind in rows().items()]
    (GOLDEN / "tokenizer.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
