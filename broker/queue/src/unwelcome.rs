//! Which messages of a notebook the broker refuses.

use baton_protocol::{
    Bound, JobKind, Submission, encoded_bytes,
    proxy::FromProxy,
    wording::{queued_noun, run_again},
};

/// The longest code of a cell, in bytes. No person writes that much.
const LONGEST_CODE: usize = 1 << 20;
/// The largest size of everything else in a cell: paths, versions, names.
const LONGEST_METADATA: usize = 64 << 10;
/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwelcome {
    /// The chunks belong to another person or have another size. A worker may have such chunks.
    Foreign,
    Code {
        bytes: usize,
    },
    Metadata,
    /// No worker accepts a message of this size.
    Message {
        bytes: usize,
    },
    Quota {
        would_be_bytes: u64,
        limit_bytes: u64,
    },
}

impl Unwelcome {
    pub(crate) fn sentence(&self, kind: JobKind) -> String {
        let noun = kind.noun();
        match self {
            Self::Foreign => format!("The broker does not have all of this {noun}'s variables"),
            Self::Code { bytes } => format!(
                "The code of this {noun} takes {}; the limit is {}",
                size(*bytes),
                size(LONGEST_CODE)
            ),
            Self::Metadata => format!("The paths and names of this {noun} are too long"),
            Self::Message { bytes } => format!(
                "This message of the {noun} takes {}; the limit is {}",
                size(*bytes),
                size(Bound::MESSAGE.bytes)
            ),
            Self::Quota {
                would_be_bytes,
                limit_bytes,
            } => format!(
                "Your {}s and variables take {} on the broker; your limit is {}",
                queued_noun(kind),
                baton_humanize::bytes(*would_be_bytes),
                baton_humanize::bytes(*limit_bytes)
            ),
        }
    }

    pub(crate) fn hint(&self, kind: JobKind) -> String {
        let noun = kind.noun();
        match self {
            Self::Foreign => run_again(kind),
            Self::Code { .. } => {
                format!("put data into a file beside the notebook and read it in the {noun}")
            }
            Self::Metadata => "move the notebook to a folder with a shorter path".to_owned(),
            Self::Message { .. } => format!("use fewer variables in the {noun}"),
            Self::Quota { .. } => {
                let queued = queued_noun(kind);
                format!(
                    "wait until your other {queued}s have ended, or shut down notebooks that you do not use"
                )
            }
        }
    }
}

fn size(bytes: usize) -> String {
    baton_humanize::bytes(bytes as u64)
}

/// Whether workers accept the message as the broker encodes it. A peer may have used a shorter encoding:
/// readers accept fields without names.
pub fn fits(message: &FromProxy) -> Result<(), Unwelcome> {
    let bytes = encoded_bytes(message);
    match bytes > Bound::MESSAGE.bytes {
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
