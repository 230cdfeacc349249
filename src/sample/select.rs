//! Narrowing down the candidates. Candidates are ordered by logit, the lower id first on ties, so that every result is
//! the same on every machine.

use std::cmp::Ordering;

use crate::units::TokenId;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub logit: f32,
    pub token: TokenId,
}

/// Best first.
pub(super) fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Up to this many candidates are found by insertion while scanning; beyond it selecting in place is quicker.
const INSERTION_LIMIT: usize = 128;

/// How many candidates [`top_k`] needs room for.
pub(super) fn room(k: usize, vocab: usize) -> usize {
    if k == 0 || k > INSERTION_LIMIT { vocab } else { k.min(vocab) }
}

/// Replaces `out` by the best `k` tokens with a logit above minus infinity, best first (all of them unsorted if `k` is
/// 0 or reaches the vocabulary).
pub(super) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let all = logits.iter().enumerate().map(|(index, logit)| Candidate { logit: *logit, token: TokenId(index as u32) });
    if k == 0 || k > INSERTION_LIMIT {
        out.extend(all.filter(|candidate| candidate.logit > f32::NEG_INFINITY));
        if k > 0 && k < out.len() {
            out.select_nth_unstable_by(k - 1, order);
            out.truncate(k);
            out.sort_unstable_by(order);
        }
        return;
    }
    let mut worst = f32::NEG_INFINITY;
    for candidate in all {
        // Ids ascend, so an equal logit never displaces an earlier one.
        if candidate.logit <= worst {
            continue;
        }
        if out.len() == k {
            out.pop();
        }
        let at = out.partition_point(|kept| kept.logit >= candidate.logit);
        out.insert(at, candidate);
        if out.len() == k {
            worst = out[k - 1].logit;
        }
    }
}

/// The best logit and the sum of `exp(logit - best)`.
pub(super) fn mass(candidates: &[Candidate]) -> (f32, f64) {
    let best = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    (best, candidates.iter().map(|candidate| weight(candidate.logit, best)).sum())
}

pub(super) fn weight(logit: f32, best: f32) -> f64 {
    f64::from(logit - best).exp()
}

/// Keeps the fewest best candidates whose probabilities reach `p`.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() <= 1 {
        return;
    }
    let (best, total) = mass(candidates);
    let wanted = f64::from(p) * total;
    // Sort only as far as needed: the answer is nearly always among the first few.
    let (mut sorted, mut sum) = (0, 0.0);
    let mut next = 64;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let take = next.min(rest.len());
        if take < rest.len() {
            rest.select_nth_unstable_by(take, order);
        }
        rest[..take].sort_unstable_by(order);
        for (index, candidate) in rest[..take].iter().enumerate() {
            sum += weight(candidate.logit, best);
            if sum >= wanted {
                candidates.truncate(sorted + index + 1);
                return;
            }
        }
        sorted += take;
        next = sorted * 4;
    }
}

/// Keeps candidates at least `p` times as probable as the best.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let best = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let least = best + p.ln();
    candidates.retain(|candidate| candidate.logit >= least);
}

/// Keeps the candidates whose surprise is nearest to the expected one, until their probabilities exceed `p`.
pub(super) fn typical_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() <= 1 {
        return;
    }
    let (best, total) = mass(candidates);
    let log_total = total.ln();
    let surprise = |candidate: &Candidate| log_total - f64::from(candidate.logit - best);
    let entropy: f64 = candidates.iter().map(|candidate| weight(candidate.logit, best) / total * surprise(candidate)).sum();
    let distance = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
    candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(order(a, b)));
    let mut sum = 0.0;
    let keep = candidates.iter().position(|candidate| {
        sum += weight(candidate.logit, best) / total;
        sum > f64::from(p)
    });
    if let Some(last) = keep {
        candidates.truncate(last + 1);
    }
}
