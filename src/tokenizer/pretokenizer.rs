//! How text is cut before byte-level BPE: one table, keyed by `tokenizer.ggml.pre`.

use super::TokenizerError;

/// One way to cut text: patterns applied one after the other, each to the pieces the one before left.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    pub names: &'static [&'static str],
    pub patterns: &'static [&'static str],
    /// Text is put into Unicode normal form C first, as the published tokenizers of the family do.
    pub nfc: bool,
    /// A piece that is a token as a whole is taken without applying merges.
    pub ignore_merges: bool,
    /// Whether a begin-of-text token is added where the file does not say.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What files without a known cut are read with.
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

const TABLE: &[PreTokenizer] = &[
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN35], nfc: true, ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
        patterns: &[QWEN2],
        nfc: true,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["stablelm2"], patterns: &[QWEN2], nfc: false, ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        nfc: false,
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        patterns: &[LLAMA3],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "command-r", "refact", "starcoder", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["gpt-2", "phi-2", "olmo", "mpt", "jais", "gigachat", "mellum", "modern-bert"],
        patterns: &[GPT2],
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["default"], patterns: DEFAULT, nfc: false, ignore_merges: false, add_bos: false },
];

/// Names a file may give, in the order of the table.
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|row| row.names.iter().copied())
}

/// The row for `pre`; a file that says nothing gets `default`.
pub(super) fn find(pre: Option<&str>) -> Result<&'static PreTokenizer, TokenizerError> {
    let name = pre.filter(|pre| !pre.is_empty()).unwrap_or("default");
    TABLE.iter().find(|row| row.names.contains(&name)).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        pre: name.to_owned(),
        known: known_pre_tokenizers().collect::<Vec<_>>().join(", "),
    })
}
