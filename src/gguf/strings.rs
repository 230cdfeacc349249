//! A list of strings in two allocations.

use std::fmt;
use std::ops::Index;

/// The strings of a metadata array, e.g. the 250,000 tokens of a vocabulary.
///
/// All text lies in one buffer, and a list of 4-byte end positions cuts it. That takes less memory than the array
/// takes in the file (where each string has an 8-byte length), so reading a hostile array cannot cost more than the
/// file's own bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
}

impl Strings {
    /// Adopts text that is cut at `ends`. `None` unless every end is at or after the one before it, falls on a
    /// character boundary, and the last one is the length of the text.
    pub(super) fn from_parts(text: String, ends: Vec<u32>) -> Option<Strings> {
        let mut start = 0;
        for &end in &ends {
            text.get(start..end as usize)?;
            start = end as usize;
        }
        (start == text.len()).then_some(Strings { text, ends })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.text[start..end])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let item = &self.text[start..end as usize];
            start = end as usize;
            item
        })
    }

    /// Adds a string at the end.
    ///
    /// # Panics
    /// If all strings together exceed 4 GiB.
    pub fn push(&mut self, item: &str) {
        self.text.push_str(item);
        self.ends.push(u32::try_from(self.text.len()).expect("a list of strings holds at most 4 GiB"));
    }
}

impl Index<usize> for Strings {
    type Output = str;

    /// # Panics
    /// Past the end, as slices do.
    fn index(&self, index: usize) -> &str {
        match self.get(index) {
            Some(item) => item,
            None => panic!("string {index} of a list of {}", self.len()),
        }
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(items: I) -> Strings {
        let mut strings = Strings::default();
        for item in items {
            strings.push(item.as_ref());
        }
        strings
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_in_order_and_empty_ones_are_kept() {
        let strings = Strings::from_iter(["", "a", "", "éß", "", ""]);
        assert_eq!(strings.len(), 6);
        assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "a", "", "éß", "", ""]);
        assert_eq!(&strings[3], "éß");
        assert_eq!(strings.get(6), None);
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        assert!(Strings::from_parts("é".into(), vec![1, 2]).is_none(), "cut inside a character");
        assert!(Strings::from_parts("ab".into(), vec![2, 1]).is_none(), "ends go back");
        assert!(Strings::from_parts("ab".into(), vec![1]).is_none(), "text left over");
        assert!(Strings::from_parts("ab".into(), vec![3]).is_none(), "past the text");
        assert!(Strings::from_parts("ab".into(), vec![0, 2, 2]).is_some());
    }
}
