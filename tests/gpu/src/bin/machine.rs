//! Puts a driver and cards of the given sizes into a folder.

use baton_gpu_tests::Machine;
use std::{io, path::Path};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, first, others @ ..] = &arguments[..] else {
        return Err(io::Error::other("usage: gpu-machine FOLDER BYTES..."));
    };
    let machine = Machine::create(Path::new(folder), first.parse().map_err(io::Error::other)?)?;
    for (number, bytes) in (1..).zip(others) {
        machine.add_card(number, bytes.parse().map_err(io::Error::other)?)?;
    }
    Ok(())
}
