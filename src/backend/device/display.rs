//! Whether a card shows a picture, where the system knows it better than the driver: AMD's runtime does not tell on Linux, and
//! NVIDIA's tells only whether it limits the time of kernels.

use std::fs;
use std::path::Path;

use crate::backend::discovery::PciPlace;

/// Where Linux lists cards and their connectors.
pub const CONNECTORS: &str = "/sys/class/drm";

/// Whether a connector of the card at `place` is in use. `root` holds `card0`, whose `device` leads to a folder named by its place,
/// and `card0-DP-1` and its like with files `status` and `enabled`.
pub fn shows_picture(root: &Path, place: PciPlace) -> bool {
    let Ok(entries) = fs::read_dir(root) else { return false };
    let holds = |file: &Path, word: &str| fs::read_to_string(file).is_ok_and(|text| text.trim() == word);
    entries.filter_map(Result::ok).any(|connector| {
        let name = connector.file_name();
        let Some((card, _)) = name.to_str().and_then(|name| name.split_once('-')) else { return false };
        let device = fs::canonicalize(root.join(card).join("device"));
        let own = device.ok().and_then(|device| device.file_name()?.to_str()?.parse::<PciPlace>().ok());
        let path = connector.path();
        own == Some(place) && holds(&path.join("status"), "connected") && holds(&path.join("enabled"), "enabled")
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_card_with_a_connector_in_use_shows_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let (root, bus) = (folder.path().join("drm"), folder.path().join("pci"));
        for (card, place) in [("card0", "0000:03:00.0"), ("card1", "0000:0a:00.0"), ("card2", "0000:0b:00.0")] {
            fs::create_dir_all(root.join(card)).unwrap();
            fs::create_dir_all(bus.join(place)).unwrap();
            std::os::unix::fs::symlink(bus.join(place), root.join(card).join("device")).unwrap();
        }
        for (connector, status, enabled) in [
            ("card0-DP-1", "disconnected", "disabled"),
            ("card0-HDMI-A-1", "connected", "enabled"),
            ("card1-DP-3", "connected", "disabled"),
            ("card2-DP-4", "disconnected", "disabled"),
        ] {
            fs::create_dir_all(root.join(connector)).unwrap();
            fs::write(root.join(connector).join("status"), format!("{status}\n")).unwrap();
            fs::write(root.join(connector).join("enabled"), format!("{enabled}\n")).unwrap();
        }
        let shows = |place: &str| shows_picture(&root, place.parse().unwrap());
        assert!(shows("03:00.0"));
        assert!(!shows("0a:00.0"), "plugged in, and switched off");
        assert!(!shows("0b:00.0") && !shows("0c:00.0"));
        assert!(!shows_picture(Path::new("nowhere"), "03:00.0".parse().unwrap()));
    }
}
