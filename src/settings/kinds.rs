//! Kinds of values that only one or two settings have: addresses, patterns, lists.

use super::{Value, value::Shape};
use baton_gpu_worker::{EnvironmentConfig, EnvironmentSource};
use baton_protocol::is_environment_name;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A path that begins with a slash and ends without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UrlPrefix(pub(crate) String);

impl Value for UrlPrefix {
    const EXPECTED: &'static str = "a path such as /services/baton";

    fn parse(text: &str) -> Option<Self> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.~".contains(letter);
        let path = text.strip_suffix('/').unwrap_or(text);
        let valid = path.starts_with('/') && !path.contains("//") && path.chars().all(plain);
        valid.then(|| Self(path.to_owned()))
    }
}

/// An address to which the broker sends requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpUrl(pub(crate) String);

impl Value for HttpUrl {
    const EXPECTED: &'static str = "an address such as http://127.0.0.1:8081/hub/api";

    fn parse(text: &str) -> Option<Self> {
        let host = ["https://", "http://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))?;
        let valid = !host.is_empty() && !host.starts_with('/') && is_plain(host);
        valid.then(|| Self(text.to_owned()))
    }
}

/// An address to which others connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort(pub(crate) String);

impl Value for HostPort {
    const EXPECTED: &'static str = "HOST:PORT, such as broker.example.edu:8470";

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let valid = !host.is_empty() && !host.contains('/') && is_plain(host);
        port.parse::<u16>().ok()?;
        valid.then(|| Self(text.to_owned()))
    }
}

/// An address for people's browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicUrl(pub(crate) String);

impl Value for PublicUrl {
    const EXPECTED: &'static str = "an address such as https://hub.example.edu/hub/api";

    fn parse(text: &str) -> Option<Self> {
        let known = ["http://", "https://", "/"];
        let rest = known.iter().find_map(|start| text.strip_prefix(start))?;
        let valid = !rest.starts_with('/') && is_plain(rest);
        valid.then(|| Self(text.to_owned()))
    }
}

fn is_plain(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_graphic())
}

/// The pattern for the names of courses' groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupPattern(pub(crate) String);

impl Value for GroupPattern {
    const EXPECTED: &'static str = "a name with {course} in it";

    fn parse(text: &str) -> Option<Self> {
        (text.matches("{course}").count() == 1).then(|| Self(text.to_owned()))
    }
}

/// Names of environment variables. A `*` at the end stands for any ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariableNames(pub(crate) Vec<String>);

impl Value for VariableNames {
    const EXPECTED: &'static str = "a list such as [\"HTTPS_PROXY\", \"COURSE_*\"]";
    const SHAPE: Shape = Shape::List;

    /// As in the configuration file, or separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let names = listed(text);
        let is_name = |name: &&str| {
            let name = name.strip_suffix('*').unwrap_or(name);
            let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            !name.is_empty() && name.chars().all(plain)
        };
        let known = names.iter().all(is_name);
        known.then(|| Self(names.into_iter().map(str::to_owned).collect()))
    }
}

/// Names of Python modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modules(pub(crate) Vec<String>);

impl Value for Modules {
    const EXPECTED: &'static str = "a list of Python modules such as [\"torch\"]";
    const SHAPE: Shape = Shape::List;

    /// As in the configuration file, or separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let names = listed(text);
        let is_part = |part: &str| {
            let plain = |letter: char| letter.is_alphanumeric() || letter == '_';
            !part.is_empty() && part.chars().all(plain)
        };
        let known = names.iter().all(|name| name.split('.').all(is_part));
        known.then(|| Self(names.into_iter().map(str::to_owned).collect()))
    }
}

/// Absolute paths on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths(pub(crate) Vec<PathBuf>);

impl Value for Paths {
    const EXPECTED: &'static str = "a list of absolute paths such as [\"/data/course\"]";
    const SHAPE: Shape = Shape::List;

    /// As in the configuration file, or separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let paths = listed(text).into_iter();
        let paths: Option<Vec<_>> = paths.map(PathBuf::parse).collect();
        paths.map(Self)
    }
}

/// An administrator's labels for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Labels(pub(crate) Vec<String>);

impl Value for Labels {
    const EXPECTED: &'static str = "a list of names such as [\"a100\", \"room-3\"]";
    const SHAPE: Shape = Shape::List;

    /// As in the configuration file, or separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let labels: Vec<String> = listed(text).into_iter().map(str::to_owned).collect();
        let is_plain = |label: &String| !label.contains(char::is_control) && label.len() <= 100;
        labels.iter().all(is_plain).then_some(Self(labels))
    }
}

/// The sections `[[pool]]`, as an array of TOML; the broker reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolList(pub(crate) String);

impl Value for PoolList {
    const EXPECTED: &'static str = "sections [[pool]]";
    const SHAPE: Shape = Shape::Sections;

    fn parse(text: &str) -> Option<Self> {
        let list: toml::Table = toml::from_str(&format!("pool = {text}")).ok()?;
        list.get("pool")?.is_array().then(|| Self(text.to_owned()))
    }
}

/// The sections `[environment.NAME]`, as a table of TOML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnvironmentList(pub(crate) Vec<EnvironmentConfig>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentSection {
    lock: Option<PathBuf>,
    python: Option<PathBuf>,
    image: Option<PathBuf>,
}

impl Value for EnvironmentList {
    const EXPECTED: &'static str = "sections [environment.NAME], each with lock, python or image and an absolute path, or with image and the python inside";
    const SHAPE: Shape = Shape::Sections;

    fn parse(text: &str) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Sections {
            environment: BTreeMap<String, EnvironmentSection>,
        }
        let sections: Sections = toml::from_str(&format!("environment = {text}")).ok()?;
        let config = |(name, section): (String, EnvironmentSection)| {
            let paths = [&section.lock, &section.python, &section.image];
            let are_absolute = paths.into_iter().flatten().all(|path| path.is_absolute());
            let source = match (section.lock, section.python, section.image) {
                (Some(lock), None, None) => EnvironmentSource::Lock(lock),
                (None, Some(python), None) => EnvironmentSource::Python(python),
                (None, python, Some(root)) => EnvironmentSource::Image { root, python },
                _ => return None,
            };
            let valid = is_environment_name(&name) && are_absolute;
            valid.then_some(EnvironmentConfig { name, source })
        };
        let configs = sections.environment.into_iter().map(config);
        configs.collect::<Option<_>>().map(Self)
    }
}

/// When a worker's time on its machine is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeavesAt {
    /// This long after its start.
    After(Duration),
    At(SystemTime),
}

impl LeavesAt {
    /// The end for a worker that starts now.
    pub(crate) fn time(self) -> SystemTime {
        match self {
            Self::After(duration) => SystemTime::now() + duration,
            Self::At(time) => time,
        }
    }
}

impl Value for LeavesAt {
    const EXPECTED: &'static str =
        "a time such as 2026-03-02T18:00+01:00, seconds since 1970, or a duration such as 2h";

    fn parse(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse() {
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
            return time.map(Self::At);
        }
        if let Some(duration) = Duration::parse(text) {
            return Some(Self::After(duration));
        }
        let timestamp: jiff::Timestamp = text.parse().ok()?;
        Some(Self::At(timestamp.into()))
    }
}

/// The elements of a list with or without brackets, separated by commas.
fn listed(text: &str) -> Vec<&str> {
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let words = inner.unwrap_or(text).split(',');
    let words = words.map(|word| word.trim().trim_matches('"'));
    words.filter(|word| !word.is_empty()).collect()
}

/// Where to serve the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dashboard {
    Off,
    On(std::net::SocketAddr),
}

impl Value for Dashboard {
    const EXPECTED: &'static str = "ADDRESS:PORT of this machine or off";

    fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::Off);
        }
        let address: std::net::SocketAddr = text.parse().ok()?;
        address.ip().is_loopback().then_some(Self::On(address))
    }
}
