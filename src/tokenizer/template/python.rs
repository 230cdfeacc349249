//! The pieces of Python that chat templates count on: methods, functions, dates.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};
use serde_json::Value as Json;

use super::values;

/// Begins the detail of an error that the template itself raised.
pub(super) const RAISED: &str = "raised: ";

/// Adds functions, filters and printing rules to `env`.
pub(super) fn install(env: &mut Environment<'_>, now: Option<i64>) {
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(values::print);
    env.add_filter("tojson", values::tojson);
    env.add_filter("string", |state: &State, value: Value| values::to_text(state, &value));
    env.add_function("raise_exception", |state: &State, message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", values::to_text(state, &message)?)))
    });
    env.add_function("strftime_now", move |format: &str| {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        strftime(format, now.unwrap_or_else(clock))
    });
}

/// A JSON value for the template engine. The caller bounds the depth.
pub(super) fn from_json(value: Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.into_iter().map(from_json).collect(),
        Json::Object(fields) => Value::from_pairs(fields.into_iter().map(|(key, value)| (key, from_json(value)))),
    }
}

/// Takes out the `{% generation %}` blocks that mark answers for training; their contents stay.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}").map(|end| end + 2) else {
            out.push_str(tag);
            return out;
        };
        let inner = &tag[2..end];
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let instead = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str("{%");
        match instead {
            Some(instead) => out.push_str(&inner.replacen(word, instead, 1)),
            None => out.push_str(inner),
        }
        out.push_str("%}");
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/// The directives of Python's `strftime` that templates use, in UTC. Unknown ones stay as they are.
fn strftime(format: &str, unix_seconds: i64) -> String {
    let days = unix_seconds.div_euclid(86_400);
    let second = unix_seconds.rem_euclid(86_400);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let plain = directive == Some('-');
        if plain {
            directive = chars.next();
        }
        let mut number = |value: i64, width: usize| {
            let width = if plain { 1 } else { width };
            out.push_str(&format!("{value:0width$}"));
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('j') => number(day_of_year, 3),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&strftime("%Y-%m-%d", unix_seconds)),
            Some('T') => out.push_str(&strftime("%H:%M:%S", unix_seconds)),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Days since 1970-01-01 of a date; years begin in March so that the leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(strftime("%d %b %Y %A %j", 0), "01 Jan 1970 Thursday 001");
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S", 1_709_210_096), "2024-02-29 12:34:56");
        assert_eq!(strftime("%-d %B %y, %I %p %% %q %", 4_102_444_799), "31 December 99, 11 PM % %q %");
    }

    #[test]
    fn generation_blocks_vanish() {
        let source = "a{%- generation -%}b{% endgeneration %}c{% if generation %}d{% endif %}{% x";
        assert_eq!(without_generation_blocks(source), "a{%- if true -%}b{% endif %}c{% if generation %}d{% endif %}{% x");
    }
}
