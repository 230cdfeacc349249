//! Penalties for tokens that were already generated, counted as they come.

use std::collections::VecDeque;

use crate::units::TokenId;

use super::SamplingParams;

pub(super) struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// 0: everything counts.
    window: usize,
    counts: Vec<u32>,
    /// Tokens with a count above zero, in the order they were first met.
    seen: Vec<TokenId>,
    recent: VecDeque<TokenId>,
}

impl Penalties {
    /// `None` if the parameters ask for none.
    pub(super) fn new(params: &SamplingParams, vocab: usize) -> Option<Self> {
        if !params.has_penalties() {
            return None;
        }
        let window = usize::try_from(params.repeat_last_n).unwrap_or(0);
        Some(Self {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            window,
            counts: vec![0; vocab],
            seen: Vec::with_capacity(vocab),
            recent: VecDeque::with_capacity(window.min(vocab) + 1),
        })
    }

    pub(super) fn accept(&mut self, token: TokenId) {
        let Some(count) = self.counts.get_mut(token.index()) else {
            return;
        };
        *count += 1;
        if *count == 1 {
            self.seen.push(token);
        }
        if self.window == 0 {
            return;
        }
        self.recent.push_back(token);
        if self.recent.len() > self.window
            && let Some(old) = self.recent.pop_front()
        {
            self.counts[old.index()] -= 1;
            if self.counts[old.index()] == 0 {
                self.seen.retain(|seen| *seen != old);
            }
        }
    }

    pub(super) fn reset(&mut self) {
        for token in self.seen.drain(..) {
            self.counts[token.index()] = 0;
        }
        self.recent.clear();
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for token in &self.seen {
            let count = self.counts[token.index()] as f32;
            let Some(logit) = logits.get_mut(token.index()) else {
                continue;
            };
            // Dividing a negative logit would reward the token.
            if *logit <= 0.0 {
                *logit *= self.repeat;
            } else {
                *logit /= self.repeat;
            }
            *logit -= count * self.frequency + self.presence;
        }
    }
}
