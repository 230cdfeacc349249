//! A vocabulary as plain data, before anything is built from it.

use serde::{Deserialize, Serialize};

use crate::gguf::{Metadata, MetadataError};

use super::TokenizerError;

/// The type GGUF stores with every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    /// From the number in the file. Undefined and future numbers are ordinary tokens.
    pub fn from_gguf(value: i32) -> Self {
        match value {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Everything a tokenizer is built from. Field names follow the GGUF keys `tokenizer.ggml.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenizerSpec {
    /// `gpt2` (byte-level BPE), `llama` or `gemma` (SentencePiece).
    pub model: String,
    /// The pre-tokenizer, for `gpt2` only.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// Empty, or one a token.
    pub token_types: Vec<TokenType>,
    /// One a token; SentencePiece only.
    pub scores: Option<Vec<f32>>,
    /// `left right`, best first; byte-level BPE only.
    pub merges: Vec<String>,
    pub bos_id: Option<u32>,
    pub eos_id: Option<u32>,
    pub eot_id: Option<u32>,
    pub eom_id: Option<u32>,
    pub unk_id: Option<u32>,
    pub pad_id: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
    /// `(name, source)` of `tokenizer.chat_template.NAME`.
    pub named_templates: Vec<(String, String)>,
}

/// The two algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bpe,
    Spm { space_prefix: bool },
}

/// Prefix of the keys of further chat templates.
const NAMED_TEMPLATE: &str = "tokenizer.chat_template.";

impl TokenizerSpec {
    /// Reads the keys `tokenizer.*` of a model file.
    ///
    /// # Errors
    /// The tokens are missing, or a key holds a value of another type than the format says.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, MetadataError> {
        let text = |key: &str| Ok(metadata.opt_str(key)?.map(str::to_owned));
        let texts = |strings: &crate::gguf::Strings| strings.iter().map(str::to_owned).collect();
        let types = metadata.opt_i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        let named = |(key, _): (&str, _)| key.strip_prefix(NAMED_TEMPLATE).map(str::to_owned);
        let names: Vec<String> = metadata.iter().filter_map(named).collect();
        let mut named_templates = Vec::with_capacity(names.len());
        for name in names {
            let source = metadata.str(&format!("{NAMED_TEMPLATE}{name}"))?.to_owned();
            named_templates.push((name, source));
        }
        Ok(Self {
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?,
            tokens: texts(metadata.strings("tokenizer.ggml.tokens")?),
            token_types: types.into_iter().map(TokenType::from_gguf).collect(),
            scores: metadata.opt_f32s("tokenizer.ggml.scores")?,
            merges: metadata.opt_strings("tokenizer.ggml.merges")?.map(texts).unwrap_or_default(),
            bos_id: metadata.opt_u32("tokenizer.ggml.bos_token_id")?,
            eos_id: metadata.opt_u32("tokenizer.ggml.eos_token_id")?,
            eot_id: metadata.opt_u32("tokenizer.ggml.eot_token_id")?,
            eom_id: metadata.opt_u32("tokenizer.ggml.eom_token_id")?,
            unk_id: metadata.opt_u32("tokenizer.ggml.unknown_token_id")?,
            pad_id: metadata.opt_u32("tokenizer.ggml.padding_token_id")?,
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.opt_bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.opt_bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
            named_templates,
        })
    }

    pub(super) fn kind(&self) -> Result<Kind, TokenizerError> {
        match self.model.as_str() {
            "gpt2" => Ok(Kind::Bpe),
            // Gemma files say `llama` and switch the prefix off by its own key; some early ones say `gemma`.
            "llama" => Ok(Kind::Spm { space_prefix: self.add_space_prefix.unwrap_or(true) }),
            "gemma" => Ok(Kind::Spm { space_prefix: self.add_space_prefix.unwrap_or(false) }),
            _ => Err(TokenizerError::UnknownModel { model: self.model.clone() }),
        }
    }

    pub(super) fn token_type(&self, id: usize) -> TokenType {
        self.token_types.get(id).copied().unwrap_or(TokenType::Normal)
    }

    pub(super) fn validate(&self, max_tokens: usize) -> Result<(), TokenizerError> {
        let tokens = self.tokens.len();
        if tokens == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        if tokens > max_tokens {
            return Err(TokenizerError::TooManyTokens { count: tokens, limit: max_tokens });
        }
        if !self.token_types.is_empty() && self.token_types.len() != tokens {
            return Err(TokenizerError::LengthMismatch { what: "token_type", found: self.token_types.len(), tokens });
        }
        if let Some(scores) = self.scores.as_ref().filter(|scores| scores.len() != tokens) {
            return Err(TokenizerError::LengthMismatch { what: "scores", found: scores.len(), tokens });
        }
        let ids = [
            ("begin-of-text", self.bos_id),
            ("end-of-text", self.eos_id),
            ("end-of-turn", self.eot_id),
            ("end-of-message", self.eom_id),
            ("unknown", self.unk_id),
            ("padding", self.pad_id),
        ];
        for (what, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= tokens) {
                return Err(TokenizerError::IdOutOfRange { what, id, tokens });
            }
        }
        Ok(())
    }
}
