//! How often each expert was used, kept between sessions.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ExpertError, Popularity};
use crate::gguf::write_whole;

/// Uses by layer and expert, as a JSON file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Name of the model's files, for people.
    pub model: String,
    /// Tokens over which the uses were counted.
    pub tokens: u64,
    /// Uses of each expert, by layer.
    pub layers: BTreeMap<u32, Vec<u64>>,
}

/// Tokens that a profile remembers: older ones count ever less, so that it follows what the user does.
const MEMORY_TOKENS: u64 = 1 << 20;

impl Profile {
    /// # Errors
    /// A file that cannot be read or is no profile.
    pub fn load(path: &Path) -> Result<Profile, ExpertError> {
        let file = || path.display().to_string();
        let text = std::fs::read(path).map_err(|source| ExpertError::Io { file: file(), action: "read", source })?;
        serde_json::from_slice(&text).map_err(|e| ExpertError::Profile { file: file(), reason: e.to_string() })
    }

    /// Writes the file anew; a reader sees the old one or the new one.
    ///
    /// # Errors
    /// What the system says.
    pub fn save(&self, path: &Path) -> Result<(), ExpertError> {
        let failed = |source| ExpertError::Io { file: path.display().to_string(), action: "write", source };
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        write_whole(path, &text).map_err(failed)
    }

    /// Adds the counts of earlier sessions.
    pub fn add(&mut self, before: &Profile) {
        let keep = |n: u64| {
            let most = before.tokens.max(1);
            (u128::from(n) * u128::from(most.min(MEMORY_TOKENS)) / u128::from(most)) as u64
        };
        self.tokens = self.tokens.saturating_add(keep(before.tokens));
        for (layer, counts) in &before.layers {
            let own = self.layers.entry(*layer).or_insert_with(|| vec![0; counts.len()]);
            own.iter_mut().zip(counts).for_each(|(own, n)| *own = own.saturating_add(keep(*n)));
        }
    }

    /// # Errors
    /// The profile has other experts than the model.
    pub fn popularity(&self, layer: u32, experts: u32) -> Result<Popularity, ExpertError> {
        let Some(counts) = self.layers.get(&layer) else { return Ok(Popularity::new(experts)) };
        if counts.len() != experts as usize {
            let reason = format!("layer {layer} has {experts} experts, the profile {}", counts.len());
            return Err(ExpertError::Profile { file: self.model.clone(), reason });
        }
        Ok(Popularity::from_counts(counts, self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(tokens: u64, counts: &[u64]) -> Profile {
        Profile { model: "m".into(), tokens, layers: [(3, counts.to_vec())].into() }
    }

    #[test]
    fn a_profile_survives_a_file_and_a_wrong_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let p = profile(10, &[1, 2, 3]);
        let neighbour = folder.path().join("p.new");
        std::fs::write(&neighbour, "the user's").unwrap();
        p.save(&path).unwrap();
        p.save(&path).unwrap();
        assert_eq!(std::fs::read(&neighbour).unwrap(), b"the user's");
        assert_eq!(Profile::load(&path).unwrap(), p);
        assert!(p.popularity(3, 4).is_err());
        assert_eq!(p.popularity(9, 4).unwrap(), Popularity::new(4));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Profile::load(&path), Err(ExpertError::Profile { .. })));
        assert!(matches!(Profile::load(&folder.path().join("none")), Err(ExpertError::Io { .. })));
    }

    #[test]
    fn sessions_add_up_and_old_ones_fade() {
        let mut now = profile(10, &[5, 0, 1]);
        now.add(&profile(100, &[1, 2, 3]));
        assert_eq!(now, profile(110, &[6, 2, 4]));
        now.add(&profile(MEMORY_TOKENS * 4, &[4000, 0, 0]));
        assert_eq!(now.layers[&3][0], 1006);
    }

    /// A file may say anything.
    #[test]
    fn no_count_is_too_large() {
        let mut now = profile(u64::MAX, &[u64::MAX, 1, 2]);
        now.add(&profile(1, &[u64::MAX, u64::MAX, 0, 7]));
        assert_eq!(now, profile(u64::MAX, &[u64::MAX, u64::MAX, 2]));
        now.add(&profile(0, &[u64::MAX]));
        assert!(now.popularity(3, 3).unwrap().score(0).is_finite());
    }
}
