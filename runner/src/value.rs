//! The value of a parameter: JSON whose numbers and order stay as they were written.
//!
//! In: a value of the command line. Out: the same value as Python and as JSON.

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use std::fmt::Formatter;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterValue {
    None,
    Bool(bool),
    /// As it was written: Python reads all numbers of JSON.
    Number(String),
    Text(String),
    List(Vec<Self>),
    Dict(Vec<(String, Self)>),
}

impl ParameterValue {
    /// Reads JSON or one of Python's `True`, `False` and `None`. Anything else is text.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text.trim() {
            "True" => Self::Bool(true),
            "False" => Self::Bool(false),
            "None" => Self::None,
            _ => Self::read_json(text).unwrap_or_else(|| Self::Text(text.to_owned())),
        }
    }

    pub(crate) fn read_json(text: &str) -> Option<Self> {
        // Unlike `RawValue`, `Value` limits the depth.
        serde_json::from_str::<Value>(text).ok()?;
        serde_json::from_str(text).ok()
    }

    /// The value as Python.
    pub(crate) fn python(&self) -> String {
        match self {
            Self::None => "None".to_owned(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Number(number) => number.clone(),
            Self::Text(text) => python_text(text),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::python).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Dict(items) => {
                let pair = |(key, value): &(String, Self)| {
                    format!("{}: {}", python_text(key), value.python())
                };
                let items: Vec<String> = items.iter().map(pair).collect();
                format!("{{{}}}", items.join(", "))
            }
        }
    }

    /// The value as JSON. An integer of more than 64 bits is a text, to keep its digits.
    #[must_use]
    pub fn json(&self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Number(number) => json_number(number),
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(Self::json).collect(),
            Self::Dict(items) => {
                let pairs = items.iter().map(|(key, value)| (key.clone(), value.json()));
                Value::Object(pairs.collect())
            }
        }
    }
}

/// `serde_json` itself may change the last digit of a number.
fn json_number(number: &str) -> Value {
    if let Ok(integer) = number.parse::<i64>() {
        return integer.into();
    }
    if let Ok(integer) = number.parse::<u64>() {
        return integer.into();
    }
    let is_integer = !number.contains(['.', 'e', 'E']);
    match number.parse::<f64>() {
        Ok(float) if !is_integer => float.into(),
        _ => number.into(),
    }
}

/// All JSON escapes mean the same in Python.
pub(crate) fn python_text(text: &str) -> String {
    Value::from(text).to_string()
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let value = match raw.as_bytes().first() {
            Some(b'n') => Ok(Self::None),
            Some(b't') => Ok(Self::Bool(true)),
            Some(b'f') => Ok(Self::Bool(false)),
            Some(b'"') => serde_json::from_str(raw).map(Self::Text),
            Some(b'[') => serde_json::from_str(raw).map(Self::List),
            Some(b'{') => serde_json::from_str(raw).map(|Pairs(pairs)| Self::Dict(pairs)),
            _ => Ok(Self::Number(raw.to_owned())),
        };
        value.map_err(D::Error::custom)
    }
}

/// The entries of an object in their order.
struct Pairs(Vec<(String, ParameterValue)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<Map: MapAccess<'de>>(self, mut map: Map) -> Result<Pairs, Map::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, python: &str, json: &str) {
        let value = ParameterValue::read(text);
        assert_eq!(value.python(), python);
        assert_eq!(value.json().to_string(), json);
    }

    #[test]
    fn values_stay_as_they_were_written() {
        check("1e-3", "1e-3", "0.001");
        check(
            "0.30000000000000004",
            "0.30000000000000004",
            "0.30000000000000004",
        );
        check(
            "122.416294033786585",
            "122.416294033786585",
            "122.41629403378658",
        );
        check(
            "18446744073709551615",
            "18446744073709551615",
            "18446744073709551615",
        );
        check(
            "123456789012345678901234567890",
            "123456789012345678901234567890",
            "\"123456789012345678901234567890\"",
        );
        check(
            r#"{"z": [1.50, {"b": 1, "a": null}], "\u00fc": "\/\ud83d\ude00\n"}"#,
            "{\"z\": [1.50, {\"b\": 1, \"a\": None}], \"ü\": \"/😀\\n\"}",
            "{\"z\":[1.5,{\"a\":null,\"b\":1}],\"ü\":\"/😀\\n\"}",
        );
        check(" [true, false] ", "[True, False]", "[true,false]");
    }

    #[test]
    fn pythons_constants_are_values() {
        check("True", "True", "true");
        check("False", "False", "false");
        check("None", "None", "null");
        check("\"None\"", "\"None\"", "\"None\"");
        check("Nothing", "\"Nothing\"", "\"Nothing\"");
    }

    #[test]
    fn a_value_that_is_too_deep_is_text() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(ParameterValue::read(&deep), ParameterValue::Text(deep));
    }
}
