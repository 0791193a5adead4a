//! A transaction as one text with all its values, which PostgreSQL accepts in one round trip.
//!
//! Each value is quoted and cast to its type, so none can be read as anything else.

use super::{Statement, Value};
use std::borrow::Cow;

/// With this server setting, a backslash in a text is an ordinary character, and only a quote ends the text.
pub(super) const PLAIN_TEXTS: &str = "standard_conforming_strings";

/// The text of a transaction, without `COMMIT`.
pub(super) fn transaction(statements: &[Statement]) -> String {
    let mut text = String::from("BEGIN");
    for statement in statements {
        text.push_str("; ");
        let mut parts = statement.sql.split('?');
        text.push_str(parts.next().unwrap_or_default());
        for (value, part) in statement.values.iter().zip(parts) {
            push(value, &mut text);
            text.push_str(part);
        }
    }
    text
}

/// PostgreSQL cannot store a zero character in a text. No honest name has one.
pub(super) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', ""))
    } else {
        Cow::Borrowed(text)
    }
}

fn push(value: &Value, text: &mut String) {
    let (quoted, kind) = match value {
        Value::Integer(integer) => (integer.map(|integer| integer.to_string()), "int8"),
        Value::Real(real) => (Some(real.to_string()), "float8"),
        Value::Text(words) => {
            let words = words.as_deref();
            (
                words.map(|words| storable(words).replace('\'', "''")),
                "text",
            )
        }
        Value::Bytes(bytes) => (bytes.as_deref().map(hex), "bytea"),
    };
    match quoted {
        Some(quoted) => {
            text.push('\'');
            text.push_str(&quoted);
            text.push('\'');
        }
        None => text.push_str("NULL"),
    }
    text.push_str("::");
    text.push_str(kind);
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}
