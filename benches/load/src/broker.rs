//! The broker as an operator starts it, on one of both engines, and what the system and its own metrics say of it.

use anyhow::Context;
use baton_postgres_tests::{Disk, Server};
use baton_protocol::address::BrokerAddress;
use baton_transport::{Api, Dial};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

pub(crate) struct Broker {
    pub(crate) dial: Dial,
    child: Child,
    folder: TempDir,
    _server: Option<Server>,
}

pub(crate) struct Stored {
    pub(crate) transactions: u64,
    pub(crate) mean_ms: f64,
}

impl Broker {
    pub(crate) async fn start(baton: &Path, engine: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("broker.sock");
        let mut command = Command::new(baton);
        command
            .arg("broker")
            .arg("--state-folder")
            .arg(folder.path())
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()))
            .env("BATON_CONFIG", "/dev/null")
            .stdout(Stdio::null());
        let server = match engine {
            "sqlite" => None,
            "postgres" => Some(Server::start(Disk::Sync)),
            _ => anyhow::bail!("ENGINE is sqlite or postgres"),
        };
        if let Some(server) = &server {
            command.arg("--database").arg(server.url());
        }
        let broker = Self {
            dial: Dial {
                address: BrokerAddress::Unix(socket),
                token: None,
                ca_file: None,
            },
            child: command.spawn().context("Failed to start the broker")?,
            folder,
            _server: server,
        };
        let api = Api::new(&broker.dial)?;
        let mut tries = 0;
        while api.get("/health/ready").await.is_err() {
            anyhow::ensure!(tries < 300, "The broker does not get ready");
            tries += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(broker)
    }

    /// On the disk that its store is on, too.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A field of its status, such as `VmHWM`.
    pub(crate) fn memory_bytes(&self, field: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kilobytes.context("The status of a process has changed")? * 1024)
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse().ok())
            .collect();
        // A tick is 10 ms on every Linux that this runs on.
        Ok(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
    }

    /// What its metrics say of transactions.
    pub(crate) async fn stored(&self) -> anyhow::Result<Stored> {
        let text = Api::new(&self.dial)?.get("/metrics").await?;
        let text = String::from_utf8_lossy(&text);
        let value = |name: &str| {
            let found = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            found.with_context(|| format!("The metric {name} is gone"))
        };
        let (seconds, count): (f64, f64) = (
            value("baton_transaction_seconds_total ")?,
            value("baton_transactions_total ")?,
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        let transactions = count as u64;
        Ok(Stored {
            transactions,
            mean_ms: (1e6 * seconds / count).round() / 1e3,
        })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
