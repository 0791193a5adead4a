//! `-p name=value`: variables that a run gives its notebook.

use serde_json::Value;

/// A variable that a notebook gets before it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub value: Value,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a parameter\nhint: write name=value, such as -p epochs=5 or -p model=resnet18"
)]
pub struct InvalidParameter(String);

impl std::str::FromStr for Parameter {
    type Err = InvalidParameter;

    /// The value is JSON, or, where it is none, text.
    fn from_str(text: &str) -> Result<Self, InvalidParameter> {
        let parts = text.split_once('=').filter(|(name, _)| is_name(name));
        let (name, value) = parts.ok_or_else(|| InvalidParameter(text.to_owned()))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        let name = name.to_owned();
        Ok(Self { name, value })
    }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|c| c.is_alphabetic() || c == '_')
        && letters.all(|c| c.is_alphanumeric() || c == '_')
}

impl Parameter {
    /// An assignment, as Python.
    pub(crate) fn python(&self) -> String {
        format!("{} = {}", self.name, python(&self.value))
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_text(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(items) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", python_text(key), python(value))
            };
            let items: Vec<String> = items.iter().map(pair).collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

/// All escapes of JSON mean the same in Python.
pub(crate) fn python_text(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(text: &str, python: &str) {
        assert_eq!(text.parse::<Parameter>().unwrap().python(), python);
    }

    #[test]
    fn values_are_json_or_text() {
        check("epochs=5", "epochs = 5");
        check("rate=1e-3", "rate = 0.001");
        check(
            "big=123456789012345678901234567890",
            "big = 1.2345678901234568e+29",
        );
        check("name=resnet18", "name = \"resnet18\"");
        check("name=\"5\"", "name = \"5\"");
        check("path=/a=b", "path = \"/a=b\"");
        check("flags=[true, null]", "flags = [True, None]");
        check("of={\"a\": \"ü\\n\"}", "of = {\"a\": \"ü\\n\"}");
        check("nothing=", "nothing = \"\"");
        for wrong in ["epochs", "=5", "5a=1", "a b=1", "-x=1"] {
            assert!(wrong.parse::<Parameter>().is_err(), "{wrong}");
        }
    }
}
