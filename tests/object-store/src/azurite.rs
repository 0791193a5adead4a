//! Azurite, Microsoft's own server for tests of Azure Blob Storage.

use crate::{
    BUCKET, Program, installed,
    requests::{is_made, status},
};
use baton_port_tests::Ports;
use nix::sys::signal::Signal;
use std::{path::Path, process::Command};

const ACCOUNT: &str = "baton";
const KEY: &str = "b25seSBmb3IgYSB0ZXN0IG9mIEJhdG9uLCBub3QgYSBzZWNyZXQ=";
/// Signed with the key: it makes containers until the year 2100.
const MAY_MAKE: &str = "sv=2023-11-03&ss=b&srt=c&sp=c&se=2100-01-01T00%3A00%3A00Z&sig=6Ofqu0VL1bBem9S26Eve%2BtpGBPCOIE%2F0MguJliBtAb8%3D";

pub(crate) struct Azurite {
    ports: Ports<1>,
    /// Of megabytes, where it keeps nothing on the disk.
    memory: Option<u32>,
}

impl Azurite {
    pub(crate) fn new() -> Self {
        Self {
            ports: Ports::free(),
            memory: None,
        }
    }

    pub(crate) fn with_memory(megabytes: u32) -> Self {
        Self {
            memory: Some(megabytes),
            ..Self::new()
        }
    }

    fn port(&self) -> u16 {
        self.ports.numbers[0]
    }
}

impl Program for Azurite {
    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(installed("bin/node"));
        command
            .arg(installed(
                "azurite/node_modules/azurite/dist/src/blob/main.js",
            ))
            .args(["--blobHost", "127.0.0.1", "--blobPort"])
            .arg(self.port().to_string())
            .args(["--silent", "--disableTelemetry"])
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"));
        match self.memory {
            Some(megabytes) => command
                .args(["--inMemoryPersistence", "--extentMemoryLimit"])
                .arg(megabytes.to_string()),
            None => command.arg("--location").arg(folder),
        };
        command
    }

    fn serves(&self) -> bool {
        let path = format!("/{ACCOUNT}/{BUCKET}?restype=container&{MAY_MAKE}");
        is_made(status(self.port(), "PUT", &path, ""))
    }

    fn scheme(&self) -> &'static str {
        "az"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let endpoint = format!("http://127.0.0.1:{}/{ACCOUNT}", self.port());
        vec![
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY.to_owned()),
            ("AZURE_STORAGE_ENDPOINT", endpoint),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    fn end(&self) -> Signal {
        Signal::SIGTERM
    }
}
