//! Compiles the driver's libraries under the names by which programs look for them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    for shared in ["src/layout.rs", "src/locks.rs"] {
        println!("cargo::rerun-if-changed={shared}");
    }
    compile("cuda", "src/driver");
    compile("nvidia_ml", "src/monitoring");
}

fn compile(name: &str, sources: &str) {
    println!("cargo::rerun-if-changed={sources}");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    let file = format!("lib{}.so.1", name.replace('_', "-"));
    let mut command = Command::new(env::var_os("RUSTC").expect("Cargo says which"));
    command
        .args(["--edition=2024", "--crate-type=cdylib"])
        .arg(format!("--crate-name={name}"))
        .args(["-Cpanic=abort", "-Copt-level=2", "--cap-lints=allow"])
        .arg(format!("-Clink-arg=-Wl,-soname,{file}"))
        // Its functions find each other, also where others of the same name were loaded before.
        .args(["-Clink-arg=-Wl,-Bsymbolic"])
        .arg("--target")
        .arg(env::var_os("TARGET").expect("Cargo says for what"));
    command.arg("-o").arg(folder.join(file));
    let status = command.arg(Path::new(sources).join("mod.rs")).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{sources} could not be compiled"
    );
}
