//! How values are written: as Python prints them, and as JSON.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// Values nested deeper than this are refused rather than followed.
const MAX_DEPTH: usize = 200;

/// `{{ value }}` as Python prints it: `True`, `None`, `['a', 1]`.
pub(super) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&to_text(state, value)?)?,
    }
    Ok(())
}

/// `str(value)`.
pub(super) fn to_text(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    Writer { out: String::new(), state, layout: Layout::python() }.write(value)
}

/// `json.dumps` as the published tokenizers call it: no HTML escapes, other scripts as they are.
pub(super) fn tojson(state: &State, value: Value, positional: Option<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let indent = match indent {
        Some(value) if !value.is_none() => Some(usize::try_from(value)?.min(64)),
        _ => None,
    };
    let default_item = if indent.is_some() { "," } else { ", " };
    let mut separators = separators.unwrap_or_default().into_iter();
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let layout = Layout {
        json: true,
        indent,
        item_separator: separators.next().unwrap_or_else(|| default_item.to_owned()),
        key_separator: separators.next().unwrap_or_else(|| ": ".to_owned()),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: ascii.or(positional.map(|value| value.is_true())).unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    Writer { out: String::new(), state, layout }.write(&value)
}

struct Layout {
    /// JSON, or else Python's `repr`.
    json: bool,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ascii: bool,
}

impl Layout {
    fn python() -> Self {
        let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
        Self { json: false, indent: None, item_separator, key_separator, sort_keys: false, ascii: false }
    }
}

struct Writer<'a, 'b, 'c> {
    out: String,
    state: &'a State<'b, 'c>,
    layout: Layout,
}

impl Writer<'_, '_, '_> {
    fn write(mut self, value: &Value) -> Result<String, Error> {
        self.value(value, 0)?;
        Ok(self.out)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let refuse = |detail: String| Err(Error::new(ErrorKind::InvalidOperation, detail));
        // A small value can hold the same list many times over, so every item is paid for as it is written.
        self.state.consume_fuel(1)?;
        if depth > MAX_DEPTH {
            return refuse("the value is nested too deeply".to_owned());
        }
        let json = self.layout.json;
        match value.kind() {
            ValueKind::Undefined if json => {
                return refuse("an undefined value cannot be written as JSON".to_owned());
            }
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str(if json { "null" } else { "None" }),
            ValueKind::Bool => self.out.push_str(match (value.is_true(), json) {
                (true, true) => "true",
                (false, true) => "false",
                (true, false) => "True",
                (false, false) => "False",
            }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.items(items, ["[", "]"], depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    items.push((Some(key), item));
                }
                if self.layout.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items(items, ["{", "}"], depth)?;
            }
            kind if json => return refuse(format!("a {kind} cannot be written as JSON")),
            _ => self.out.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn items(&mut self, items: Vec<(Option<Value>, Value)>, brackets: [&str; 2], depth: usize) -> Result<(), Error> {
        self.out.push_str(brackets[0]);
        let empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.layout.item_separator);
            }
            self.new_line(depth + 1);
            if let Some(key) = key {
                // JSON keys are strings: others are written as their JSON text in quotes.
                let quotes = self.layout.json && key.kind() != ValueKind::String;
                self.out.push_str(if quotes { "\"" } else { "" });
                self.value(&key, depth + 1)?;
                self.out.push_str(if quotes { "\"" } else { "" });
                self.out.push_str(&self.layout.key_separator);
            }
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push_str(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.layout.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn number(&mut self, value: &Value) {
        let number = if value.is_integer() { None } else { f64::try_from(value.clone()).ok() };
        let Some(number) = number else {
            self.out.push_str(&value.to_string());
            return;
        };
        let text = format!("{number:?}");
        match text.split_once('e') {
            // Python writes an exponent with a sign and at least two digits.
            Some((mantissa, exponent)) => {
                let negative = exponent.strip_prefix('-');
                let (sign, digits) = negative.map_or(('+', exponent), |digits| ('-', digits));
                let _ = write!(self.out, "{mantissa}e{sign}{digits:0>2}");
            }
            None => self.out.push_str(match (text.as_str(), self.layout.json) {
                ("inf", true) => "Infinity",
                ("-inf", true) => "-Infinity",
                ("NaN", false) => "nan",
                _ => &text,
            }),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        let (json, ascii) = (self.layout.json, self.layout.ascii);
        let quote = if json || (text.contains('\'') && !text.contains('"')) { '"' } else { '\'' };
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.out.push(quote);
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' if json => self.out.push_str("\\b"),
                '\u{c}' if json => self.out.push_str("\\f"),
                c if c == quote => self.out.extend(['\\', c]),
                c if json && c < ' ' => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if !json && (c < ' ' || c == '\u{7f}') => self.out.push_str(&format!("\\x{:02x}", c as u32)),
                c if ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push(quote);
        Ok(())
    }
}
