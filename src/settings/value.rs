//! Converts the text of a setting to its value.

use baton_broker::{ChunkPlace, Database};
use baton_gpu_worker::{FilesChoice, NetworkChoice, SandboxChoice, gpu::GpuMode};
use baton_protocol::{Priority, address::BrokerAddress};
use baton_transport::TransportChoice;
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// What a value may be in the configuration file, besides a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A number or a truth value.
    Plain,
    List,
    /// One section or several.
    Sections,
}

impl Shape {
    pub(super) fn fits(self, value: &toml::Value) -> bool {
        match self {
            Self::Plain => !value.is_array() && !value.is_table(),
            Self::List => !value.is_table(),
            Self::Sections => true,
        }
    }
}

/// A value that is written as text in flags, in the environment and in the configuration file.
pub(crate) trait Value: Sized {
    /// What the error message for a wrong text says after "expected".
    const EXPECTED: &'static str;
    const SHAPE: Shape = Shape::Plain;

    fn parse(text: &str) -> Option<Self>;

    /// The same for this particular wrong text.
    fn expected_instead_of(_wrong: &str) -> &'static str {
        Self::EXPECTED
    }

    /// On the command line, a path may be relative to the current folder.
    fn parse_flag(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    /// # Errors
    /// If the text is not valid; the message says what is expected.
    fn from_text(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("expected {}", Self::expected_instead_of(text)))
    }
}

impl Value for String {
    const EXPECTED: &'static str = "some text";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "1" | "on" | "yes" => Some(true),
            "false" | "0" | "off" | "no" => Some(false),
            _ => None,
        }
    }
}

impl Value for SocketAddr {
    const EXPECTED: &'static str = "an address and a port, such as 127.0.0.1:8471";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Value for TransportChoice {
    const EXPECTED: &'static str = "auto or http";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "http" => Some(Self::Http),
            _ => None,
        }
    }
}

impl Value for Priority {
    const EXPECTED: &'static str = "normal or low";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "normal" => Some(Self::Normal),
            "low" => Some(Self::Low),
            _ => None,
        }
    }
}

impl Value for FilesChoice {
    const EXPECTED: &'static str = "auto, mirror or copy";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "mirror" => Some(Self::Mirror),
            "copy" => Some(Self::Copy),
            _ => None,
        }
    }
}

impl Value for SandboxChoice {
    const EXPECTED: &'static str = "bubblewrap, landlock or none";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "bubblewrap" => Some(Self::Bubblewrap),
            "landlock" => Some(Self::Landlock),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

impl Value for NetworkChoice {
    const EXPECTED: &'static str = "none, egress or host";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "egress" => Some(Self::Egress),
            "host" => Some(Self::Host),
            _ => None,
        }
    }
}

impl Value for GpuMode {
    const EXPECTED: &'static str = "timeshare, mps, mig, exclusive or open";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "timeshare" => Some(Self::Timeshare),
            "mps" => Some(Self::Mps),
            "mig" => Some(Self::Mig),
            "exclusive" => Some(Self::Exclusive),
            "open" => Some(Self::Open),
            _ => None,
        }
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "a whole number, at least 1";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number > 0)
    }
}

impl Value for PathBuf {
    const EXPECTED: &'static str = "an absolute path, or one that begins with ~/";

    fn parse(text: &str) -> Option<Self> {
        let path = match text.strip_prefix("~/") {
            Some(rest) => std::env::home_dir()?.join(rest),
            None => Self::from(text),
        };
        path.is_absolute().then_some(path)
    }

    fn parse_flag(text: &str) -> Option<Self> {
        std::path::absolute(text).ok()
    }
}

impl Value for Database {
    const EXPECTED: &'static str = "an absolute path or postgres://USER@HOST/DATABASE";

    fn parse(text: &str) -> Option<Self> {
        match Self::named(text) {
            Self::Sqlite(path) if !path.is_absolute() => None,
            // The broker reports what is wrong with an address, without showing the password in it.
            database => Some(database),
        }
    }
}

impl Value for ChunkPlace {
    const EXPECTED: &'static str =
        "folder, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn expected_instead_of(wrong: &str) -> &'static str {
        match wrong.starts_with('/') || wrong.starts_with("file:") {
            true => {
                "folder, with the path in broker.chunks; notebooks and workers cannot use a shared folder directly (docs/guides/object-store.md says why)"
            }
            false => Self::EXPECTED,
        }
    }
}

impl Value for BrokerAddress {
    const EXPECTED: &'static str = "https://HOST:PORT, http://HOST:PORT or unix:/PATH";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Value for ListenAddress {
    const EXPECTED: &'static str = "ADDRESS:PORT or unix:/PATH";

    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("unix:") {
            Some(path) => PathBuf::parse(path).map(Self::Unix),
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

impl Value for Duration {
    const EXPECTED: &'static str = "a duration such as 500ms, 30s, 10m or 2h";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_unit(text)?;
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => 24 * 60 * 60 * 1000,
            _ => return None,
        };
        number.checked_mul(milliseconds).map(Self::from_millis)
    }
}

/// An amount of memory or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
}

impl Value for Size {
    const EXPECTED: &'static str = "a size such as 500MB, 64GiB or 2TB";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_unit(text)?;
        let unit: u64 = match unit {
            "B" => 1,
            "kB" => 1000,
            "MB" => 1000 * 1000,
            "GB" => 1000 * 1000 * 1000,
            "TB" => 1000 * 1000 * 1000 * 1000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return None,
        };
        number.checked_mul(unit).map(|bytes| Self { bytes })
    }
}

/// A limit that lets something run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeAboveZero {
    pub(crate) bytes: u64,
}

impl Value for SizeAboveZero {
    const EXPECTED: &'static str = Size::EXPECTED;

    fn parse(text: &str) -> Option<Self> {
        let Size { bytes } = Size::parse(text)?;
        (bytes > 0).then_some(Self { bytes })
    }

    fn expected_instead_of(wrong: &str) -> &'static str {
        match Size::parse(wrong) {
            Some(_) => "a size above 0",
            None => Self::EXPECTED,
        }
    }
}

/// An omitted setting or an empty text means `None`.
impl<Inner: Value> Value for Option<Inner> {
    const EXPECTED: &'static str = Inner::EXPECTED;
    const SHAPE: Shape = Inner::SHAPE;

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(None);
        }
        Inner::parse(text).map(Some)
    }

    fn expected_instead_of(wrong: &str) -> &'static str {
        Inner::expected_instead_of(wrong)
    }

    fn parse_flag(text: &str) -> Option<Self> {
        Inner::parse_flag(text).map(Some)
    }
}

/// `64 GiB` and `64GiB` are the same.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number = u64::from_str(&text[..digits]).ok()?;
    Some((number, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<V: Value + std::fmt::Debug + PartialEq>(text: &str, expected: V) {
        assert_eq!(V::parse(text), Some(expected), "{text:?}");
    }

    #[track_caller]
    fn refuse<V: Value>(text: &str) {
        assert!(V::parse(text).is_none(), "{text:?}");
    }

    #[test]
    fn durations() {
        check("500ms", Duration::from_millis(500));
        check("30 s", Duration::from_secs(30));
        check("10m", Duration::from_secs(600));
        check("2h", Duration::from_secs(7200));
        refuse::<Duration>("10");
        refuse::<Duration>("m");
        refuse::<Duration>("-1s");
        refuse::<Duration>("99999999999999999999d");
        refuse::<Duration>("9999999999999999d");
    }

    #[test]
    fn sizes() {
        check("64GiB", Size { bytes: 64 << 30 });
        check("5 MB", Size { bytes: 5_000_000 });
        refuse::<Size>("5");
        refuse::<Size>("5 apples");
        refuse::<Size>("20000000000 GiB");
    }

    #[test]
    fn addresses_and_paths() {
        let port = SocketAddr::from(([127, 0, 0, 1], 0));
        check("127.0.0.1:0", ListenAddress::Tcp(port));
        check("unix:/a/b", ListenAddress::Unix("/a/b".into()));
        refuse::<ListenAddress>("unix:a");
        refuse::<ListenAddress>("8470");
        refuse::<PathBuf>("relative/path");
        check("/a/b.db", Database::Sqlite("/a/b.db".into()));
        let server = "postgres://ada@db.example/baton";
        check(server, Database::named(server));
        refuse::<Database>("mysql://db.example/baton");
        check("folder", ChunkPlace::Folder);
        let shown = ChunkPlace::parse("s3://class/baton/").map(|place| place.to_string());
        assert_eq!(shown.as_deref(), Some("s3://class/baton"));
        for address in ["az://class/baton", "gs://my.class"] {
            let place = ChunkPlace::parse(address);
            assert_eq!(
                place.map(|place| place.to_string()).as_deref(),
                Some(address)
            );
        }
        for shared in ["file:///shared/chunks", "/shared/chunks"] {
            let message = ChunkPlace::from_text(shared).err().unwrap_or_default();
            assert!(message.contains("the path in broker.chunks"), "{message}");
        }
        for wrong in [
            "file:///shared",
            "az:/a",
            "gs://",
            "s3://",
            "s3:///a",
            "s3://a/../b",
            "s3://a//b",
            "s3://a b",
            "https://a",
        ] {
            refuse::<ChunkPlace>(wrong);
        }
        check("", None::<PathBuf>);
        check("/a", Some(Some(PathBuf::from("/a"))));
    }

    #[test]
    fn switches_and_numbers() {
        check("true", true);
        check("off", false);
        refuse::<bool>("maybe");
        check("3", 3_u32);
        refuse::<u32>("0");
        refuse::<u32>("-1");
    }
}
