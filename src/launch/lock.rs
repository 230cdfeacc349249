//! One lock file a card: two programs that both read the same free memory would both plan to use it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::LaunchError;
use crate::plan::Card;
use crate::probe::runtime_folder;

/// A card that is ours. The lock is the system's, so it ends with the process, however that ends.
#[derive(Debug)]
pub struct CardLock {
    /// Locked until it is closed.
    _file: File,
    holder: PathBuf,
}

impl CardLock {
    /// # Errors
    /// Another process holds the card, or the file cannot be made.
    pub fn take(folder: &Path, card: &Card, model: &str) -> Result<CardLock, LaunchError> {
        let failed = |source| LaunchError::Lock { card: card.id.clone(), folder: folder.display().to_string(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let name = file_name(card);
        // The holder has a file of its own: where locks are mandatory, a locked file cannot be read by others.
        let holder = folder.join(format!("{name}.holder"));
        let path = folder.join(format!("{name}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let told = fs::read_to_string(&holder).unwrap_or_default();
                let first = told.lines().next().filter(|line| !line.is_empty());
                let holder = first.unwrap_or("another process of strata").chars().filter(|c| !c.is_control()).collect();
                return Err(LaunchError::CardInUse { card: card.id.clone(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Only a courtesy to the next one: a failure to write it is none of ours.
        let _ = fs::write(&holder, format!("process {} (strata, {model})\n", std::process::id()));
        Ok(CardLock { _file: file, holder })
    }
}

impl Drop for CardLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.holder);
    }
}

/// The same card has the same name, whatever its number today.
fn file_name(card: &Card) -> String {
    let identity = card.uuid.as_ref().or(card.pci.as_ref()).unwrap_or(&card.id);
    identity.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// A folder of this user that all sessions share and that need not survive a restart.
pub fn default_lock_folder() -> PathBuf {
    runtime_folder().join("cards")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Machine;

    fn card(id: &str) -> Card {
        let text = format!(
            "version = 1\nname = \"v\"\n[host]\nos = \"linux\"\nram_total = \"1 GiB\"\nram_available = \"1 GiB\"\ncores = 1\n\
             [[card]]\nid = \"{id}\"\nname = \"v\"\nbackend = \"virtual\"\ndriver = \"none\"\ntotal = \"1 MiB\"\nfree = \"1 MiB\"\n"
        );
        Machine::from_toml(&text).unwrap().cards.remove(0)
    }

    #[test]
    fn the_second_is_told_who_holds_the_card_and_a_drop_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made/on/demand");
        let lock = CardLock::take(&folder, &card("virtual:0"), "a model").unwrap();
        let other = CardLock::take(&folder, &card("virtual:1"), "a model").unwrap();
        let refused = CardLock::take(&folder, &card("virtual:0"), "another").unwrap_err();
        assert!(refused.is_refusal());
        let told = refused.to_string();
        assert!(
            told.contains("virtual:0") && told.contains(&std::process::id().to_string()) && told.contains("a model"),
            "{told}"
        );
        drop((lock, other));
        CardLock::take(&folder, &card("virtual:0"), "another").unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = CardLock::take(file.path(), &card("virtual:0"), "m").unwrap_err();
        assert!(!error.is_refusal() && error.to_string().contains("virtual:0"), "{error}");
    }

    #[test]
    fn cards_are_told_apart_by_what_does_not_change() {
        let plain = card("cuda:0");
        assert_eq!(file_name(&plain), "cuda_0");
        assert_eq!(file_name(&Card { uuid: Some("GPU-1/2".into()), ..plain }), "GPU-1_2");
    }
}
