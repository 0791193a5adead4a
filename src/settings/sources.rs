//! The sources of a setting's text: flag, environment, configuration file, default, in this order.

use super::{Flags, ProcessEnvironment, table::Setting};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

const SYSTEM_CONFIGURATION: &str = "/etc/baton/config.toml";

/// Names a configuration file, which is then the only one that is read.
pub(crate) const CONFIGURATION_VARIABLE: &str = "BATON_CONFIG";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SettingsError {
    #[error("Failed to read the configuration file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not valid TOML", path.display())]
    Syntax {
        path: PathBuf,
        #[source]
        source: toml::de::Error,
    },
    #[error("Unknown key {key} in {}\nhint: known are {known}", path.display())]
    UnknownKey {
        path: PathBuf,
        key: String,
        known: String,
    },
    #[error(
        "{key} is a secret and must not be in {}\n\
         hint: put it into its own file, and name the file with {key}_file", path.display()
    )]
    Secret { path: PathBuf, key: &'static str },
    #[error("Wrong value for {key} from {origin}: expected {expected}, found {found:?}")]
    Value {
        key: &'static str,
        origin: Origin,
        expected: &'static str,
        found: String,
    },
    #[error("Other users can read the token in {}\nhint: chmod 600 {}", path.display(), path.display())]
    OpenTokenFile { path: PathBuf },
    #[error(
        "There is no token in {}\nhint: `baton people add NAME` prints one for a person, and with --worker for a worker",
        path.display()
    )]
    EmptyTokenFile { path: PathBuf },
    #[error(
        "The token in {place} is not valid: it has several lines, or characters that no token has\n\
         hint: it must be only the token, as `baton people add NAME` prints it"
    )]
    Token { place: String },
    #[error("Failed to read the token from {}", path.display())]
    TokenFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("the command line"),
            Self::Environment(name) => formatter.write_str(name),
            Self::File(path) => write!(formatter, "{}", path.display()),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// The texts of all settings, by key.
pub(crate) struct Sources {
    process: ProcessEnvironment,
    flags: Flags,
    /// In order of precedence: the first file that has a key wins.
    files: Vec<(PathBuf, BTreeMap<String, String>)>,
}

impl Sources {
    pub(crate) fn gather(
        process: &ProcessEnvironment,
        flags: Flags,
        table: &[&Setting],
    ) -> Result<Self, SettingsError> {
        let mut files = Vec::new();
        if let Some(path) = process.variable(CONFIGURATION_VARIABLE) {
            let path = PathBuf::from(path);
            let text = fs::read_to_string(&path).map_err(|source| SettingsError::Read {
                path: path.clone(),
                source,
            })?;
            files.push(parse_file(path, &text, table)?);
        } else {
            for path in [
                process.user_configuration(),
                PathBuf::from(SYSTEM_CONFIGURATION),
            ] {
                if let Some(text) = read_optional(&path)? {
                    files.push(parse_file(path, &text, table)?);
                }
            }
        }
        Ok(Self {
            process: process.clone(),
            flags,
            files,
        })
    }

    /// The text of a setting and where it came from.
    pub(crate) fn text(&self, setting: &Setting) -> (String, Origin) {
        if let Some(text) = self.flags.get(setting.key) {
            return (text.clone(), Origin::Flag);
        }
        let variable = setting.variable();
        if let Some(text) = self.process.variable(&variable) {
            return (text.to_owned(), Origin::Environment(variable));
        }
        for (path, texts) in &self.files {
            if let Some(text) = texts.get(setting.key) {
                return (text.clone(), Origin::File(path.clone()));
            }
        }
        (setting.default.text(&self.process), Origin::Default)
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, SettingsError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn parse_file(
    path: PathBuf,
    text: &str,
    table: &[&Setting],
) -> Result<(PathBuf, BTreeMap<String, String>), SettingsError> {
    let document: toml::Table = match toml::from_str(text) {
        Ok(document) => document,
        Err(source) => return Err(SettingsError::Syntax { path, source }),
    };
    let mut texts = BTreeMap::new();
    for (key, value) in flatten("", document, table) {
        let Some(setting) = table.iter().find(|setting| setting.key == key) else {
            let known = neighbours(&key, table);
            return Err(SettingsError::UnknownKey { path, key, known });
        };
        if setting.secret {
            let key = setting.key;
            return Err(SettingsError::Secret { path, key });
        }
        if !setting.shape.fits(&value) {
            return Err(SettingsError::Value {
                key: setting.key,
                origin: Origin::File(path),
                expected: setting.expected,
                found: value.to_string(),
            });
        }
        texts.insert(key, text_of(&value));
    }
    Ok((path, texts))
}

/// Turns `[worker] slots = 2` into `worker.slots`. A section that is one setting stays whole.
fn flatten(before: &str, document: toml::Table, table: &[&Setting]) -> Vec<(String, toml::Value)> {
    let mut values = Vec::new();
    for (key, value) in document {
        let key = format!("{before}{key}");
        match value {
            toml::Value::Table(section) if table.iter().all(|setting| setting.key != key) => {
                values.extend(flatten(&format!("{key}."), section, table));
            }
            value => values.push((key, value)),
        }
    }
    values
}

fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The other keys of the same section.
fn neighbours(key: &str, table: &[&Setting]) -> String {
    let section = |key: &str| key.rsplit_once('.').map(|(section, _)| section.to_owned());
    let keys = table.iter().map(|setting| setting.key);
    let same: Vec<&str> = keys
        .clone()
        .filter(|known| section(known) == section(key))
        .collect();
    let known = if same.is_empty() {
        keys.collect()
    } else {
        same
    };
    known.join(", ")
}
