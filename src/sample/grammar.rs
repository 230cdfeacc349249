//! Grammars and JSON schemas as masks on the logits: the model can only write what they allow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value as Json;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::{LogitMask, SampleError};
use crate::units::TokenId;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON document that a schema describes.
    JsonSchema(Json),
    /// Text in the Lark dialect of llguidance. `<name>` stands for a special token.
    Lark(String),
}

/// A token as grammars see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarToken {
    pub bytes: Vec<u8>,
    /// Special tokens are matched by name only, never by the text they are written with.
    pub special: bool,
}

/// Turns grammars into masks for one vocabulary. Building it takes time in the order of the vocabulary; it is shared.
pub struct GrammarCompiler {
    factory: ParserFactory,
}

struct Environment {
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Greedy pieces are not what the tokenizer would choose, so nothing is forced by them.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

fn bad(detail: impl std::fmt::Display) -> SampleError {
    // The first line says what is wrong; the rest quotes the grammar at length.
    let text = detail.to_string();
    let detail = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given").to_owned();
    SampleError::BadGrammar { detail }
}

impl GrammarCompiler {
    /// `tokens` in the order of their ids; `ends` are the tokens that may follow a complete answer.
    ///
    /// # Errors
    /// A vocabulary without an end token, or one the library cannot index.
    pub fn new(tokens: &[GrammarToken], ends: &[TokenId]) -> Result<GrammarCompiler, SampleError> {
        let Some(first_end) = ends.first() else { return Err(bad("the vocabulary has no token that ends an answer")) };
        let words: Vec<Vec<u8>> = tokens
            .iter()
            .map(|token| match token.special {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.bytes.as_slice()].concat(),
                false => token.bytes.clone(),
            })
            .collect();
        let vocab = u32::try_from(words.len()).map_err(bad)?;
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(vocab, first_end.0), &words);
            let ends: Vec<u32> = ends.iter().map(|id| id.0).collect();
            let env: TokEnv = Arc::new(Environment { trie: trie.with_eos_tokens(&ends) });
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        };
        // The library asserts what a damaged vocabulary may violate.
        let built = catch_unwind(AssertUnwindSafe(build)).map_err(|_| bad("the vocabulary cannot be indexed"))?;
        let mut factory = built.map_err(bad)?;
        factory.quiet();
        Ok(GrammarCompiler { factory })
    }

    /// # Errors
    /// What is wrong with the grammar or schema, in the library's words.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMask, SampleError> {
        let top = match grammar {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let parser = catch_unwind(AssertUnwindSafe(|| self.factory.create_parser(top)));
        let parser = parser.map_err(|_| bad("it makes the grammar library fail"))?.map_err(bad)?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(bad(error)),
            None => Ok(GrammarMask { matcher }),
        }
    }
}

/// A grammar on its way through an answer.
pub struct GrammarMask {
    matcher: Matcher,
}

impl LogitMask for GrammarMask {
    fn apply(&mut self, logits: &mut [f32]) -> Result<(), SampleError> {
        let failed = |e| SampleError::GrammarFailed { detail: format!("{e}") };
        let mask = self.matcher.compute_mask_or_eos().map_err(failed)?;
        for (index, logit) in logits.iter_mut().enumerate() {
            if index >= mask.len() || !mask.get(index) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), SampleError> {
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token.0).map_err(|e| SampleError::GrammarFailed { detail: e.to_string() })
    }
}
