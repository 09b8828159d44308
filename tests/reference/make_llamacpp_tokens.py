"""Make llamacpp_tokens.json: what llama.cpp's tokenizer makes of 200 varied texts with the embedded model.

Run it where llama-cpp-python is installed (it was made with 0.3.36):

    python tests/reference/make_llamacpp_tokens.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf

`litspec download smollm2-135m-instruct` prints the folder that holds that file.
"""

# ruff: noqa: RUF001  (the texts are meant to hold characters that look alike)

from __future__ import annotations

import json
import sys
from pathlib import Path

from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

PLAIN = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Paris is the capital and most populous city of France.",
    "a",
    " a",
    "a ",
    "  leading and trailing  ",
    "UPPERCASE lowercase MixedCase camelCase snake_case kebab-case",
    "One. Two! Three? Four; five: six, seven - eight – nine — ten… eleven",
    "\"Quoted,\" she said; 'really?' (Yes.) [Brackets] {braces} <angles>",
    "e-mail: someone@example.org, web: https://example.org/a/b?c=d&e=f#g",
    "antidisestablishmentarianism floccinaucinihilipilification",
    "supercalifragilisticexpialidocious" * 6,
    "lorem ipsum dolor sit amet " * 20,
    "!!!???...,,,;;;:::",
    "#hashtag @mention $100 50% a&b c*d e^f g~h `code` a|b a\\b",
    "The end.\n",
]
CONTRACTIONS = [
    "I'm you're he's she'll we've they'd can't won't",
    "I'M YOU'RE HE'S SHE'LL WE'VE THEY'D CAN'T",
    "it's John's dog's bone 'twas 'tis rock'n'roll",
    "’s ’t curly: it’s John’s don’t",
    "'s't're've'm'll'd",
    " 's 't 're",
    "y'all'd've",
    "o'clock O'Brien d'être l'homme",
]
DIGITS = [
    "0",
    "1234567890",
    "3.14159265358979",
    "1,000,000.50",
    "2024-11-30T18:07:59Z",
    "call +1 (555) 010-9999 now",
    "v1.2.3-rc4+build5",
    "x1y2z3",
    "1 2  3   4",
    "Room 101, floor 7, 42nd street",
    "٠١٢٣٤٥٦٧٨٩",
    "०१२३ ४५६",
    "½ ¼ ² ³ Ⅷ ①②③ ㊿",
    "１２３ full width",
    "0x1F 0b1010 0o17 1e-10 1_000",
    "99 bottles of beer, 98 bottles of beer",
    "7" * 64,
    " 5 6 7 ",
    "-1 +2 ±3 ×4 ÷5",
    "1st 2nd 3rd 4th",
]
BLANKS = [
    " ",
    "  ",
    "   ",
    " " * 17,
    "\n",
    "\n\n",
    "\n\n\n\n\n",
    "\t",
    "\t\t\tx",
    "\r\n",
    "a\r\nb\r\n\r\nc",
    "a \n b",
    "a  \n\n  b",
    "line one\nline two\n\nline four\n\n\n",
    "    indented\n        more\n    less",
    "tab\tseparated\tvalues\n1\t2\t3",
    "trailing spaces   \nnext",
    "a\u00a0b\u2003c\u3000d\u200be\ufefff",
    "a\x0bb\x0cc",
    " \n \n \n",
    "a   b    c     d      e",
    "word" + " " * 40 + "word",
    "\n  \n\t\n",
    "x\u2028y\u2029z\u0085w",
]
CODE = [
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    'print(f"{name!r:>10} {value:.3f}")',
    "SELECT * FROM t WHERE a = 'b' AND c IS NOT NULL;",
    '{"key": [1, 2, {"nested": null}], "other": true}',
    "<html><body class='x'>&amp; text</body></html>",
    "#include <vector>\n\nint main() {\n\treturn 0;\n}\n",
    "x = lambda a, *b, **c: a if b else c",
    "```python\nimport os\n```",
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }",
    "git commit -m 'msg' && git push --force-with-lease",
    "a->b::c<d>(e)[f]{g}",
    "// comment\n/* block\n * comment */",
    "$HOME/.cache/*.{json,yaml} | grep -v '^#' > /dev/null 2>&1",
    "\\begin{equation} E = mc^2 \\end{equation}",
    "regex: ^\\s*(?:[A-Z]\\w+)\\d{2,4}$",
    "if x == 1:\n\tpass\nelif x != 2:\n\tpass",
    "let s = `template ${value}`;",
    "A = np.zeros((3, 4)); A[:, ::2] = 1",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?",
]
LANGUAGES = [
    "你好,世界!",
    "我能吞下玻璃而不伤身体。",
    "今天天气很好，我们去公园吧。2024年11月30日",
    "日本語のテキストと、カタカナ、ひらがな、漢字。",
    "ｶﾀｶﾅ半角",
    "안녕하세요 세계",
    "바다가 보여요",
    "مرحبا بالعالم",
    "السَّلامُ عَلَيْكُم وَرَحْمَةُ اللهِ",
    "שלום עולם",
    "สวัสดีชาวโลก",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "नमस्ते दुनिया",
    "ওহে বিশ্ব",
    "வணக்கம் உலகம்",
    "Привет, мир! Как дела?",
    "Γειά σου Κόσμε",
    "Բարեւ աշխարհ",
    "გამარჯობა მსოფლიო",
    "ሰላም ልዑል",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia",
    "Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İIıi",
    "Trời ơi, tiếng Việt có nhiều dấu quá",
    "ខ្មែរ ລາວ မြန်မာ",
    "བོད་སྐད་",
    "mixed 中文 and English 与 русский и العربية",
    "řeka",
    "naïve café résumé — e\u0301 vs é",
    "ﬁ ﬂ ligatures, ǅ titlecase, ß ẞ",
]
EMOJI = [
    "🦊",
    "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈",
    "🇫🇷🇩🇪🇯🇵",
    "hello 😀 world 🎉🎉🎉",
    "❤️ ♥ ☺ ☺️ ™ © ®",
    "a🦊b🦊c",
    "∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋ ∑∏∫√∞≈≠≤≥",
    "┌─┬─┐│ │ │└─┴─┘ ░▒▓█",
    "𝕳𝖊𝖑𝖑𝖔 𝒲𝑜𝓇𝓁𝒹",
    "𐍈 𒀀 𓂀 🀄",
    "♔♕♖ ♠♣♥♦ ⚀⚁⚂",
    "→ ← ↑ ↓ ⇒ ⇔",
]
ODD = [
    "\u0301combining first",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "\ufffd real replacement \ufffd\ufffd",
    "\u202eright to left override\u202c",
    "null\u0001\u0002\u0007bell\u001b[31mred\u001b[0m\u007f",
    "soft\u00adhyphen zero\u200dwidth\u200cjoiners",
    "private \ue000 use \uf8ff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "-" * 80,
    "=" * 33 + "\n" + "*" * 21,
    "." * 7 + " " + "." * 100,
    "abcdefghijklmnopqrstuvwxyz" * 12,
    "ĠĊĉ literal byte-level letters Ġthe",
    "▁metaspace▁letters",
    "<0x0A> is not a byte here",
    "no\u2060break \u2009thin \u202fnarrow",
]
SPECIAL = [
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "<|im_start|><|im_end|>",
    "text<|im_end|>text",
    " <|im_end|> ",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<repo_name>org/name<file_sep>a.py\nprint(1)<|endoftext|>",
    "<reponame><filename>b.c<gh_stars>100+",
    "<issue_start>bug<issue_comment>me too<issue_closed>",
    "<jupyter_start><jupyter_text># Title<jupyter_code>1+1<jupyter_output>2<jupyter_script>x<empty_output>",
    "<|im_start|",
    "<|IM_START|>",
    "<| im_start |>",
    "<|im_start|>1<|im_end|>2<|endoftext|>3",
    "a <|im_start|>  b",
    "<|im_end|>\n\n<|im_end|>",
]
MIXTURES = [
    f"{a}{joint}{b}"
    for joint in (" ", "\n", "\n\n", "\t", "", "...", " 12 ", "'s ")
    for a, b in (("end", "Begin"), ("数", "字"), ("x=1", "<|im_end|>"), ("🦊 ", " fox"))
]
TEXTS = [*PLAIN, *CONTRACTIONS, *DIGITS, *BLANKS, *CODE, *LANGUAGES, *EMOJI, *ODD, *SPECIAL, *MIXTURES]


def main() -> None:
    """Write the file beside this script."""
    assert len(TEXTS) == len(set(TEXTS)) == 200, (len(TEXTS), len(set(TEXTS)))
    model = Llama(sys.argv[1], vocab_only=True, verbose=False)
    cases = [{"text": text, "ids": model.tokenize(text.encode(), add_bos=True, special=True)} for text in TEXTS]
    path = Path(__file__).with_name("llamacpp_tokens.json")
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
    path.write_text(f"[\n{lines}\n]\n", encoding="ascii")
    print(f"{len(cases)} texts, {sum(len(case['ids']) for case in cases)} ids -> {path.name}")


if __name__ == "__main__":
    main()
