//! Identifiers. All of them sort by the time at which they were made, except where noted.

use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            #[must_use]
            pub fn random() -> Self {
                Self(Uuid::now_v7())
            }

            /// The last digits, as in messages, tables and pages. The first ones are a time, so many ids share them.
            #[must_use]
            pub fn short(self) -> String {
                self.to_string().split_off(24)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.simple().fmt(formatter)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.0.simple())
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                text.parse().map(Self)
            }
        }
    };
}

id! {
    /// One run of one `%%gpu` cell. Made by the proxy before the first send, so that a repeated
    /// send makes only one job.
    JobId
}
id! {
    /// Several jobs that one command made, such as the same notebook with different parameters.
    GroupId
}
id! {
    /// One life of a notebook kernel: a restarted kernel is another notebook to the broker.
    NotebookId
}
id! {
    /// One life of the object table that a notebook kernel and its session share.
    TableId
}
id! {
    /// One life of a worker process.
    WorkerId
}

/// Numbers the calls on one shim's socket, so that a late answer can be recognized.
pub type CallId = u64;

/// Grows with every assignment. A worker that holds a smaller number is out of date, and its
/// messages are ignored.
pub type FencingNumber = u64;

/// Names one file of one proxy. Anyone who knows the key may read the file, so it is random and never logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeldKey(pub Uuid);

impl HeldKey {
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Debug for HeldKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HeldKey(hidden)")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_of_an_id_is_its_last_digits() {
        let job: JobId = "0196b3f0a1c27d3e8f00112233445566".parse().unwrap();
        assert_eq!(job.short(), "33445566");
        assert!(job.to_string().ends_with(&job.short()));
    }
}
