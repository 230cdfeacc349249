//! Tokens and pictures into a sequence, window by window.

use std::sync::atomic::Ordering;

use super::vision::{Look, Vision};
use super::{Engine, EngineError, NgramConfig, OpenOptions, RowTable, VisionStats, Want};
use crate::picture::Placed;
use crate::schedule::{ScheduleError, Watch, Window, WindowInputs};
use crate::state::Sequence;
use crate::units::TokenId;

/// What the host gathers for the windows of a feed.
struct Gather<'a> {
    embedding: &'a mut RowTable,
    ngram: &'a mut Option<(NgramConfig, RowTable)>,
    vision: &'a mut Option<Vision>,
    scale: f32,
    history: &'a [TokenId],
    pictures: &'a [Placed],
    /// Index of the first token fed.
    first: usize,
    chunk: usize,
    options: &'a OpenOptions,
}

impl Gather<'_> {
    fn range(&self, window: usize) -> std::ops::Range<usize> {
        let start = self.first + window * self.chunk;
        start..(start + self.chunk).min(self.history.len())
    }

    fn tokens(&mut self, range: std::ops::Range<usize>, to: &mut [f32]) -> Result<(), ScheduleError> {
        let ids = self.history[range].iter().map(|t| u64::from(t.0));
        Ok(self.embedding.gather(ids, self.scale, to)?)
    }
}

impl WindowInputs for Gather<'_> {
    /// Rows of the token table, and a picture's own rows where it stands.
    fn embedding(&mut self, window: usize, to: &mut [f32]) -> Result<(), ScheduleError> {
        if self.options.cancel.load(Ordering::Relaxed) {
            return Err(ScheduleError::Interrupted);
        }
        let range = self.range(window);
        let width = to.len() / range.len().max(1);
        let (mut at, mut rest) = (range.start, to);
        let pictures = self.pictures;
        for placed in pictures {
            let whole = placed.range();
            let seen = whole.start.max(at)..whole.end.min(range.end);
            let Some(vision) = self.vision.as_mut().filter(|_| !seen.is_empty()) else { continue };
            let rows = vision.rows(&placed.patches)?;
            let (text, behind) = rest.split_at_mut((seen.start - at) * width);
            let (own, behind) = behind.split_at_mut(seen.len() * width);
            own.copy_from_slice(&rows[(seen.start - whole.start) * width..(seen.end - whole.start) * width]);
            self.tokens(at..seen.start, text)?;
            (at, rest) = (seen.end, behind);
        }
        self.tokens(at..range.end, rest)
    }

    fn ngram(&mut self, window: usize, to: &mut [f32]) -> Result<(), ScheduleError> {
        let indices = self.range(window);
        match &mut self.ngram {
            Some((config, table)) => Ok(table.gather_ngrams(config, self.history, indices, to)?),
            None => Ok(()),
        }
    }
}

/// A piece of a text that is fed.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    tokens: &'a [TokenId],
    /// Of the whole text: places count from its first token.
    pictures: &'a [Placed],
    want: Want,
}

impl Engine {
    /// Reads `tokens` into the sequence, in windows of at most a prompt chunk. `see` gets each wanted row of logits (of an
    /// embedding model, of normed residuals) with the index of its token.
    ///
    /// # Errors
    /// A full context or an unknown token leave the sequence as it was, and so does text where a picture has been read half. Any
    /// other error empties it.
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        want: Want,
        see: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), EngineError> {
        self.feed_watched(sequence, tokens, want, see, None)
    }

    /// As [`Engine::feed`]. With a `watch` every step runs on its own and shows what it wrote, which is slow.
    ///
    /// # Errors
    /// As [`Engine::feed`].
    pub fn feed_watched(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        want: Want,
        see: &mut dyn FnMut(usize, &mut [f32]),
        watch: Option<&mut Watch<'_>>,
    ) -> Result<(), EngineError> {
        self.feed_piece(sequence, Piece { tokens, pictures: &[], want }, see, watch)
    }

    /// As [`Engine::feed`], with the pictures of the whole text that `tokens` are the next piece of. A piece may begin and end
    /// within a picture. Pictures that were not looked at before are looked at when their first row is needed.
    ///
    /// # Errors
    /// As [`Engine::feed`], and pictures that [`Engine::check_pictures`] refuses.
    pub fn feed_seeing(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        pictures: &[Placed],
        want: Want,
        see: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), EngineError> {
        self.feed_piece(sequence, Piece { tokens, pictures, want }, see, None)
    }

    /// Whether pictures stand one behind the other, whole, within a text of so many tokens, and are such as the encoder reads.
    ///
    /// # Errors
    /// Which picture it is and what is wrong.
    pub fn check_pictures(&self, text_tokens: usize, pictures: &[Placed]) -> Result<(), EngineError> {
        let mut free_from = 0;
        for (number, placed) in (1..).zip(pictures) {
            let wrong = |problem: String| EngineError::Picture { number, problem };
            let vision = self.vision.as_ref();
            vision
                .ok_or_else(|| wrong("no vision encoder is open; '--vision on' opens one".into()))?
                .check(&placed.patches)
                .map_err(wrong)?;
            let range = placed.range();
            if range.start < free_from || range.end > text_tokens {
                let problem = format!("tokens {}..{} lie in another picture or behind the end", range.start, range.end);
                return Err(wrong(problem));
            }
            free_from = range.end;
        }
        Ok(())
    }

    /// Takes a step of looking at a picture, before its tokens are fed. Without it, feeding looks at the whole picture at once.
    ///
    /// # Errors
    /// A picture that cannot be read, a device error, or an interruption.
    pub fn look(&mut self, placed: &Placed) -> Result<Look, EngineError> {
        self.check_pictures(placed.range().end, std::slice::from_ref(placed))?;
        let vision = self.vision.as_mut();
        Ok(vision.map_or(Ok(Look::Done), |vision| vision.step(&placed.patches))?)
    }

    /// Whether a picture's rows are there, so that it need not be looked at.
    pub fn has_seen(&self, placed: &Placed) -> bool {
        self.vision.as_ref().is_some_and(|vision| vision.has(&placed.patches))
    }

    /// Counts pictures that needed no looking at.
    pub(super) fn count_reused(&mut self, pictures: usize) {
        if let Some(vision) = &mut self.vision {
            vision.count_reused(pictures as u64);
        }
    }

    /// What the encoder did so far; `None` where there is none.
    pub fn vision_stats(&self) -> Option<VisionStats> {
        self.vision.as_ref().map(Vision::stats)
    }

    fn feed_piece(
        &mut self,
        sequence: &mut Sequence,
        piece: Piece<'_>,
        see: &mut dyn FnMut(usize, &mut [f32]),
        watch: Option<&mut Watch<'_>>,
    ) -> Result<(), EngineError> {
        let Piece { tokens, pictures, .. } = piece;
        let capacity = self.options.context as usize;
        if sequence.len() + tokens.len() > capacity {
            return Err(EngineError::ContextFull { length: sequence.len(), added: tokens.len(), capacity });
        }
        let vocab = self.dims().vocab;
        if let Some(token) = tokens.iter().find(|t| t.0 >= vocab) {
            return Err(EngineError::NoSuchToken { token: *token, vocab });
        }
        self.check_pictures(usize::MAX, pictures)?;
        if let Some(half) = sequence.unfinished()
            && !pictures.iter().any(|placed| placed.span() == *half)
        {
            let problem = "half of it has been read, and something else was to follow; take the sequence back first".into();
            return Err(EngineError::Picture { number: sequence.text().pictures.len(), problem });
        }
        let result = self.run_windows(sequence, piece, see, watch);
        if result.is_err() {
            sequence.abandon();
            self.pipeline.clear(sequence.slot, 0)?;
        }
        result
    }

    fn run_windows(
        &mut self,
        sequence: &mut Sequence,
        Piece { tokens, pictures, want }: Piece<'_>,
        see: &mut dyn FnMut(usize, &mut [f32]),
        watch: Option<&mut Watch<'_>>,
    ) -> Result<(), EngineError> {
        let first = sequence.len();
        let chunk = self.chunk_tokens(want);
        for placed in pictures.iter().filter(|placed| (first..first + tokens.len()).contains(&placed.at)) {
            sequence.place(placed.span());
        }
        self.rows.clear();
        self.earlier.clear();
        for tokens in tokens.chunks(chunk) {
            sequence.earlier(sequence.len(), &mut self.earlier);
            sequence.advance(tokens, &mut self.rows);
        }
        let Engine { model, embedding, ngram, vision, pipeline, rows, outputs, earlier, options, .. } = self;
        let last = tokens.len().div_ceil(chunk).saturating_sub(1);
        let cut = |(i, rows)| Window { rows, outputs: &outputs[want.of_window(rows.len(), i == last)], earlier };
        let scale = model.config.embedding_scale();
        let mut inputs = Gather { embedding, ngram, vision, scale, history: sequence.tokens(), pictures, first, chunk, options };
        let width = model.dims().output_width() as usize;
        let mut see_window = |i: usize, outputs: &mut [f32]| {
            let start = if want == Want::All { i * chunk } else { tokens.len() - 1 };
            for (row, index) in outputs.chunks_mut(width).zip(first + start..) {
                see(index, row);
            }
        };
        // The common case, a single window, takes no memory.
        if last == 0 {
            let windows = [cut((0, rows.as_slice()))];
            let windows = if tokens.is_empty() { &windows[..0] } else { &windows };
            pipeline.run(windows, &mut inputs, &mut see_window, watch)?;
        } else {
            let windows: Vec<Window<'_>> = rows.chunks(chunk).enumerate().map(cut).collect();
            pipeline.run(&windows, &mut inputs, &mut see_window, watch)?;
        }
        Ok(())
    }
}
