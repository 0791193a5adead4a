//! One file for each message. Today's code reads it, and writes the same bytes.
//!
//! `BATON_WRITE_GOLDEN=1` writes missing files. Files are never edited: a message whose bytes
//! change needs another protocol version and a new file.
#![allow(clippy::unwrap_used)]

mod broker;
mod files;
mod memory;
mod samples;
mod shim;

use baton_protocol::{decode, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::BTreeSet, fmt::Debug, fs, path::PathBuf};

/// `name` has one arm for each variant, so a new variant does not compile without a name, and
/// `samples` must include it.
fn check<Message: Serialize + DeserializeOwned + PartialEq + Debug>(
    kind: &str,
    samples: &[Message],
    name: impl Fn(&Message) -> &'static str,
    names: &[&str],
) {
    for message in samples {
        let path = folder().join(format!("{kind}.{}.msgpack", name(message)));
        if !path.exists() && std::env::var_os("BATON_WRITE_GOLDEN").is_some() {
            fs::write(&path, encode(message)).unwrap();
        }
        let golden = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let read: Message = decode(&golden).unwrap();
        assert_eq!(&read, message, "{}", path.display());
        assert_eq!(
            encode(message),
            golden,
            "{} has other bytes",
            path.display()
        );
    }
    let sampled: BTreeSet<&str> = samples.iter().map(name).collect();
    let all: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(sampled, all, "a variant of {kind} has no sample");
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Declares a test for an enum and its variants.
macro_rules! golden {
    ($test:ident, $kind:literal, $message:ident, $samples:expr, { $($pattern:pat => $name:literal),+ $(,)? }) => {
        #[test]
        fn $test() {
            crate::check(
                $kind,
                &$samples,
                |message: &$message| match message { $($pattern => $name),+ },
                &[$($name),+],
            );
        }
    };
}
pub(crate) use golden;

/// Fields that a later version adds do no harm.
#[test]
fn unknown_fields_are_ignored() {
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Later {
        Cancel {
            job: baton_protocol::JobId,
            why: &'static str,
        },
    }
    let job = samples::job();
    let later = encode(&Later::Cancel { job, why: "mood" });
    let read: baton_protocol::proxy::FromProxy = decode(&later).unwrap();
    assert_eq!(read, baton_protocol::proxy::FromProxy::Cancel { job });
}
