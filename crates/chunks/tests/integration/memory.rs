//! Reading another process's memory.

use baton_chunks::{StateError, memory};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// A Python child that prints the address of 3 MB of its memory.
const CHILD: &str = "
import sys
data = bytes(range(256)) * 12000
print(id(data) + bytes.__basicsize__ - 1, flush=True)
sys.stdin.read()
";

struct Python {
    child: Child,
    address: u64,
}

impl Python {
    fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", CHILD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        Self { child, address }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn memory_of_a_child_is_read_where_it_lies() {
    let python = Python::start();
    let mut bytes = vec![0; 256 * 12_000];
    memory::read(python.pid(), python.address, &mut bytes).unwrap();
    let expected = (0..=255).cycle();
    assert!(bytes.iter().copied().eq(expected.take(256 * 12_000)));
}

#[test]
fn an_address_that_is_not_there_is_named() {
    let python = Python::start();
    let error = memory::read(python.pid(), 0x10, &mut [0; 4]).unwrap_err();
    assert!(
        matches!(
            error,
            StateError::Memory {
                address: 0x10,
                bytes: 4,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_process_that_ended_is_named() {
    let mut python = Python::start();
    python.child.kill().unwrap();
    python.child.wait().unwrap();
    let error = memory::read(python.pid(), python.address, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, StateError::ProcessGone { .. }), "{error}");
}

#[test]
fn nothing_is_read_for_an_empty_segment() {
    memory::read(1, 0, &mut []).unwrap();
}
