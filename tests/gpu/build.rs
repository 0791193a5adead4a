//! Compiles the driver's libraries, under the names that programs load.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const ASKED: &str = "../../gpu-worker/interposer/src/library/sys/asked.txt";

fn main() {
    for shared in ["src/layout.rs", "src/locks.rs"] {
        println!("cargo::rerun-if-changed={shared}");
    }
    write_absent();
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
        // Its functions call each other, even if others of the same names were loaded before.
        .args(["-Clink-arg=-Wl,-Bsymbolic"])
        .arg("--target")
        .arg(env::var_os("TARGET").expect("Cargo says for what"));
    command.env("ABSENT", folder.join("absent.rs"));
    command.arg("-o").arg(folder.join(file));
    let status = command.arg(Path::new(sources).join("mod.rs")).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{sources} could not be compiled"
    );
}

/// Functions that libraries look up and this driver does not implement; libraries can do without them.
fn write_absent() {
    println!("cargo::rerun-if-changed={ASKED}");
    let sources = fs::read_dir("src/driver/sys").expect("it is there");
    let text = |path: PathBuf| fs::read_to_string(path).expect("it is text");
    let sources: String = sources.flatten().map(|file| text(file.path())).collect();
    let asked = text(ASKED.into());
    let names = asked.lines().filter(|line| line.starts_with("cu"));
    let is_absent = |name: &&str| !sources.contains(&format!("fn {name}("));
    let function = |name| {
        format!(
            "#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> crate::Code {{ crate::absent(\"{name}\") }}\n"
        )
    };
    let absent: Vec<&str> = names.filter(is_absent).collect();
    let functions: String = absent.iter().map(function).collect();
    let entry = |name| format!("    (\"{name}\", {name} as *const ()),\n");
    let entries: String = absent.iter().map(entry).collect();
    let table = format!(
        "pub(super) fn all() -> Vec<(&'static str, *const ())> {{\n    vec![\n{entries}]\n}}\n"
    );
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    fs::write(folder.join("absent.rs"), functions + &table).expect("the folder is there");
}
