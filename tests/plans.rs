//! Plans and refusals: the stories, every machine with every sheet, worked examples of the predecessor.

mod plans {
    mod examples;
    mod properties;
    mod random;
    mod sheets;
    mod snapshots;
    mod stories;
    mod support;
    mod verified;
}
