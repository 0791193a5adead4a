//! A network that only leads out: `slirp4netns` (the *carrier*) connects a sandbox to the internet through the
//! machine's network.
//!
//! In: a sandbox that waits. Out: the carrier's process, which ends with the sandbox.
//!
//! **Invariant:** before a cell runs, private addresses, this machine's own and the broker's are denied. The routes
//! that deny them belong to the sandbox's outer user namespace, in which no cell has a capability.

use super::{
    SandboxError, find,
    sys::{ignore_sigterm, inherit, owner_of},
};
use baton_protocol::address::BrokerAddress;
use nix::ifaddrs::getifaddrs;
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    process::{Child, Command},
};

const CARRIER: &str = "slirp4netns";
const ROUTES: &str = "ip";
const ENTER: &str = "nsenter";
const DEVICE: &str = "tap0";
/// The carrier's name server. It is in the network that the carrier creates, `10.0.2.0/24`.
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

const PATIENCE: Duration = Duration::from_secs(20);
/// How often to look at a sandbox that bubblewrap is still building.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Addresses that are not on the internet: private ones, those that internet providers share among customers,
/// link-local ones (such as clouds' metadata), and those for benchmarks, multicast and reserved use. The carrier
/// does not carry IPv6.
const PRIVATE: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

#[derive(Debug)]
pub(super) struct Egress {
    carrier: PathBuf,
    routes: PathBuf,
    enter: PathBuf,
    broker: Option<String>,
    /// A file that names the name server.
    pub(super) resolver: PathBuf,
}

impl Egress {
    pub(super) fn open(broker: &BrokerAddress, folder: &Path) -> Result<Self, SandboxError> {
        let program = |name: &'static str| find(name).ok_or(SandboxError::NoEgress { name });
        let resolver = folder.join("resolv.conf");
        fs::create_dir_all(folder)?;
        fs::write(&resolver, format!("nameserver {NAME_SERVER}\n"))?;
        Ok(Self {
            carrier: program(CARRIER)?,
            routes: program(ROUTES)?,
            enter: program(ENTER)?,
            broker: host_and_port(broker),
            resolver,
        })
    }

    /// Makes bubblewrap wait before it starts the session.
    pub(super) fn hold(&self, command: &mut Command) -> io::Result<Gate> {
        let (info, its_info) = StdUnixStream::pair()?;
        let (go, its_go) = StdUnixStream::pair()?;
        info.set_nonblocking(true)?;
        go.set_nonblocking(true)?;
        let (its_info, its_go) = (OwnedFd::from(its_info), OwnedFd::from(its_go));
        command
            .arg("--info-fd")
            .arg(its_info.as_raw_fd().to_string())
            .arg("--block-fd")
            .arg(its_go.as_raw_fd().to_string());
        inherit(command, vec![its_info, its_go]);
        Ok(Gate {
            info: UnixStream::from_std(info)?,
            go: UnixStream::from_std(go)?,
        })
    }

    /// Connects the sandbox that waits at the gate, and opens the gate. Must be called after the command was
    /// dropped.
    pub(super) async fn connect(&self, gate: Gate) -> Result<Carrier, SandboxError> {
        let connected = tokio::time::timeout(PATIENCE, self.connect_in_time(gate)).await;
        connected.map_err(|_elapsed| SandboxError::Egress {
            said: format!("not ready within {} s", PATIENCE.as_secs()),
        })?
    }

    async fn connect_in_time(&self, mut gate: Gate) -> Result<Carrier, SandboxError> {
        let mut info = Vec::new();
        gate.info.read_to_end(&mut info).await?;
        let Ok(Info { child_pid }) = serde_json::from_slice(&info) else {
            return Err(SandboxError::Fails {
                said: "it ended before it had a network".to_owned(),
            });
        };
        // Before bubblewrap has mapped the user, a process that enters the sandbox has no rights there.
        while fs::read(format!("/proc/{child_pid}/uid_map"))?.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let network = OwnedFd::from(fs::File::open(format!("/proc/{child_pid}/ns/net"))?);
        let user = owner_of(network.as_fd())?;
        let carrier = self.carry(&network, &user).await?;
        self.deny(&network, &user).await?;
        gate.go.write_all(b"1").await?;
        Ok(carrier)
    }

    async fn carry(&self, network: &OwnedFd, user: &OwnedFd) -> Result<Carrier, SandboxError> {
        let (network, user) = (network.try_clone()?, user.try_clone()?);
        let (mut ready, its_ready) = UnixStream::pair()?;
        let its_ready = OwnedFd::from(its_ready.into_std()?);
        // The carrier ends when this end is closed, which also happens if the worker is killed.
        let (life, its_life) = StdUnixStream::pair()?;
        let its_life = OwnedFd::from(its_life);
        // In this namespace its user is root; otherwise the carrier does not confine itself.
        let mut command = self.inside(&user);
        command
            .arg("--")
            .arg(&self.carrier)
            .args(["--configure", "--mtu=65520", "--disable-host-loopback"])
            .args(["--enable-sandbox", "--enable-seccomp", "--netns-type=path"])
            .arg(format!("--ready-fd={}", its_ready.as_raw_fd()))
            .arg(format!("--exit-fd={}", its_life.as_raw_fd()))
            .arg(path_of(&network))
            .arg(DEVICE);
        inherit(&mut command, vec![network, user, its_ready, its_life]);
        ignore_sigterm(&mut command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        drop(command);
        if ready.read_u8().await.is_ok() {
            // Its messages about single connections are of no interest to an administrator.
            if let Some(mut said) = child.stderr.take() {
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut said, &mut tokio::io::sink()).await;
                });
            }
            return Ok(Carrier {
                _child: child,
                _life: life,
            });
        }
        let output = child.wait_with_output().await?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(SandboxError::Egress { said })
    }

    async fn deny(&self, network: &OwnedFd, user: &OwnedFd) -> Result<(), SandboxError> {
        let (network, user) = (network.try_clone()?, user.try_clone()?);
        let mut lines = String::new();
        for denied in PRIVATE
            .iter()
            .map(|range| (*range).to_owned())
            .chain(self.addresses().await?.iter().map(ToString::to_string))
        {
            let _ = writeln!(lines, "route replace prohibit {denied}");
        }
        let mut command = self.inside(&user);
        command
            .arg(format!("--net={}", path_of(&network)))
            .arg("--")
            .arg(&self.routes)
            .args(["-batch", "-"]);
        inherit(&mut command, vec![network, user]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(lines.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        match output.status.success() {
            true => Ok(()),
            false => Err(SandboxError::Egress {
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    /// Runs the rest of the command in this user namespace, with all rights there.
    fn inside(&self, user: &OwnedFd) -> Command {
        let mut command = Command::new(&self.enter);
        command
            .arg(format!("--user={}", path_of(user)))
            .arg("--preserve-credentials");
        command
    }

    /// The addresses of this machine and of the broker. A broker whose name has no address now cannot be reached
    /// either.
    async fn addresses(&self) -> io::Result<BTreeSet<Ipv4Addr>> {
        let own = getifaddrs()?.filter_map(|interface| {
            let address = interface.address?;
            Some(address.as_sockaddr_in()?.ip())
        });
        let mut found: BTreeSet<Ipv4Addr> = own.collect();
        if let Some(broker) = &self.broker {
            let addresses = tokio::net::lookup_host(broker).await;
            let addresses = addresses.into_iter().flatten();
            found.extend(addresses.filter_map(|address| match address.ip() {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            }));
        }
        // The system has its own routes for loopback addresses, and an option of the carrier denies them.
        found.retain(|address| !address.is_loopback());
        Ok(found)
    }
}

/// The connections to a sandbox that waits for its network.
#[derive(Debug)]
pub(crate) struct Gate {
    info: UnixStream,
    go: UnixStream,
}

/// The process that carries the connections of one sandbox. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Carrier {
    _child: Child,
    _life: StdUnixStream,
}

/// What bubblewrap reports about itself.
#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    child_pid: u32,
}

fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// `None` if the broker is on this machine.
fn host_and_port(broker: &BrokerAddress) -> Option<String> {
    let BrokerAddress::Http(url) = broker else {
        return None;
    };
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    Some(match (has_port, scheme) {
        (true, _) => authority.to_owned(),
        (false, "https") => format!("{authority}:443"),
        (false, _) => format!("{authority}:80"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_on_the_network_has_a_host_and_a_port() {
        let check = |url: &str, expected: &str| {
            let address = BrokerAddress::Http(url.to_owned());
            assert_eq!(host_and_port(&address).as_deref(), Some(expected));
        };
        check(
            "https://broker.example.edu:8470/baton",
            "broker.example.edu:8470",
        );
        check("https://broker.example.edu", "broker.example.edu:443");
        check("http://[2001:db8::1]:80", "[2001:db8::1]:80");
        check("http://10.0.0.1", "10.0.0.1:80");
        assert_eq!(host_and_port(&BrokerAddress::Unix("/run/b".into())), None);
    }

    #[tokio::test]
    async fn the_broker_is_denied() {
        let broker = BrokerAddress::Http("https://203.0.113.9:8470".to_owned());
        let egress = Egress {
            carrier: PathBuf::new(),
            routes: PathBuf::new(),
            enter: PathBuf::new(),
            broker: host_and_port(&broker),
            resolver: PathBuf::new(),
        };
        let denied = egress.addresses().await.unwrap();
        assert!(denied.contains(&Ipv4Addr::new(203, 0, 113, 9)));
        assert!(denied.iter().all(|address| !address.is_loopback()));
    }
}
