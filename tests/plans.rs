//! Plans and refusals: the stories, every machine with every sheet, worked examples of the predecessor.

mod plans {
    mod exact;
    mod examples;
    mod extremes;
    mod families;
    mod files;
    mod probing;
    mod properties;
    mod random;
    mod sheets;
    mod snapshots;
    mod splits;
    mod stories;
    mod support;
    mod verified;
}
