//! Compiles the library that sessions load before all others. It is embedded in this crate, because only one
//! program is installed. It depends on nothing, because it runs in processes that are not Baton's.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=src/wire.rs");
    println!("cargo::rerun-if-changed=src/library");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    let mut command = Command::new(env::var_os("RUSTC").expect("Cargo says which"));
    command
        .args(["--edition=2024", "--crate-name=baton_interposer"])
        .args(["--crate-type=cdylib", "-Cpanic=abort", "-Copt-level=3"])
        .args(["-Cstrip=symbols", "--cap-lints=allow", "--target"])
        .arg(env::var_os("TARGET").expect("Cargo says for what"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        command
            .arg("-C")
            .arg(["linker=", &linker.to_string_lossy()].concat());
    }
    command.arg("-o").arg(folder.join("interposer.so"));
    let status = command.arg("src/library/mod.rs").status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "The interposer could not be compiled"
    );
}
