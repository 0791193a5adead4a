//! Which messages of a notebook the broker refuses.

use baton_protocol::{Submission, encoded_bytes, proxy::FromProxy};

/// The longest code of a cell, in bytes. No person writes that much.
const LONGEST_CODE: usize = 1 << 20;
/// The largest size of everything else in a cell: paths, versions, names.
const LONGEST_METADATA: usize = 64 << 10;
/// The largest message of a peer, in bytes. The manifest of a very large state has a few megabytes. The
/// limit is slightly below that of the peers, because the broker forwards a message inside a larger one.
pub const LARGEST_MESSAGE: usize = 60 << 20;

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// The chunks belong to another person or have another size. A worker may have such chunks.
    #[error("The broker does not have all of this cell's variables")]
    Foreign,
    #[error(
        "The code of this cell takes {}; the limit is {}",
        baton_humanize::bytes(*bytes as u64), baton_humanize::bytes(LONGEST_CODE as u64)
    )]
    Code { bytes: usize },
    #[error("The paths and names of this cell are too long")]
    Metadata,
    /// No worker accepts a message of this size.
    #[error(
        "This message of the cell takes {}; the limit is {}",
        baton_humanize::bytes(*bytes as u64), baton_humanize::bytes(LARGEST_MESSAGE as u64)
    )]
    Message { bytes: usize },
    #[error(
        "Your cells and variables take {} on the broker; your limit is {}",
        baton_humanize::bytes(*would_be_bytes), baton_humanize::bytes(*limit_bytes)
    )]
    Quota {
        would_be_bytes: u64,
        limit_bytes: u64,
    },
}

impl Unwelcome {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Foreign => "run the cell again",
            Self::Code { .. } => "put data into a file beside the notebook and read it in the cell",
            Self::Metadata => "move the notebook to a folder with a shorter path",
            Self::Message { .. } => "use fewer variables in the cell",
            Self::Quota { .. } => {
                "wait until your other cells have ended, or shut down notebooks that you do not use"
            }
        }
    }
}

/// Whether workers accept the message as the broker encodes it. A peer may have used a shorter encoding:
/// readers accept fields without names.
pub fn fits(message: &FromProxy) -> Result<(), Unwelcome> {
    let bytes = encoded_bytes(message);
    match bytes > LARGEST_MESSAGE {
        true => Err(Unwelcome::Message { bytes }),
        false => Ok(()),
    }
}

/// The bytes that the broker stores of it, without its state.
pub fn measured(submission: &Submission) -> Result<usize, Unwelcome> {
    let code_bytes = submission.cell.code.len();
    if code_bytes > LONGEST_CODE {
        return Err(Unwelcome::Code { bytes: code_bytes });
    }
    let cell_bytes = encoded_bytes(&submission.cell);
    match cell_bytes.saturating_sub(code_bytes) > LONGEST_METADATA {
        true => Err(Unwelcome::Metadata),
        false => Ok(cell_bytes),
    }
}
