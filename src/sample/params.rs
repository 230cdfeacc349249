//! Parameters of sampling, with llama.cpp's names and defaults.

use crate::units::TokenId;

use super::SampleError;

/// How the next token is chosen. `Default` gives llama.cpp's defaults but for `repeat_last_n`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the draw; 0 always takes the best token. Default 0.8.
    pub temperature: f32,
    /// Only the best so many tokens; 0 switches it off. Default 40.
    pub top_k: usize,
    /// Only the fewest tokens whose probabilities reach this sum; 1 switches it off. Default 0.95.
    pub top_p: f32,
    /// Only tokens at least this fraction as probable as the best; 0 switches it off. Default 0.05.
    pub min_p: f32,
    /// Locally typical sampling; 1 switches it off. Default 1.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen; 1 switches it off. Default 1.
    pub repeat_penalty: f32,
    /// How many of the last tokens penalties look at; -1 is all generated text (the default; llama.cpp has 64), 0 none.
    pub repeat_last_n: i32,
    /// Subtracted once from the logit of every token seen. Default 0.
    pub presence_penalty: f32,
    /// Subtracted as often as a token was seen. Default 0.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; minus infinity excludes one.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Start of the random numbers; `None` takes one that differs between runs.
    pub seed: Option<u64>,
    /// Report log-probabilities of the token taken and of this many best ones.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: -1,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Always the best token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// True if tokens already generated change the logits.
    pub fn has_penalties(&self) -> bool {
        self.repeat_last_n != 0 && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    /// Refuses values that mean nothing.
    pub fn validate(&self, vocab: usize) -> Result<(), SampleError> {
        let check = |name, value: f32, good: bool, expected| match good && value.is_finite() {
            true => Ok(()),
            false => Err(SampleError::BadParameter { name, value: value.to_string(), expected }),
        };
        check("temperature", self.temperature, self.temperature >= 0.0, "a number from 0 up")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1")?;
        check("typical_p", self.typical_p, self.typical_p > 0.0 && self.typical_p <= 1.0, "above 0 and at most 1")?;
        check("repeat_penalty", self.repeat_penalty, self.repeat_penalty > 0.0, "a number above 0")?;
        check("presence_penalty", self.presence_penalty, true, "a finite number")?;
        check("frequency_penalty", self.frequency_penalty, true, "a finite number")?;
        if self.repeat_last_n < -1 {
            let value = self.repeat_last_n.to_string();
            return Err(SampleError::BadParameter { name: "repeat_last_n", value, expected: "-1 (all) or a count" });
        }
        for (token, bias) in &self.logit_bias {
            if token.index() >= vocab {
                return Err(SampleError::BiasOutOfRange { token: *token, vocab });
            }
            if bias.is_nan() || *bias == f32::INFINITY {
                let value = bias.to_string();
                return Err(SampleError::BadParameter { name: "logit_bias", value, expected: "finite, or -inf to exclude" });
            }
        }
        Ok(())
    }
}
