//! Which tokens end a generation.

use crate::units::TokenId;

use super::spec::{TokenType, TokenizerSpec};

/// Texts that end a turn or a document in the families we know. Files often name only one of several.
const EOG_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Texts that end a generation only where the file says that they are control tokens: in other vocabularies they are
/// HTML (`</s>` is strike-through in Gemma's) or plain text.
const EOG_IF_CONTROL: &[&str] = &["</s>", "<eos>"];

/// Ids that end a generation, ascending: those the file names and those known by their text.
pub(super) fn find(spec: &TokenizerSpec) -> Vec<TokenId> {
    let mut ids: Vec<TokenId> = [spec.eos_id, spec.eot_id, spec.eom_id].into_iter().flatten().map(TokenId).collect();
    let known = |id: usize, text: &str| {
        EOG_TEXTS.contains(&text) || (EOG_IF_CONTROL.contains(&text) && spec.token_type(id) == TokenType::Control)
    };
    for (id, text) in spec.tokens.iter().enumerate() {
        if known(id, text) {
            ids.push(TokenId(id as u32));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    // The harmony format ends a message with <|end|> and goes on with the next channel; <|return|> ends the turn.
    let has = |text: &str| spec.tokens.iter().any(|token| token == text);
    if has("<|return|>") && has("<|call|>") {
        ids.retain(|id| spec.tokens.get(id.index()).is_none_or(|text| text != "<|end|>"));
    }
    ids
}
