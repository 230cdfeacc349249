//! Text to tokens and back: vocabularies from GGUF metadata, chat templates, and the helpers that turn a stream of
//! generated tokens into text a person reads.
//!
//! Knows nothing of models, devices or sampling. The promises of this room:
//!
//! - `decode(encode(text)) == text` (for families that normalise to NFC: the NFC form of `text`);
//! - special tokens come out of the *template's own* text only. What a user typed is always ordinary text, whatever it
//!   looks like ([`template`] says how);
//! - a hostile file or template ends in a typed error, never in a panic or an endless loop.

mod bpe;
pub mod content;
mod eog;
mod pretokenizer;
mod spec;
mod special;
mod spm;
mod stream;
pub mod template;
mod thinking;
mod vocab;

use std::borrow::Cow;

use thiserror::Error;

use crate::gguf::{Metadata, MetadataError};
use crate::units::TokenId;

pub use pretokenizer::known_pre_tokenizers;
pub use spec::{TokenType, TokenizerSpec};
pub use stream::{ShowSpecial, StreamStart, TokenStream, Utf8Assembler};
pub use template::{ChatRequest, ChatTemplate, RenderedChat, Segment, TemplateError, TemplateSource};
pub use thinking::{Part, ThinkSplitter, partial_suffix};

use bpe::ByteLevelBpe;
use special::{SpecialMatcher, is_structural};
use spm::SpmModel;
use vocab::Vocab;

/// What can be wrong with a vocabulary, or with a text for a given vocabulary.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("tokenizer model '{model}' is not supported (supported: gpt2 = byte-level BPE, llama and gemma = SentencePiece BPE)")]
    UnknownModel { model: String },
    #[error("pre-tokenizer '{pre}' is not known; known are: {known}")]
    UnknownPreTokenizer { pre: String, known: String },
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    #[error("the vocabulary has {count} tokens, more than the {limit} this program accepts")]
    TooManyTokens { count: usize, limit: usize },
    #[error("'{what}' has {found} entries for {tokens} tokens")]
    LengthMismatch { what: &'static str, found: usize, tokens: usize },
    #[error("{what} token id {id} is outside the vocabulary of {tokens} tokens")]
    IdOutOfRange { what: &'static str, id: u32, tokens: usize },
    #[error("merge {rank} '{merge}' is not two tokens of the vocabulary that join to a third")]
    BadMerge { rank: usize, merge: String },
    #[error("score of token {id} is not a number")]
    BadScore { id: usize },
    #[error("the vocabulary has no token for byte 0x{byte:02X} and no unknown token, so this text cannot be encoded")]
    NoTokenForByte { byte: u8 },
    #[error("token id {id} is outside the vocabulary of {tokens} tokens")]
    UnknownToken { id: u32, tokens: usize },
    #[error("{context}: {detail}")]
    Library { context: &'static str, detail: String },
}

/// Whether text that looks like a special token becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// The text is a prompt written by whoever runs the model: special tokens are recognised.
    Parse,
    /// The text is data: everything is encoded as ordinary text.
    AsText,
}

enum Model {
    Bpe(Box<ByteLevelBpe>),
    Spm(Box<SpmModel>),
}

/// A vocabulary with its encoder and decoder. Cheap to share behind an `Arc`; all methods take `&self`.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    /// Special tokens: control tokens and markup such as `<think>`.
    structural: SpecialMatcher,
    /// Pieces the file asks to keep whole wherever they stand, such as runs of blanks. They carry no authority.
    always: SpecialMatcher,
    /// Both of the above, for parsing.
    all: SpecialMatcher,
    eog: Vec<TokenId>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    pad: Option<TokenId>,
    unk: Option<TokenId>,
    add_bos: bool,
    add_eos: bool,
    template: Option<String>,
    named_templates: Vec<(String, String)>,
}

/// The picture token, as vocabularies of Qwen's models write it, and the place of a picture in a text.
const PICTURE_TOKEN: &str = "<|image_pad|>";
const PICTURE_PLACE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

/// No published vocabulary is near this; it keeps ids and offsets in 32 bits.
const MAX_TOKENS: usize = 1 << 24;

impl Tokenizer {
    /// The tokenizer of a model file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSpec::from_metadata(metadata)?)
    }

    /// Checks the vocabulary and builds the encoder.
    pub fn new(spec: TokenizerSpec) -> Result<Self, TokenizerError> {
        spec.validate(MAX_TOKENS)?;
        let kind = spec.kind()?;
        let eog = eog::find(&spec);
        let structural_ids: Vec<bool> = (0..spec.tokens.len()).map(|id| is_structural(&spec, &kind, id, &eog)).collect();
        let vocab = Vocab::new(&spec, &kind, &structural_ids)?;
        let matched = |want_structural: bool| {
            let ids = (0..spec.tokens.len() as u32).filter(|id| {
                let structural = structural_ids[*id as usize];
                structural == want_structural && (structural || spec.token_type(*id as usize) == TokenType::UserDefined)
            });
            ids.map(|id| (vocab.bytes_of(id).to_vec(), TokenId(id))).collect::<Vec<_>>()
        };
        let (structural, always) = (matched(true), matched(false));
        let all = structural.iter().chain(&always).cloned().collect();

        let (model, default_add_bos) = match kind {
            spec::Kind::Bpe => {
                let pre = pretokenizer::find(spec.pre.as_deref())?;
                let model = ByteLevelBpe::new(&spec, pre, &structural_ids)?;
                (Model::Bpe(Box::new(model)), pre.add_bos)
            }
            spec::Kind::Spm { space_prefix } => (Model::Spm(Box::new(SpmModel::new(&spec, space_prefix)?)), true),
        };
        Ok(Self {
            vocab,
            model,
            structural: SpecialMatcher::new(structural),
            always: SpecialMatcher::new(always),
            all: SpecialMatcher::new(all),
            eog,
            bos: spec.bos_id.map(TokenId),
            eos: spec.eos_id.map(TokenId),
            pad: spec.pad_id.map(TokenId),
            unk: spec.unk_id.map(TokenId),
            add_bos: spec.add_bos.unwrap_or(default_add_bos),
            add_eos: spec.add_eos.unwrap_or(false),
            template: spec.chat_template,
            named_templates: spec.named_templates,
        })
    }

    /// Encodes `text`; no begin- or end-of-text token is added (see [`Self::add_bos_eos`]).
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<TokenId>, TokenizerError> {
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        self.encode_into(text, special, &mut true, &mut out)?;
        Ok(out)
    }

    /// Encodes a rendered chat: its special tokens as such, everything else as ordinary text.
    /// A begin-of-text token is put in front if the file asks for one and the template wrote none.
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<TokenId>, TokenizerError> {
        let mut out = Vec::new();
        // Where SentencePiece puts a space in front of a text depends on what stands before it.
        let mut after_special = true;
        for segment in chat.segments() {
            match segment {
                Segment::Token(id) => {
                    out.push(*id);
                    after_special = true;
                }
                Segment::Text(text) => self.encode_into(text, Special::AsText, &mut after_special, &mut out)?,
            }
        }
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && out.first() != Some(bos)) {
            out.insert(0, bos);
        }
        Ok(out)
    }

    /// Adds the begin- and end-of-text tokens the file asks for, unless they are there already.
    pub fn add_bos_eos(&self, ids: &mut Vec<TokenId>) {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        if let Some(eos) = self.eos.filter(|eos| self.add_eos && ids.last() != Some(eos)) {
            ids.push(eos);
        }
    }

    fn encode_into(
        &self,
        text: &str,
        special: Special,
        after_special: &mut bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        let matcher = match special {
            Special::Parse => &self.all,
            Special::AsText => &self.always,
        };
        let mut rest = 0;
        for found in matcher.find_iter(text) {
            self.encode_plain(&text[rest..found.start], *after_special, out)?;
            out.push(found.id);
            *after_special = true;
            rest = found.end;
        }
        if rest < text.len() {
            self.encode_plain(&text[rest..], *after_special, out)?;
            *after_special = false;
        }
        Ok(())
    }

    fn encode_plain(&self, text: &str, after_special: bool, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        match (&self.model, text.is_empty()) {
            (_, true) => Ok(()),
            (Model::Bpe(model), _) => model.encode(text, self.unk, out),
            (Model::Spm(model), _) => model.encode(text, after_special, self.unk, out),
        }
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[TokenId], show: ShowSpecial) -> Result<String, TokenizerError> {
        let mut stream = TokenStream::new(self, StreamStart::Text, show);
        let mut out = String::new();
        for id in ids {
            stream.push_into(*id, &mut out)?;
        }
        stream.finish_into(&mut out);
        Ok(out)
    }

    /// The bytes one token stands for; for a special token the text it is written with.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        (id.index() < self.vocab.len()).then(|| self.vocab.bytes_of(id.0))
    }

    /// A token as text for listings; bytes that are not UTF-8 are shown as U+FFFD.
    pub fn token_text(&self, id: TokenId) -> Option<Cow<'_, str>> {
        self.token_bytes(id).map(String::from_utf8_lossy)
    }

    /// The special token written as exactly `text`, if there is one.
    pub fn special_id(&self, text: &str) -> Option<TokenId> {
        self.structural.exact(text)
    }

    /// The token that stands for a picture, if the vocabulary has one.
    pub fn picture_token(&self) -> Option<TokenId> {
        self.special_id(PICTURE_TOKEN)
    }

    /// True for control tokens and markup, which a user's text never produces.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.vocab.is_structural(id)
    }

    /// True if generation ends with this token.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end a generation, in ascending order.
    pub fn eog_tokens(&self) -> &[TokenId] {
        &self.eog
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    pub fn pad(&self) -> Option<TokenId> {
        self.pad
    }

    pub fn unk(&self) -> Option<TokenId> {
        self.unk
    }

    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// The chat template of the file, if it has one.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Further chat templates of the file by name, such as `tool_use`.
    pub fn named_template_sources(&self) -> &[(String, String)] {
        &self.named_templates
    }

    pub(crate) fn structural(&self) -> &SpecialMatcher {
        &self.structural
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// SentencePiece models of the `llama` kind put a space in front of a text, which decoding takes away again.
    pub(crate) fn space_prefix(&self) -> bool {
        matches!(&self.model, Model::Spm(model) if model.space_prefix())
    }
}
