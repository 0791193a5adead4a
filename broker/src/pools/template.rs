//! The template of a command: words that may contain `{…}`. It is never passed to a shell.
//!
//! **Invariant:** pure.

use anyhow::bail;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<String>);

/// This word is replaced by several arguments.
const ARGUMENTS: &str = "{arguments}";

impl Template {
    /// Splits the text into words at blanks; quotation marks preserve blanks. `known`: the names
    /// allowed between braces.
    pub(crate) fn parse(text: &str, known: &[&str]) -> anyhow::Result<Self> {
        let words = split(text)?;
        anyhow::ensure!(!words.is_empty(), "The command is empty");
        for word in &words {
            for part in word.split('{').skip(1) {
                let name = part.split_once('}').map(|(name, _)| name);
                match name {
                    Some(name) if known.contains(&name) => {}
                    Some(name) => bail!("{{{name}}} is unknown; known are {}", listed(known)),
                    None => bail!("{word:?} lacks a closing brace"),
                }
            }
        }
        Ok(Self(words))
    }

    /// Fills in the values by name. A word `{arguments}` is replaced by `arguments`.
    pub(crate) fn arguments(&self, values: &[(&str, &str)], arguments: &[String]) -> Vec<String> {
        let mut filled = Vec::with_capacity(self.0.len());
        for word in &self.0 {
            match word.as_str() {
                ARGUMENTS => filled.extend_from_slice(arguments),
                word => filled.push(fill(word, values)),
            }
        }
        filled
    }
}

/// Braces inside a value are not replaced again.
fn fill(word: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        let value = values.iter().find(|(known, _)| *known == name);
        filled.push_str(value.map_or("", |(_, value)| value));
        rest = behind;
    }
    filled + rest
}

fn split(text: &str) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    anyhow::ensure!(quote.is_none(), "A quotation mark is not closed");
    words.extend(word);
    Ok(words)
}

fn listed(known: &[&str]) -> String {
    let known = known.iter().map(|name| format!("{{{name}}}"));
    match known.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        names => names,
    }
}

/// Quotes a word for a POSIX shell, because some batch systems pass a command to one.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%+,".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_by_blanks_and_values_are_not_read_again() {
        let template = Template::parse(
            "a 'b c' --d=\"{id} {id}\" {arguments}",
            &["id", "arguments"],
        );
        let arguments = ["{id}".to_owned(), "$(x)".to_owned()];
        assert_eq!(
            template
                .unwrap()
                .arguments(&[("id", "{id}; rm")], &arguments),
            ["a", "b c", "--d={id}; rm {id}; rm", "{id}", "$(x)"]
        );
        assert!(Template::parse("a 'b", &[]).is_err());
        assert!(Template::parse("a {b", &["b"]).is_err());
        assert!(Template::parse(" ", &[]).is_err());
    }

    #[test]
    fn a_word_is_quoted_for_a_shell() {
        assert_eq!(quoted("--time=2h"), "--time=2h");
        assert_eq!(quoted("it's $x"), r"'it'\''s $x'");
    }
}
