//! The token for a broker, and the token that was exchanged for it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// A secret, which is never shown.
#[derive(Clone)]
pub struct Token {
    text: String,
    /// The token from the last exchange, if this one must not be part of every request.
    exchanged: Option<Arc<Exchanged>>,
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Token {}

impl Token {
    /// Ignores surrounding white space, such as the line end in a file.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.trim().to_owned(),
            exchanged: None,
        }
    }

    /// The token of a JupyterHub notebook server. It also opens that server, so the broker sees it
    /// only to exchange it for another.
    #[must_use]
    pub fn of_notebook_server(text: &str) -> Self {
        Self {
            exchanged: Some(Arc::default()),
            ..Self::new(text)
        }
    }

    /// A mark of these bytes for one purpose: the same for the same token. Without the token the
    /// bytes cannot be derived from it.
    #[must_use]
    pub fn mark(&self, purpose: &str, bytes: &[u8]) -> [u8; 16] {
        let key = blake3::derive_key(purpose, self.text.as_bytes());
        let mut mark = [0; 16];
        mark.copy_from_slice(&blake3::keyed_hash(&key, bytes).as_bytes()[..16]);
        mark
    }

    /// `None`: this token is sent unchanged.
    pub(crate) fn exchanged(&self) -> Option<&Exchanged> {
        self.exchanged.as_deref()
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("hidden")
    }
}

/// The result of the last exchange. Not `Debug`: it holds a token.
#[derive(Default)]
pub(crate) struct Exchanged(Mutex<Option<Given>>);

#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) token: Token,
    /// When to ask for a new token, while this one is still valid. On the system clock, which goes
    /// on while the machine sleeps.
    pub(crate) renewed: SystemTime,
    pub(crate) expires: SystemTime,
}

impl Exchanged {
    pub(crate) fn given(&self) -> Option<Given> {
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.clone()
    }

    pub(crate) fn set(&self, new: Option<Given>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_needs_the_token() {
        let mark = |token, purpose, bytes: &[u8]| Token::new(token).mark(purpose, bytes);
        let one = mark("a", "test", b"x = 1");
        assert_eq!(one, mark("a", "test", b"x = 1"));
        for other in [
            mark("b", "test", b"x = 1"),
            mark("a", "other", b"x = 1"),
            mark("a", "test", b"x = 2"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::new("  s3cret\n");
        assert_eq!(format!("{token:?}"), "hidden");
        assert_eq!(token.bearer(), "Bearer s3cret");
    }
}
