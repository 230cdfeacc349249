//! Settings that can be changed in a conversation, under the names of their flags.

use crate::sample::SamplingParams;

/// How answers are generated.
#[derive(Debug, Clone)]
pub struct Settings {
    pub sampling: SamplingParams,
    pub max_tokens: Option<usize>,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
}

type Get = fn(&Settings) -> String;
type Set = fn(&mut Settings, &str) -> Option<()>;

/// Names, how a setting is shown, and how it is changed; `None` if the value cannot be read.
const SETTINGS: &[(&str, Get, Set)] = &[
    (
        "predict",
        |s| s.max_tokens.map_or("-1".into(), |n| n.to_string()),
        |s, v| {
            let n: i64 = v.parse().ok().filter(|n| *n >= -1)?;
            s.max_tokens = usize::try_from(n).ok();
            Some(())
        },
    ),
    ("temp", |s| s.sampling.temperature.to_string(), |s, v| put(&mut s.sampling.temperature, v)),
    ("top-k", |s| s.sampling.top_k.to_string(), |s, v| put(&mut s.sampling.top_k, v)),
    ("top-p", |s| s.sampling.top_p.to_string(), |s, v| put(&mut s.sampling.top_p, v)),
    ("min-p", |s| s.sampling.min_p.to_string(), |s, v| put(&mut s.sampling.min_p, v)),
    (
        "seed",
        |s| s.sampling.seed.map_or("-1".into(), |n| n.to_string()),
        |s, v| {
            let n: i64 = v.parse().ok().filter(|n| *n >= -1)?;
            s.sampling.seed = u64::try_from(n).ok();
            Some(())
        },
    ),
    ("repeat-penalty", |s| s.sampling.repeat_penalty.to_string(), |s, v| put(&mut s.sampling.repeat_penalty, v)),
    ("repeat-last-n", |s| s.sampling.repeat_last_n.to_string(), |s, v| put(&mut s.sampling.repeat_last_n, v)),
    ("presence-penalty", |s| s.sampling.presence_penalty.to_string(), |s, v| put(&mut s.sampling.presence_penalty, v)),
    ("frequency-penalty", |s| s.sampling.frequency_penalty.to_string(), |s, v| put(&mut s.sampling.frequency_penalty, v)),
    ("ignore-eos", |s| s.ignore_eos.to_string(), |s, v| put(&mut s.ignore_eos, v)),
];

fn put<T: std::str::FromStr>(to: &mut T, value: &str) -> Option<()> {
    *to = value.parse().ok()?;
    Some(())
}

impl Settings {
    /// Changes one setting, unless the result makes no sense.
    pub fn set(&mut self, name: &str, value: &str, vocab: usize) -> Result<(), String> {
        let name = name.trim_start_matches('-');
        let Some((_, _, set)) = SETTINGS.iter().find(|(known, ..)| *known == name) else {
            let names: Vec<&str> = SETTINGS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("there is no setting '{name}'; there are {}", names.join(", ")));
        };
        let mut changed = self.clone();
        set(&mut changed, value).ok_or_else(|| format!("'{value}' is not a value for {name}"))?;
        changed.sampling.validate(vocab).map_err(|e| e.to_string())?;
        *self = changed;
        Ok(())
    }

    /// All settings, one a line.
    pub fn list(&self) -> String {
        SETTINGS.iter().map(|(name, get, _)| format!("  {name:<18} {}", get(self))).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_before_they_are_taken() {
        let mut s = Settings { sampling: SamplingParams::default(), max_tokens: None, ignore_eos: false, stop: Vec::new() };
        s.set("temp", "0.5", 10).unwrap();
        s.set("--predict", "7", 10).unwrap();
        assert_eq!((s.sampling.temperature, s.max_tokens), (0.5, Some(7)));
        for (name, value) in [("temp", "-1"), ("temp", "warm"), ("top-p", "0"), ("nonsense", "1"), ("predict", "-2")] {
            assert!(s.set(name, value, 10).is_err(), "{name} {value}");
        }
        assert_eq!(s.sampling.temperature, 0.5);
        assert!(s.list().contains("top-k"));
    }
}
