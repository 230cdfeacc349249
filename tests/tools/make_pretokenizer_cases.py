"""Makes tests/data/pretokenizer-cases.json and tests/data/sentencepiece-cases.json with the package `tokenizers`.

Every cut gets a small vocabulary trained on strings it treats in its own way, so that a wrong cut shows in the ids.
The patterns are those of the published tokenizer.json files of the families, in that package's own syntax.

usage: make_pretokenizer_cases.py OUTPUT_FOLDER   (needs: pip install tokenizers)
"""
import json, random, sys
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
FAMILIES = [  # names, pre-tokenizer, normal form C, ignore merges
    (["qwen35"], split(QWEN35), True, False),
    (["qwen2", "deepseek-r1-qwen"], split(QWEN2), True, False),
    (["llama-bpe", "llama3"], split(LLAMA3), False, True),
    (["smollm"], pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False, False),
    (["gpt-2"], GPT2, False, False),
]
NASTY = [
    "", " ", "  ", "   x", "x   ", "\n", "\n\n", "\r\n", "\r\n\r\n x", " \n \n", "\t", "\t\tx", "a\tb", "x \t y", "\u000b\u000c\u0085\u2028\u2029x",
    "I'm you're he'll we'd they've it's don't", "I'M YOU'RE HE'LL WE'D THEY'VE IT'S DON'T", "I’m ’s 's's ''s '", "'s", "x'S'", "'ſ 'ſx",
    "1", "12", "123", "1234", "12345678", "3.14159", "1,234,567", "a1b22c333", "²³½ ⅷ ①", "٣٤٥٦", "१२३४", "x²y", "𝟘𝟙𝟚",
    "Hello, world!", "foo_bar-baz", "a.b,c;d:e!f?g", "...!!!???\n\nx", "(((x)))", "!\n", "!!\r\n\r\nx", " !x", " \"q\" 'q'", "/* c */\n// d", "<|im_end|>", "<a href='x'>",
    "naïve café ünïcödé", "nai\u0308ve cafe\u0301", "e\u0301", "\u0301", "\u0301x", "x\u0301\u0301\u0302y", "a\u0300\u0315b", "क्षि हिन्दी", "สวัสดีครับ", "தமிழ்", "مَرْحَبًا", "שָׁלוֹם", "Việt Nam Vie\u0302\u0323t",
    "你好,世界。", "こんにちは世界", "カ\u3099", "안녕하세요", "\u1112\u1161\u11ab", "汉字123汉字", "ﬁ ﬂ", "Å \u212b", "ǆ ǅ", "ß ẞ", "İı",
    "🦊", "🦊🦊 x", "👩‍👩‍👧", "👍🏽", "🇩🇪🇫🇷", "x\u200by", "x\u200dy", "\ufeffx", "\u00a0x\u00a0", "\u2003x", "\u3000x", "\u00ad", "\ufffd", "\ue000", "\U000f0000", "\U0010fffd",
    "\x00\x01\x7f", "x\x00y", "\x1b[0m", "camelCase snake_case", "    four\n        eight\n", "if x:\n\treturn  y  # z\n\n\n", "a  b   c    d", "end \n\n  start", "\n  \n x", "x" * 70, " " * 33, "\n" * 17, "ab" * 50,
]

def random_strings(count, seed):
    rng = random.Random(seed)
    pool = list(" \n\r\t'sSabcXYZ019.,!?-_<|>é字い한ก\u0301\u0308\u093f²٣🦊\u200d\u00a0\u3000ſ") + ["'re", "'LL", "  ", "\r\n", "the", " a"]
    return ["".join(rng.choice(pool) for _ in range(rng.randint(1, 24))) for _ in range(count)]

def merges_of(tok):
    return [m if isinstance(m, str) else " ".join(m) for m in json.loads(tok.to_str())["model"]["merges"]]

def byte_level(pre, nfc, ignore_merges, texts):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    # Every string several times, so that whole pieces become tokens and a cut in another place gives other ids.
    tok.train_from_iterator(texts * 3, trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=3, show_progress=False))
    vocab = tok.get_vocab()
    return tok, dict(model="gpt2", tokens=sorted(vocab, key=vocab.get), merges=merges_of(tok))

def sentencepiece(space_prefix, texts):
    """The conversion of the published tokenizers: merges in the order of the scores, bytes where no piece fits."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "\u2581")
    norm = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if space_prefix else replace
    tok.normalizer = norm
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = norm
    trained.train_from_iterator(texts * 3, trainers.BpeTrainer(vocab_size=400, min_frequency=3, show_progress=False, max_token_length=12, limit_alphabet=60))
    vocab = trained.get_vocab()
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    # SentencePiece knows one score a piece, so a piece is joined in whichever way comes first.
    joined, order = {}, []
    for left, right in merges:
        if left + right not in joined:
            joined[left + right] = True
            order.append(left + right)
    letters = [t for t in vocab if t not in joined]
    tokens = specials + order + sorted(letters)
    ids = {t: i for i, t in enumerate(tokens)}
    score = {t: -float(i) for i, t in enumerate(order)}
    pairs = [(t[:i], t[i:]) for t in order for i in range(1, len(t)) if t[:i] in ids and t[i:] in ids]
    tok.model = models.BPE(ids, sorted(pairs, key=lambda p: -score[p[0] + p[1]]), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    types = ["Unknown", "Control", "Control"] + ["Byte"] * 256 + ["Normal"] * (len(tokens) - len(specials))
    spec = dict(model="llama", add_space_prefix=space_prefix, tokens=tokens, token_types=types, unk_id=0, bos_id=1, eos_id=2,
                scores=[score.get(t, -1e4 if i >= len(specials) else 0.0) for i, t in enumerate(tokens)])
    return tok, spec

def main(out):
    families = []
    for seed, (names, pre, nfc, ignore) in enumerate(FAMILIES):
        texts = NASTY + random_strings(250, seed)
        tok, spec = byte_level(pre, nfc, ignore, texts)
        families.append(dict(pre=names, spec=spec, cases=[[t, tok.encode(t, add_special_tokens=False).ids] for t in texts]))
    json.dump(dict(families=families), open(f"{out}/pretokenizer-cases.json", "w"), ensure_ascii=True, separators=(",", ":"))
    families = []
    for seed, space_prefix in enumerate([True, False]):
        texts = [t for t in NASTY + random_strings(250, 100 + seed) if t and "\u2581" not in t]
        tok, spec = sentencepiece(space_prefix, texts)
        families.append(dict(name=f"space prefix {space_prefix}", spec=spec, cases=[[t, tok.encode(t, add_special_tokens=False).ids] for t in texts]))
    json.dump(dict(families=families), open(f"{out}/sentencepiece-cases.json", "w"), ensure_ascii=True, separators=(",", ":"))

main(sys.argv[1])
