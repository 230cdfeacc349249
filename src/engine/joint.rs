//! One token for each of several sequences in one window: weights that all of them need are read once.

use super::{Engine, EngineError, NgramConfig, RowTable};
use crate::schedule::{ScheduleError, Window, WindowInputs};
use crate::state::Sequence;
use crate::units::TokenId;

/// A sequence and the token that it goes on with.
pub type Fed<'a> = (&'a mut Sequence, TokenId);

/// Gathers the newest token of each sequence.
struct JointInputs<'a, 'b> {
    embedding: &'a mut RowTable,
    ngram: &'a mut Option<(NgramConfig, RowTable)>,
    scale: f32,
    feeds: &'a [Fed<'b>],
    window_rows: usize,
}

/// The feeds of the n-th window.
fn window<'a, 'b>(feeds: &'a [Fed<'b>], window_rows: usize, n: usize) -> &'a [Fed<'b>] {
    let start = n * window_rows;
    &feeds[start..(start + window_rows).min(feeds.len())]
}

impl WindowInputs for JointInputs<'_, '_> {
    fn embedding(&mut self, n: usize, to: &mut [f32]) -> Result<(), ScheduleError> {
        let feeds = window(self.feeds, self.window_rows, n);
        Ok(self.embedding.gather(feeds.iter().map(|(_, token)| u64::from(token.0)), self.scale, to)?)
    }

    fn ngram(&mut self, n: usize, to: &mut [f32]) -> Result<(), ScheduleError> {
        let feeds = window(self.feeds, self.window_rows, n);
        let Some((config, table)) = self.ngram else { return Ok(()) };
        let width = to.len() / feeds.len().max(1);
        for ((sequence, _), row) in feeds.iter().zip(to.chunks_exact_mut(width.max(1))) {
            let newest = sequence.len() - 1;
            table.gather_ngrams(config, sequence.tokens(), newest..newest + 1, row)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Sequences that one window can serve.
    pub fn joint_rows(&self) -> usize {
        let shapes = self.pipeline.stages[0].stage.programs.iter().map(|p| p.shape.max_rows.min(p.shape.max_outputs));
        shapes.max().unwrap_or(1).max(1) as usize
    }

    /// Adds one token to each sequence and computes them together. `see` gets the scores after the token of the n-th.
    ///
    /// # Errors
    /// A full context, an unknown token or half a picture leave all sequences as they were. Any other error empties all of them.
    pub fn feed_each(&mut self, feeds: &mut [Fed<'_>], see: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), EngineError> {
        let (capacity, vocab) = (self.options.context as usize, self.dims().vocab);
        for (sequence, token) in feeds.iter() {
            if sequence.len() >= capacity {
                return Err(EngineError::ContextFull { length: sequence.len(), added: 1, capacity });
            }
            if token.0 >= vocab {
                return Err(EngineError::NoSuchToken { token: *token, vocab });
            }
        }
        if let Some((sequence, _)) = feeds.iter().find(|(sequence, _)| sequence.unfinished().is_some()) {
            let problem = "half of it has been read, and a token was to follow".into();
            return Err(EngineError::Picture { number: sequence.text().pictures.len(), problem });
        }
        self.rows.clear();
        self.earlier.clear();
        for (sequence, token) in feeds.iter_mut() {
            sequence.earlier(sequence.len(), &mut self.earlier);
            sequence.advance(&[*token], &mut self.rows);
        }
        let result = self.run_each(feeds, see);
        if result.is_err() {
            feeds.iter_mut().for_each(|(sequence, _)| sequence.abandon());
            for (sequence, _) in feeds {
                self.pipeline.clear(sequence.slot, 0)?;
            }
        }
        result
    }

    fn run_each(&mut self, feeds: &[Fed<'_>], see: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), EngineError> {
        let window_rows = self.joint_rows();
        let Engine { model, embedding, ngram, pipeline, rows, outputs, earlier, .. } = self;
        let windows: Vec<Window<'_>> =
            rows.chunks(window_rows).map(|rows| Window { rows, outputs: &outputs[..rows.len()], earlier }).collect();
        let mut inputs = JointInputs { embedding, ngram, scale: model.config.embedding_scale(), feeds, window_rows };
        let width = model.dims().output_width() as usize;
        let mut see_window = |window: usize, scores: &mut [f32]| {
            scores.chunks_mut(width).enumerate().for_each(|(row, scores)| see(window * window_rows + row, scores));
        };
        Ok(pipeline.run(&windows, &mut inputs, &mut see_window, None)?)
    }
}
