//! Conversations that lie in RAM because others needed their slots. The oldest give way to newer ones.

use std::collections::VecDeque;

use crate::engine::Parked;
use crate::state::{Text, common_prefix};

pub(super) struct ParkingLot {
    budget_bytes: usize,
    /// The one that has waited longest first.
    conversations: VecDeque<Parked>,
}

/// A conversation that a prompt could go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub index: usize,
    /// Tokens that it shares with the prompt.
    pub common: usize,
    /// Tokens of the prompt that need no computing.
    pub reuse: usize,
    /// Tokens that it holds.
    pub held: usize,
}

impl Candidate {
    /// Whether the prompt goes on with this conversation, or takes more from it than it takes away. What shares little more
    /// than a greeting is worth keeping for its own next turn.
    pub fn suits(&self, prompt_tokens: usize) -> bool {
        self.reuse > 0 && (self.common * 10 >= prompt_tokens * 9 || self.reuse * 2 >= self.held)
    }
}

impl ParkingLot {
    pub fn new(budget_bytes: usize) -> ParkingLot {
        ParkingLot { budget_bytes, conversations: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.conversations.len()
    }

    pub fn bytes(&self) -> usize {
        self.conversations.iter().map(Parked::bytes).sum()
    }

    /// The conversation that spares `prompt` the most computing.
    pub fn best(&self, prompt: Text<'_>, recurrent: bool) -> Option<Candidate> {
        let candidate = |(index, parked): (usize, &Parked)| {
            let common = common_prefix(parked.text(), prompt);
            let reuse = parked.restorable(common.min(prompt.tokens.len().saturating_sub(1)), recurrent);
            Candidate { index, common, reuse, held: parked.len() }
        };
        let suited =
            self.conversations.iter().enumerate().map(candidate).filter(|candidate| candidate.suits(prompt.tokens.len()));
        suited.max_by_key(|candidate| candidate.reuse)
    }

    pub fn take(&mut self, index: usize) -> Option<Parked> {
        self.conversations.remove(index)
    }

    /// Lets the oldest go until `bytes` more fit; false if they never will.
    pub fn make_room(&mut self, bytes: usize) -> bool {
        if bytes > self.budget_bytes {
            return false;
        }
        while self.bytes() + bytes > self.budget_bytes {
            self.conversations.pop_front();
        }
        true
    }

    pub fn put(&mut self, parked: Parked) {
        self.conversations.push_back(parked);
    }
}
