//! How the broker recognizes a notebook and its cells.

use baton_protocol::CellKey;
use baton_transport::Token;

use super::link::Status;

pub(super) struct Naming {
    /// For people to read.
    pub(super) notebook: String,
    own_secret: Token,
}

impl Naming {
    pub(super) fn new() -> Self {
        Self {
            notebook: notebook_name(),
            own_secret: Token::new(&uuid::Uuid::new_v4().to_string()),
        }
    }

    /// Without a token, runs of the same cell are recognized only until the kernel ends.
    pub(super) fn cell_key(&self, code: &str, status: &Status) -> CellKey {
        let token = match status {
            Status::Up(transports) => transports.token.as_ref(),
            _ => None,
        };
        let token = token.unwrap_or(&self.own_secret);
        CellKey(token.mark("baton cell", code.trim().as_bytes()))
    }
}

/// Returns the notebook's file name: Jupyter Server gives the kernel its path.
fn notebook_name() -> String {
    let path = std::env::var("JPY_SESSION_NAME").unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.is_empty() {
        true => "notebook".to_owned(),
        false => name.to_owned(),
    }
}
