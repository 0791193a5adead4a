//! Puts a driver and a card of so many bytes into a folder.

use std::{io, path::Path};

use baton_gpu_tests::Machine;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, bytes] = &arguments[..] else {
        return Err(io::Error::other("usage: gpu-machine FOLDER BYTES"));
    };
    let bytes = bytes.parse().map_err(io::Error::other)?;
    Machine::create(Path::new(folder), bytes)?;
    Ok(())
}
