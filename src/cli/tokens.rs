//! Lists of token numbers, as users write them.

use std::path::Path;

use super::error::CliError;
use super::read::{MOST_TEXT_BYTES, read_file};
use crate::units::TokenId;

/// Reads `1,2,3`, also with blanks, line ends or the brackets of a JSON list. `origin` is named in errors.
pub fn parse_tokens(origin: &str, text: &str) -> Result<Vec<TokenId>, CliError> {
    let mut tokens = Vec::new();
    for (line, words) in text.lines().enumerate() {
        for word in words.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).filter(|w| !w.is_empty()) {
            let number = word.parse::<u32>().map_err(|_| {
                let shown: String = word.chars().take(20).collect();
                CliError::Usage(format!(
                    "{origin}, line {}: {shown:?} is not a token number; numbers with commas or blanks between them are needed",
                    line + 1
                ))
            })?;
            tokens.push(TokenId(number));
        }
    }
    if tokens.is_empty() {
        return Err(CliError::Usage(format!("{origin} holds no tokens")));
    }
    Ok(tokens)
}

/// The same from a file.
pub fn read_tokens(path: &Path) -> Result<Vec<TokenId>, CliError> {
    parse_tokens(&format!("'{}'", path.display()), &read_file(path, MOST_TEXT_BYTES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_in_every_usual_form() {
        let expected = vec![TokenId(1), TokenId(22), TokenId(3)];
        for text in ["1,22,3", "1 22\n3\n", "[1, 22, 3]", " 1,\n22 ,3,"] {
            assert_eq!(parse_tokens("x", text).unwrap(), expected);
        }
    }

    #[test]
    fn errors_name_place_and_word() {
        let error = parse_tokens("'f'", "1\n2 x3").unwrap_err().to_string();
        assert!(error.contains("'f', line 2") && error.contains("\"x3\""), "{error}");
        assert!(parse_tokens("x", "-1").is_err() && parse_tokens("x", "4294967296").is_err() && parse_tokens("x", " ").is_err());
    }
}
