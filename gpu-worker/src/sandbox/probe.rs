//! A program that tries the walls of a sandbox from inside, before a worker trusts them.
//!
//! In: what lies outside. Out: what of it could be reached, which must be nothing.

use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::{Bubblewrap, NetworkChoice, SandboxError, Variable};

const NAMESPACES: &[&str] = &["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"];

/// Prints one line for each thing that it reaches.
///
/// Arguments: a file, a port of this machine, an abstract socket, and the namespaces of the worker.
const PROGRAM: &str = r#"
import ctypes, os, socket, sys
file, port, name, *namespaces = sys.argv[1:]
LIBC = ctypes.CDLL(None)
CLONE_NEWUSER = 0x10000000

def tcp():
    socket.create_connection(("127.0.0.1", int(port)), 3)

def abstract():
    socket.socket(socket.AF_UNIX).connect("\0" + name)

def capabilities():
    lines = open("/proc/self/status").read().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in lines)

attempts = {
    "files of the worker": lambda: os.path.exists(file),
    "the system's programs, for writing": lambda: os.access("/usr", os.W_OK),
    "a TCP port of the machine": tcp,
    "an abstract socket of the machine": abstract,
    "capabilities": capabilities,
    "another user namespace": lambda: LIBC.unshare(CLONE_NEWUSER) == 0,
}
for namespace in namespaces:
    own = os.readlink("/proc/self/ns/" + namespace.partition(":")[0])
    attempts["the machine's " + namespace.partition(":")[0] + " namespace"] = lambda own=own, its=namespace: own == its
for what, attempt in attempts.items():
    try:
        if attempt() is not False:
            print(what)
    except OSError:
        pass
"#;

pub(super) async fn run(
    bubblewrap: &Bubblewrap,
    python: &Path,
    runtime_folder: &Path,
) -> Result<(), SandboxError> {
    std::fs::create_dir_all(runtime_folder)?;
    let file = tempfile::NamedTempFile::new_in(runtime_folder)?;
    let port = TcpListener::bind("127.0.0.1:0")?;
    let name = format!("baton-{}", uuid::Uuid::new_v4().simple());
    let _socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let has_host_network = bubblewrap.network == NetworkChoice::Host;
    let namespaces = namespaces(has_host_network)?;

    let mut command = Command::new(&bubblewrap.program);
    let mut view = bubblewrap.view(python).await?;
    let variables: Vec<_> = std::env::vars_os().collect();
    let variables: Vec<Variable<'_>> = variables
        .iter()
        .map(|(name, value)| (name.as_os_str(), Some(value.as_os_str())))
        .collect();
    view.of_environment(&variables, bubblewrap.limits.scratch_bytes);
    bubblewrap.enter(&mut command, &view)?;
    command
        .args(["--chdir", "/", "--"])
        .arg(python)
        .args(["-I", "-c", PROGRAM])
        .arg(file.path());
    match has_host_network {
        // Both belong to the network, and then no attempt says anything.
        true => command.args(["0", ""]),
        false => command.arg(port.local_addr()?.port().to_string()).arg(name),
    };
    let output = command
        .args(namespaces)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(SandboxError::Fails { said });
    }
    let reached: Vec<_> = std::str::from_utf8(&output.stdout)
        .map_err(io::Error::other)?
        .lines()
        .collect();
    match reached.is_empty() {
        true => Ok(()),
        false => Err(SandboxError::Leaks {
            reached: reached.join(", "),
        }),
    }
}

/// Of this process, as `/proc` names them.
fn namespaces(has_host_network: bool) -> io::Result<Vec<String>> {
    let separate = NAMESPACES
        .iter()
        .filter(|name| **name != "net" || !has_host_network);
    separate
        .map(|name| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
            Ok(link.display().to_string())
        })
        .collect()
}
