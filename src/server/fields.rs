//! Reading JSON that a client wrote. Unknown fields are left alone, `null` is the same as nothing, and a wrong type is an
//! error that names the field.

use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};

use super::error::ApiError;

/// An object of the request and where it stands.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    map: &'a Map<String, Json>,
    path: String,
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

pub fn wrong(path: impl Into<String>, expected: &str, found: &Json) -> ApiError {
    ApiError::field(path, format!("{expected} is expected, not {}", kind(found)))
}

/// A whole number, also one with a point: some clients write every number so.
pub fn whole(value: &Json) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64))
}

impl<'a> Fields<'a> {
    /// The body of a request.
    ///
    /// # Errors
    /// It is no object.
    pub fn body(value: &'a Json) -> Result<Fields<'a>, ApiError> {
        match value {
            Json::Object(map) => Ok(Fields { map, path: String::new() }),
            other => Err(ApiError::field("body", format!("an object is expected, not {}", kind(other)))),
        }
    }

    /// An object somewhere inside.
    ///
    /// # Errors
    /// It is no object.
    pub fn at(value: &'a Json, path: impl Into<String>) -> Result<Fields<'a>, ApiError> {
        let path = path.into();
        match value {
            Json::Object(map) => Ok(Fields { map, path }),
            other => Err(wrong(path, "an object", other)),
        }
    }

    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub fn map(&self) -> &'a Map<String, Json> {
        self.map
    }

    /// `None` where the field is missing or null.
    pub fn get(&self, key: &str) -> Option<&'a Json> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The first of several names for the same thing.
    pub fn first<'k>(&self, keys: &[&'k str]) -> Option<&'k str> {
        keys.iter().copied().find(|key| self.get(key).is_some())
    }

    pub fn error(&self, key: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.path(key), problem)
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Json) -> Option<T>) -> Result<Option<T>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| wrong(self.path(key), expected, value)),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(key, "text", Json::as_str)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, ApiError> {
        self.typed(key, "true or false", Json::as_bool)
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a Vec<Json>>, ApiError> {
        self.typed(key, "a list", Json::as_array)
    }

    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(key).map(|value| Fields::at(value, self.path(key))).transpose()
    }

    pub fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.typed(key, "a number", Json::as_f64)? else { return Ok(None) };
        if !range.contains(&value) {
            let problem = format!("{value} is not between {} and {}", range.start(), range.end());
            return Err(self.error(key, problem));
        }
        Ok(Some(value as f32))
    }

    pub fn integer(&self, key: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.typed(key, "a whole number", whole)? else { return Ok(None) };
        if !range.contains(&value) {
            let problem = format!("{value} is not between {} and {}", range.start(), range.end());
            return Err(self.error(key, problem));
        }
        Ok(Some(value))
    }

    pub fn count(&self, key: &str, range: RangeInclusive<i64>) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(key, range)?.and_then(|value| usize::try_from(value).ok()))
    }

    /// One of several words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(self.error(key, format!("'{text}' is not known; known are {}", known.join(", "))))
            }
        }
    }

    /// Text, or a list of texts.
    pub fn texts(&self, key: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let texts = match self.get(key) {
            None => Vec::new(),
            Some(Json::String(text)) => vec![text.clone()],
            Some(Json::Array(items)) => {
                let text = |(i, item): (usize, &Json)| {
                    item.as_str().map(str::to_owned).ok_or_else(|| wrong(format!("{}[{i}]", self.path(key)), "text", item))
                };
                items.iter().enumerate().map(text).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(wrong(self.path(key), "text or a list of texts", other)),
        };
        if texts.len() > most {
            return Err(self.error(key, format!("{} were given and at most {most} are possible", texts.len())));
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field() {
        let body = json!({ "a": { "n": "x", "t": 3, "big": 10, "w": "none" }, "null": null, "point": 4.0 });
        let fields = Fields::body(&body).unwrap();
        let a = fields.object("a").unwrap().unwrap();
        assert_eq!(a.number("n", 0.0..=1.0).unwrap_err().message, "'a.n': a number is expected, not text");
        assert_eq!(a.text("t").unwrap_err().field.as_deref(), Some("a.t"));
        assert!(a.integer("big", 0..=5).unwrap_err().message.contains("10 is not between 0 and 5"));
        assert!(a.word("w", &[("auto", 1)]).unwrap_err().message.contains("known are auto"));
        assert_eq!(fields.text("null").unwrap(), None);
        assert_eq!(fields.integer("point", 0..=9).unwrap(), Some(4));
        assert!(Fields::body(&json!([])).is_err());
    }
}
