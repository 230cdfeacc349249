//! Promises of sampling: exact penalties, correct truncation, the right distribution, the same draw from the same seed,
//! and stop strings wherever they fall.

use proptest::prelude::*;
use strata::sample::{SampleError, Sampler, SamplingParams, StopMatcher};
use strata::units::TokenId;

/// Everything off: the plain distribution of the model.
fn plain(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(seed), ..Default::default() }
}

fn sampler(params: SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab).unwrap()
}

fn once(params: SamplingParams, logits: &[f32]) -> (u32, Vec<f32>) {
    let mut logits = logits.to_vec();
    let sampled = sampler(params, logits.len()).sample(&mut logits).unwrap();
    (sampled.token.0, logits)
}

/// How often each token is drawn in `draws` draws.
fn frequencies(params: SamplingParams, logits: &[f32], draws: usize) -> Vec<f64> {
    let mut sampler = sampler(params, logits.len());
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(&mut logits.to_vec()).unwrap().token.index()] += 1.0 / draws as f64;
    }
    counts
}

/// Which tokens can be drawn at all.
fn support(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let frequencies = frequencies(params, logits, 4000);
    (0..logits.len() as u32).filter(|token| frequencies[*token as usize] > 0.0).collect()
}

#[test]
fn greedy_takes_the_best_and_the_lowest_of_equals() {
    assert_eq!(once(SamplingParams::greedy(), &[1.0, 3.0, 3.0, -1.0]).0, 1);
    assert_eq!(once(SamplingParams::greedy(), &[f32::NEG_INFINITY, -5.0]).0, 1);
    assert_eq!(once(SamplingParams::greedy(), &[0.0; 5]).0, 0);
}

#[test]
fn unusable_logits_are_errors() {
    for params in [SamplingParams::greedy(), plain(1)] {
        let sample = |logits: &[f32]| sampler(params.clone(), 3).sample(&mut logits.to_vec());
        let bad = sample(&[0.0, f32::NAN, 0.0]).unwrap_err();
        assert!(matches!(bad, SampleError::NotFinite { token: TokenId(1), .. }), "{bad:?}");
        let bad = sample(&[0.0, 1.0, f32::INFINITY]).unwrap_err();
        assert!(matches!(bad, SampleError::NotFinite { token: TokenId(2), .. }), "{bad:?}");
        assert_eq!(sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingLeft));
        assert_eq!(sample(&[0.0; 4]), Err(SampleError::WrongLength { found: 4, expected: 3 }));
    }
}

#[test]
fn meaningless_parameters_are_refused_by_name() {
    let refuse = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        Sampler::new(params, 10).err().expect("refused").to_string()
    };
    assert!(refuse(&|p| p.temperature = -1.0).contains("temperature"));
    assert!(refuse(&|p| p.temperature = f32::NAN).contains("temperature"));
    assert!(refuse(&|p| p.top_p = 0.0).contains("top_p"));
    assert!(refuse(&|p| p.top_p = 1.5).contains("top_p"));
    assert!(refuse(&|p| p.min_p = -0.1).contains("min_p"));
    assert!(refuse(&|p| p.typical_p = 0.0).contains("typical_p"));
    assert!(refuse(&|p| p.repeat_penalty = 0.0).contains("repeat_penalty"));
    assert!(refuse(&|p| p.presence_penalty = f32::INFINITY).contains("presence_penalty"));
    assert!(refuse(&|p| p.frequency_penalty = f32::NAN).contains("frequency_penalty"));
    assert!(refuse(&|p| p.repeat_last_n = -2).contains("repeat_last_n"));
    assert!(refuse(&|p| p.logit_bias = vec![(TokenId(10), 0.0)]).contains("token 10"));
    assert!(refuse(&|p| p.logit_bias = vec![(TokenId(0), f32::NAN)]).contains("logit_bias"));
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [1.0f32, 0.0, -1.0, 2.0, 0.5];
    for temperature in [0.5f32, 1.0, 2.0] {
        let weights: Vec<f64> = logits.iter().map(|l| f64::from(l / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let found = frequencies(SamplingParams { temperature, ..plain(7) }, &logits, 100_000);
        for (weight, found) in weights.iter().zip(found) {
            // Five standard deviations of a share of 100,000 draws are below 0.008.
            assert!((weight / total - found).abs() < 0.008, "{temperature}: {} {found}", weight / total);
        }
    }
}

#[test]
fn the_same_seed_draws_the_same() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 / 200.0).collect();
    let draw = |seed| {
        let mut sampler = sampler(SamplingParams { seed: Some(seed), ..plain(0) }, logits.len());
        (0..50).map(|_| sampler.sample(&mut logits.clone()).unwrap().token.0).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let mut sampler = sampler(SamplingParams { seed: None, ..plain(0) }, logits.len());
    let first = sampler.sample(&mut logits.clone()).unwrap();
    sampler.reset();
    assert_eq!(sampler.sample(&mut logits.clone()).unwrap(), first, "reset starts the random numbers again");
}

#[test]
fn truncation_keeps_exactly_what_it_says() {
    // Probabilities 0.4, 0.3, 0.15, 0.1, 0.05, in another order.
    let logits: Vec<f32> = [0.1f32, 0.4, 0.05, 0.3, 0.15].iter().map(|p| p.ln()).collect();
    let with = |change: &dyn Fn(&mut SamplingParams)| {
        let mut params = plain(3);
        change(&mut params);
        support(params, &logits)
    };
    assert_eq!(with(&|_| ()), [0, 1, 2, 3, 4]);
    assert_eq!(with(&|p| p.top_k = 1), [1]);
    assert_eq!(with(&|p| p.top_k = 3), [1, 3, 4]);
    assert_eq!(with(&|p| p.top_k = 100), [0, 1, 2, 3, 4]);
    assert_eq!(with(&|p| p.top_p = 0.39), [1]);
    assert_eq!(with(&|p| p.top_p = 0.41), [1, 3]);
    assert_eq!(with(&|p| p.top_p = 0.71), [1, 3, 4]);
    assert_eq!(with(&|p| p.top_p = 1e-6), [1], "one token always stays");
    assert_eq!(with(&|p| p.min_p = 0.5), [1, 3]);
    assert_eq!(with(&|p| p.min_p = 0.2), [0, 1, 3, 4]);
    assert_eq!(with(&|p| p.min_p = 1.0), [1]);
    assert_eq!(with(&|p| (p.top_k, p.top_p) = (3, 0.5)), [1, 3], "top_p goes by what top_k left");
    // The entropy is 1.39; the surprises are 2.3, 0.92, 3.0, 1.2, 1.9: nearest first are 3, 1, 4.
    assert_eq!(with(&|p| p.typical_p = 0.25), [3]);
    assert_eq!(with(&|p| p.typical_p = 0.6), [1, 3]);
    assert_eq!(with(&|p| p.typical_p = 0.75), [1, 3, 4]);
    // Truncation goes by the probabilities before temperature.
    assert_eq!(with(&|p| (p.temperature, p.min_p) = (5.0, 0.5)), [1, 3]);
}

#[test]
fn bias_excludes_and_prefers() {
    let bias = |token, value| SamplingParams { logit_bias: vec![(TokenId(token), value)], ..SamplingParams::greedy() };
    assert_eq!(once(bias(1, f32::NEG_INFINITY), &[0.0, 5.0, 1.0]).0, 2);
    assert_eq!(once(bias(0, 6.0), &[0.0, 5.0, 1.0]).0, 0);
}

#[test]
fn penalties_are_exact() {
    let params =
        SamplingParams { repeat_penalty: 2.0, presence_penalty: 0.5, frequency_penalty: 0.25, ..SamplingParams::greedy() };
    let mut sampler = sampler(params, 4);
    for token in [0, 1, 1, 1, 2] {
        sampler.accept(TokenId(token));
    }
    let mut logits = vec![4.0f32, 4.0, -4.0, 4.0];
    sampler.sample(&mut logits).unwrap();
    assert_eq!(logits, [2.0 - 0.5 - 0.25, 2.0 - 0.5 - 0.75, -8.0 - 0.5 - 0.25, 4.0]);
    sampler.reset();
    let mut logits = vec![4.0f32; 4];
    sampler.sample(&mut logits).unwrap();
    assert_eq!(logits, [4.0; 4]);
}

#[test]
fn penalties_see_all_text_or_a_window() {
    let with = |repeat_last_n, accepted: &[u32]| {
        let params = SamplingParams { frequency_penalty: 1.0, repeat_last_n, ..SamplingParams::greedy() };
        let mut sampler = sampler(params, 3);
        accepted.iter().for_each(|token| sampler.accept(TokenId(*token)));
        let mut logits = vec![0.0f32; 3];
        sampler.sample(&mut logits).unwrap();
        logits
    };
    let long: Vec<u32> = std::iter::repeat_n(0, 1000).chain([1, 2]).collect();
    assert_eq!(with(-1, &long), [-1000.0, -1.0, -1.0], "by default over the whole generated text");
    assert_eq!(with(3, &long), [-1.0, -1.0, -1.0]);
    assert_eq!(with(2, &long), [0.0, -1.0, -1.0]);
    assert_eq!(with(0, &long), [0.0, 0.0, 0.0]);
    assert_eq!(with(2, &[0, 1, 0, 1, 0]), [-1.0, -1.0, 0.0]);
}

#[test]
fn logprobs_are_the_models_own() {
    let params = SamplingParams { logprobs: Some(2), logit_bias: vec![(TokenId(0), 10.0)], ..SamplingParams::greedy() };
    let mut sampler = sampler(params, 3);
    let logits = [1.0f32, 2.0, 3.0];
    let sampled = sampler.sample(&mut logits.to_vec()).unwrap();
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    let expected = |logit: f32| (f64::from(logit) - total.ln()) as f32;
    assert_eq!((sampled.token.0, sampled.logprob), (0, Some(expected(1.0))));
    let top: Vec<(u32, f32)> = sampler.top_logprobs().iter().map(|t| (t.token.0, t.logprob)).collect();
    assert_eq!(top, [(2, expected(3.0)), (1, expected(2.0))]);
}

#[test]
fn a_large_vocabulary_is_quick() {
    let vocab = 248_320;
    let logits: Vec<f32> = (0..vocab as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / 2e6).collect();
    let mut off = plain(1);
    off.top_p = 0.9;
    for (name, params) in [("default", SamplingParams::default()), ("greedy", SamplingParams::greedy()), ("top_p only", off)] {
        let mut sampler = sampler(params, vocab);
        let mut buffers = vec![logits.clone(); 20];
        let begun = std::time::Instant::now();
        for buffer in &mut buffers {
            sampler.sample(buffer).unwrap();
        }
        let each = begun.elapsed() / 20;
        println!("{name}: {each:?} a token");
        assert!(each.as_millis() < 200, "{name}: {each:?}");
    }
}

proptest! {
    /// Selecting in part gives what sorting everything gives.
    #[test]
    fn truncation_agrees_with_sorting(
        logits in prop::collection::vec(-8i32..8, 1..400),
        top_k in 0usize..500,
        top_p in 0.01f32..1.0,
        seed in any::<u64>(),
    ) {
        let logits: Vec<f32> = logits.into_iter().map(|l| l as f32 / 2.0).collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if top_k > 0 {
            order.truncate(top_k);
        }
        let total: f64 = order.iter().map(|i| f64::from(logits[*i]).exp()).sum();
        let mut sum = 0.0;
        // A sum that meets the limit to the last bit may fall on either side.
        let mut least = None;
        let mut most = order.len();
        for (index, token) in order.iter().enumerate() {
            sum += f64::from(logits[*token]).exp() / total;
            if least.is_none() && sum >= f64::from(top_p) - 1e-9 {
                least = Some(index + 1);
            }
            if sum >= f64::from(top_p) + 1e-9 {
                most = index + 1;
                break;
            }
        }
        let params = SamplingParams { top_k, top_p, ..plain(seed) };
        let sampled = sampler(params, logits.len()).sample(&mut logits.clone()).unwrap();
        prop_assert!(sampled.candidates >= least.unwrap_or(order.len()) && sampled.candidates <= most);
        prop_assert!(order[..most].contains(&sampled.token.index()));
    }

    /// However text arrives, what is shown is the text up to the first stop string.
    #[test]
    fn stops_are_found_in_any_chunking(
        text in "[abcé]{0,30}",
        stops in prop::collection::vec("[abcé]{1,4}", 0..4),
        cuts in prop::collection::vec(1usize..5, 0..30),
    ) {
        let first = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
        let mut matcher = StopMatcher::new(stops.clone()).unwrap();
        let (mut shown, mut stopped) = (String::new(), None);
        let chars: Vec<char> = text.chars().collect();
        let mut at = 0;
        let mut cuts = cuts.into_iter();
        while at < chars.len() {
            let end = (at + cuts.next().unwrap_or(1)).min(chars.len());
            let piece: String = chars[at..end].iter().collect();
            let outcome = matcher.push(&piece);
            shown.push_str(&outcome.text);
            stopped = outcome.stopped;
            prop_assert!(text.starts_with(&shown));
            at = end;
        }
        shown.push_str(&matcher.finish());
        // A longer stop string that begins earlier may be complete only after a shorter one inside it is found.
        match (first, stopped) {
            (None, found) => {
                prop_assert_eq!(found, None);
                prop_assert_eq!(shown, text);
            }
            (Some(_), None) => prop_assert!(false, "missed"),
            (Some(_), Some(index)) => {
                prop_assert!(text[shown.len()..].starts_with(&stops[index]));
                prop_assert!(stops.iter().all(|stop| !shown.contains(stop.as_str())));
            }
        }
    }
}

#[test]
fn only_a_possible_stop_is_held_back() {
    let mut matcher = StopMatcher::new(vec!["\nUser:".into(), "END".into()]).unwrap();
    assert_eq!(matcher.push("Hello").text, "Hello");
    assert_eq!(matcher.push(" E").text, " ");
    assert_eq!(matcher.push("N").text, "");
    assert_eq!(matcher.push("T").text, "ENT");
    assert_eq!(matcher.push("\nUs").text, "");
    let outcome = matcher.push("er: more");
    assert_eq!((outcome.text.as_str(), outcome.stopped), ("", Some(0)));
    assert_eq!(matcher.push("more").text, "");
    assert_eq!(matcher.finish(), "");
    assert_eq!(StopMatcher::new(vec![String::new()]).err(), Some(SampleError::EmptyStop));
}
