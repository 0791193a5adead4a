//! Compiles the library that kernels load to digest their own memory, once for each kind of processor.
//!
//! It is embedded in this crate, because Baton is installed as a single program.

use std::{env, path::PathBuf, process::Command};

const SOURCES: [&str; 3] = [
    "src/scanner/sys.rs",
    "src/scanner/sys/keeper.rs",
    "src/scanner/digest.rs",
];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    let wide = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "-Ctarget-cpu=x86-64-v3",
        _ => "-Ctarget-cpu=generic",
    };
    compile(folder.join("scanner.so"), "-Ctarget-cpu=generic");
    compile(folder.join("scanner-wide.so"), wide);
}

fn compile(library: PathBuf, processor: &str) {
    let mut command = Command::new(env::var_os("RUSTC").expect("Cargo says which"));
    command
        .args([
            "--edition=2024",
            "--crate-name=scanner",
            "--crate-type=cdylib",
        ])
        .args([
            "-Copt-level=3",
            "-Ccodegen-units=1",
            "-Cpanic=abort",
            "-Cstrip=symbols",
        ])
        .args(["-Clink-arg=-nostdlib", processor, "--target"])
        .arg(env::var_os("TARGET").expect("Cargo says for what"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        command
            .arg("-C")
            .arg(["linker=", &linker.to_string_lossy()].concat());
    }
    let status = command.arg("-o").arg(&library).arg(SOURCES[0]).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{} could not be compiled",
        library.display()
    );
}
