//! Where the pictures of a prompt stand: a template writes one picture token for each, and a picture takes as many as it has
//! merged patches.

use std::sync::Arc;

use super::{Patches, Placed};
use crate::units::TokenId;

/// A prompt whose places and pictures do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the chat template makes {places} places for {pictures} pictures; another template is needed to show them to the model")]
pub struct PlaceError {
    pub places: usize,
    pub pictures: usize,
}

/// Puts the pictures, in their order, at the picture tokens of a prompt.
///
/// # Errors
/// There is another number of places than of pictures.
pub fn place(
    prompt: &[TokenId],
    picture_token: TokenId,
    pictures: &[Arc<Patches>],
) -> Result<(Vec<TokenId>, Vec<Placed>), PlaceError> {
    let places = prompt.iter().filter(|token| **token == picture_token).count();
    if places != pictures.len() {
        return Err(PlaceError { places, pictures: pictures.len() });
    }
    let added: usize = pictures.iter().map(|patches| patches.tokens()).sum();
    let mut tokens = Vec::with_capacity(prompt.len() + added);
    let mut placed = Vec::with_capacity(places);
    let mut left = pictures.iter();
    for token in prompt {
        match left.as_slice().first().filter(|_| *token == picture_token) {
            None => tokens.push(*token),
            Some(patches) => {
                placed.push(Placed { at: tokens.len(), patches: Arc::clone(patches) });
                tokens.extend(std::iter::repeat_n(picture_token, patches.tokens()));
                left.next();
            }
        }
    }
    Ok((tokens, placed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Grid;

    const PAD: TokenId = TokenId(9);

    fn picture(rows: u32, columns: u32) -> Arc<Patches> {
        Arc::new(Patches { grid: Grid { rows, columns }, merge: 2, values: vec![], digest: [0; 32] })
    }

    #[test]
    fn every_place_grows_to_its_picture() {
        let prompt = [1, 9, 2, 9, 9].map(TokenId);
        let pictures = [picture(2, 4), picture(2, 2), picture(4, 4)];
        let (tokens, placed) = place(&prompt, PAD, &pictures).unwrap();
        assert_eq!(tokens, [1, 9, 9, 2, 9, 9, 9, 9, 9].map(TokenId));
        assert_eq!(placed.iter().map(Placed::range).collect::<Vec<_>>(), [1..3, 4..5, 5..9]);
    }

    #[test]
    fn another_number_of_places_is_an_error() {
        assert_eq!(place(&[PAD], PAD, &[]).unwrap_err(), PlaceError { places: 1, pictures: 0 });
        assert_eq!(place(&[], PAD, &[picture(2, 2)]).unwrap_err(), PlaceError { places: 0, pictures: 1 });
        assert_eq!(place(&[TokenId(1)], PAD, &[]).unwrap().0, [TokenId(1)]);
    }
}
