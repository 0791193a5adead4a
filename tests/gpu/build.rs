//! Compiles the driver under the name by which programs look for it.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=src/driver");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    let mut command = Command::new(env::var_os("RUSTC").expect("Cargo says which"));
    command
        .args(["--edition=2024", "--crate-name=cuda", "--crate-type=cdylib"])
        .args(["-Cpanic=abort", "-Copt-level=2", "--cap-lints=allow"])
        .args(["-Clink-arg=-Wl,-soname,libcuda.so.1"])
        // Its functions find each other, also where others of the same name were loaded before.
        .args(["-Clink-arg=-Wl,-Bsymbolic"])
        .arg("--target")
        .arg(env::var_os("TARGET").expect("Cargo says for what"));
    command.arg("-o").arg(folder.join("libcuda.so.1"));
    let status = command.arg("src/driver/mod.rs").status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "The driver could not be compiled"
    );
}
