//! Connection files: the addresses of a kernel's five sockets, and the key that signs its messages.
//!
//! In: the JSON that a Jupyter client wrote. Out: endpoints, and the file for a kernel behind a relay.
//!
//! **Invariant:** unknown fields are kept, so that they reach the kernel.

use bytes::Bytes;
use serde_json::{Map, Value};
use std::{
    fmt,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    Shell,
    Iopub,
    Stdin,
    Control,
    Heartbeat,
}

impl Channel {
    pub const ALL: [Self; 5] = [
        Self::Shell,
        Self::Iopub,
        Self::Stdin,
        Self::Control,
        Self::Heartbeat,
    ];

    /// The name in the fields of a connection file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Iopub => "iopub",
            Self::Stdin => "stdin",
            Self::Control => "control",
            Self::Heartbeat => "hb",
        }
    }

    fn field(self) -> String {
        format!("{}_port", self.name())
    }
}

/// Where one socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `*` means every address, as in ZeroMQ.
    Tcp {
        host: String,
        port: u16,
    },
    Ipc(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => {
                write!(formatter, "tcp://[{host}]:{port}")
            }
            Self::Tcp { host, port } => write!(formatter, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(formatter, "ipc://{}", path.display()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    #[error("Failed to read the connection file {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("Failed to write the connection file {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a usable connection file")]
    Unusable {
        path: PathBuf,
        #[source]
        source: Box<Self>,
    },
    #[error("It is not a JSON object")]
    NotAnObject(#[source] Option<serde_json::Error>),
    #[error("It has no usable field {0:?}")]
    Field(String),
    #[error("It asks for the transport {0:?}; only tcp and ipc are supported")]
    Transport(String),
    #[error(
        "It asks for CurveZMQ encryption ({0}), which cannot pass through Baton\n\
         hint: set the client's transport encryption to \"disabled\" or \"auto\""
    )]
    Curve(String),
}

#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionFile {
    fields: Map<String, Value>,
}

impl fmt::Debug for ConnectionFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConnectionFile")
            .field("key", &"hidden")
            .finish_non_exhaustive()
    }
}

impl ConnectionFile {
    pub fn read(path: &Path) -> Result<Self, ConnectionError> {
        let text = std::fs::read(path).map_err(|source| ConnectionError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|source| ConnectionError::Unusable {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    pub fn parse(text: &[u8]) -> Result<Self, ConnectionError> {
        let document: Value = serde_json::from_slice(text)
            .map_err(|source| ConnectionError::NotAnObject(Some(source)))?;
        let Value::Object(fields) = document else {
            return Err(ConnectionError::NotAnObject(None));
        };
        let is_set = |value: &Value| !value.is_null() && value.as_str() != Some("");
        if let Some((name, _)) = fields
            .iter()
            .find(|(name, value)| name.starts_with("curve_") && is_set(value))
        {
            return Err(ConnectionError::Curve(name.clone()));
        }
        let connection = Self { fields };
        for channel in Channel::ALL {
            connection.endpoint(channel)?;
        }
        Ok(connection)
    }

    /// The same kernel with its sockets in `folder`. The key stays the same, so that signatures are
    /// valid on both sides of a relay.
    #[must_use]
    pub fn moved_to(&self, folder: &Path) -> Self {
        let mut fields = self.fields.clone();
        let base = folder.join("kernel").display().to_string();
        fields.insert("transport".to_owned(), "ipc".into());
        fields.insert("ip".to_owned(), base.into());
        for (index, channel) in Channel::ALL.into_iter().enumerate() {
            fields.insert(channel.field(), (index + 1).into());
        }
        Self { fields }
    }

    /// Writes a new file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), ConnectionError> {
        let text = Value::Object(self.fields.clone()).to_string();
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|source| ConnectionError::Write {
                path: path.to_owned(),
                source,
            })
    }

    pub fn endpoint(&self, channel: Channel) -> Result<Endpoint, ConnectionError> {
        let host = self.text("ip").unwrap_or("127.0.0.1");
        let port = self
            .fields
            .get(&channel.field())
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0)
            .ok_or_else(|| ConnectionError::Field(channel.field()))?;
        match self.text("transport").unwrap_or("tcp") {
            "tcp" => Ok(Endpoint::Tcp {
                host: host.to_owned(),
                port,
            }),
            "ipc" => Ok(Endpoint::Ipc(format!("{host}-{port}").into())),
            other => Err(ConnectionError::Transport(other.to_owned())),
        }
    }

    /// The key that signs messages. If it is empty, messages are not signed.
    #[must_use]
    pub fn key(&self) -> Bytes {
        Bytes::copy_from_slice(self.text("key").unwrap_or_default().as_bytes())
    }

    #[must_use]
    pub fn signature_scheme(&self) -> &str {
        self.text("signature_scheme").unwrap_or("hmac-sha256")
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn file(changes: Value) -> Result<ConnectionFile, ConnectionError> {
        let mut document = json!({
            "ip": "127.0.0.1", "transport": "tcp", "key": "k", "signature_scheme": "hmac-sha256",
            "shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
            "kernel_name": "baton", "jupyter_session": "/a.ipynb",
        });
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        ConnectionFile::parse(document.to_string().as_bytes())
    }

    fn check_endpoint(changes: Value, channel: Channel, expected: &str) {
        let endpoint = file(changes).unwrap().endpoint(channel).unwrap();
        assert_eq!(endpoint.to_string(), expected);
    }

    fn check_refused(changes: Value, expected: &str) {
        let error = file(changes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn endpoints_are_those_of_zeromq() {
        check_endpoint(json!({}), Channel::Shell, "tcp://127.0.0.1:1");
        check_endpoint(json!({"ip": "::1"}), Channel::Heartbeat, "tcp://[::1]:5");
        check_endpoint(
            json!({"ip": "/run/k", "transport": "ipc"}),
            Channel::Iopub,
            "ipc:///run/k-2",
        );
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        check_refused(json!({"curve_publickey": "abc"}), "curve_publickey");
        check_refused(json!({"curve_secretkey": "abc"}), "CurveZMQ");
        check_refused(json!({"transport": "inproc"}), "inproc");
        check_refused(json!({"shell_port": 70000}), "shell_port");
        check_refused(json!({"iopub_port": 0}), "iopub_port");
        check_refused(json!({"hb_port": null}), "hb_port");
        assert!(ConnectionFile::parse(b"[]").is_err());
        assert!(ConnectionFile::parse(b"").is_err());
        assert!(file(json!({"curve_publickey": null})).is_ok());
    }

    #[test]
    fn the_inner_file_keeps_key_and_unknown_fields() {
        let inner = file(json!({})).unwrap().moved_to(Path::new("/folder"));
        assert_eq!(inner.fields["jupyter_session"], "/a.ipynb");
        assert_eq!(inner.key(), Bytes::from_static(b"k"));
        assert_eq!(
            inner.endpoint(Channel::Iopub).unwrap(),
            Endpoint::Ipc("/folder/kernel-2".into())
        );
    }

    #[test]
    fn a_written_file_is_private_and_reads_back() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connection.json");
        let connection = file(json!({"key": "5ec12e7"})).unwrap();
        connection.write(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(ConnectionFile::read(&path).unwrap() == connection);
        assert!(connection.write(&path).is_err(), "never over another file");
        assert!(!format!("{connection:?}").contains(&*String::from_utf8_lossy(&connection.key())));
    }
}
