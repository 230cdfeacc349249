//! Hashed n-gram embedding: which rows of the table a token needs (specification 2.4).

use crate::units::TokenId;

/// The hash of the n-gram embedding and where its rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramConfig {
    /// Tensor with the table.
    pub tensor: String,
    /// Elements of a table row.
    pub row_width: u32,
    /// Largest n of an n-gram.
    pub ngram_size: u32,
    pub heads_per_ngram: u32,
    /// Ends the context of later tokens.
    pub eos: TokenId,
    /// Stands for every token of a picture.
    pub image: TokenId,
    /// One per position in the n-gram.
    pub multipliers: Vec<u64>,
    /// First table row of each head.
    pub offsets: Vec<u64>,
    /// Rows of each head.
    pub sizes: Vec<u64>,
}

impl NgramConfig {
    /// Table rows read for each token.
    pub fn rows_per_token(&self) -> usize {
        ((self.ngram_size - 1) * self.heads_per_ngram) as usize
    }

    /// Appends the table rows for `tokens[index]` to `rows`, one a head. Earlier tokens are its context, back to the first
    /// end-of-text or the start of the sequence.
    pub fn rows(&self, tokens: &[TokenId], index: usize, rows: &mut Vec<u64>) {
        let mut context = [u64::from(self.eos.0); 8];
        let size = (self.ngram_size as usize).min(context.len());
        context[0] = u64::from(tokens[index].0);
        for (back, slot) in context.iter_mut().enumerate().take(size).skip(1) {
            match index.checked_sub(back).map(|i| tokens[i]) {
                Some(token) if token != self.eos => *slot = u64::from(token.0),
                _ => break,
            }
        }
        for n in 2..=size {
            let terms = context[..n].iter().zip(&self.multipliers).map(|(c, m)| c.wrapping_mul(*m));
            let hash = terms.fold(0, |x, term| x ^ term);
            for g in 0..self.heads_per_ngram as usize {
                let head = (n - 2) * self.heads_per_ngram as usize + g;
                rows.push(self.offsets[head] + hash % self.sizes[head]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real model's constants and the two vectors of specification 2.4.
    #[test]
    fn rows_equal_the_vectors_of_the_specification() {
        let sizes: Vec<u64> =
            [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171].map(|p| 20_000_000 + p).to_vec();
        let offsets = sizes.iter().scan(0, |sum, s| Some(std::mem::replace(sum, *sum + s))).collect();
        let config = NgramConfig {
            tensor: String::new(),
            row_width: 160,
            ngram_size: 3,
            heads_per_ngram: 8,
            eos: TokenId(248044),
            image: TokenId(248056),
            multipliers: vec![23703573157769, 20109073645365, 8052911324071],
            offsets,
            sizes,
        };
        let rows = |tokens: &[u32]| {
            let tokens: Vec<TokenId> = tokens.iter().map(|t| TokenId(*t)).collect();
            let mut rows = vec![];
            config.rows(&tokens, tokens.len() - 1, &mut rows);
            rows
        };
        let first = [
            1876085, 31308566, 59776718, 71834192, 97499724, 100188615, 134972424, 142751402, 178377549, 180579936, 219367837,
            221375066, 245391246, 270637420, 285992863, 304819575,
        ];
        let second = [
            14246846, 36171311, 41558142, 78055311, 85368695, 115417151, 121374631, 144303165, 175692140, 188588054, 209003547,
            239200606, 256802173, 275465986, 281923311, 315980346,
        ];
        assert_eq!(rows(&[1000]), first);
        assert_eq!(rows(&[5, 248044, 1000]), first, "an end-of-text hides what was before it");
        assert_eq!(rows(&[2000, 1000, 248045]), second);
    }
}
