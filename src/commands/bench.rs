//! `baton bench latency`: the time that a `%%gpu` cell adds on this installation, part by part.
//!
//! Real notebook kernels run real cells on NumPy arrays. Three functions of the shim are watched in
//! the notebook kernel, the cell itself reports its begin and end, and the broker reports whether
//! another job was in the way. If the session is on another machine, the clocks are compared with
//! empty cells: both directions are assumed to take equally long on average.

mod notebook;
mod report;

use self::{
    notebook::{Measured, Notebook},
    report::Row,
};
use super::ask::run;
use crate::{
    python::default_python,
    settings::{Settings, Size, Value},
};
use anyhow::Context;
use baton_jupyter_client::Kernelspec;
use clap::{Subcommand, value_parser};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Measure this installation
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Measure what a %%gpu cell adds to an ordinary one, with real notebooks
    Latency {
        /// The largest data that a cell touches
        #[arg(long, value_name = "SIZE", value_parser = Size::from_text, default_value = "1GB")]
        most: Size,
        /// How many times a warm cell runs; medians are printed
        #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u16).range(1..), default_value_t = 5)]
        runs: u16,
        /// The Python in which notebooks run
        #[arg(long)]
        python: Option<PathBuf>,
        /// Print JSON; times are in seconds
        #[arg(long)]
        json: bool,
    },
}

const MEGABYTE: u64 = 1_000_000;
const SIZES_MB: [u64; 5] = [0, 1, 10, 100, 1000];

/// The cells of one row.
struct Cells {
    megabytes: u64,
    state: &'static str,
    measured: Vec<Measured>,
}

const COLD: &str = "cold";
const WARM: &str = "warm";
const CHANGED: &str = "1 % changed";

pub(crate) fn main(settings: &Settings, of: &Bench) -> anyhow::Result<ExitCode> {
    let Bench::Latency {
        most,
        runs,
        python,
        json,
    } = of;
    let folder = tempfile::tempdir().context("Failed to create a folder for the notebooks")?;
    let python = python.clone().unwrap_or_else(default_python);
    let kernelspec = kernelspec(settings, &python)?.in_folder(folder.path());
    run(async {
        let mut cells = Vec::new();
        for megabytes in SIZES_MB
            .into_iter()
            .filter(|size| size * MEGABYTE <= most.bytes)
        {
            let mut notebook = Notebook::start(&kernelspec, settings).await?;
            let of_size = of_size(&mut notebook, megabytes, *runs).await;
            notebook.close().await;
            cells.extend(of_size?);
        }
        let rows = rows(&cells);
        Ok(match json {
            true => report::json(&rows),
            false => report::text(&rows),
        })
    })
}

/// A kernel that uses the broker of these settings.
fn kernelspec(settings: &Settings, python: &Path) -> anyhow::Result<Kernelspec> {
    let program = std::env::current_exe().context("Failed to find this program")?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut kernelspec = Kernelspec::new(python, ["-m", "baton_shim", "-f", "{connection_file}"])
        .with_variable("BATON_BINARY", path(&program))
        .with_variable("BATON_RUNTIME_FOLDER", path(&settings.runtime_folder));
    if let Some(address) = &settings.broker_address {
        kernelspec = kernelspec.with_variable("BATON_BROKER_ADDRESS", address.to_string());
    }
    if let Some(file) = &settings.token_file {
        kernelspec = kernelspec.with_variable("BATON_TOKEN_FILE", path(file));
    }
    Ok(kernelspec)
}

async fn of_size(
    notebook: &mut Notebook<'_>,
    megabytes: u64,
    runs: u16,
) -> anyhow::Result<Vec<Cells>> {
    let cells = |state, measured| Cells {
        megabytes,
        state,
        measured,
    };
    let bytes = megabytes * MEGABYTE;
    let touch = match bytes {
        0 => "pass",
        _ => "baton_sum = int(baton_data[::4096].sum())",
    };
    if bytes > 0 {
        let random = "baton_numpy.random.default_rng().integers";
        notebook
            .run(&format!(
                "import numpy as baton_numpy\nbaton_data = {random}(0, 256, {bytes}, 'uint8')"
            ))
            .await?;
    }
    let cold = vec![notebook.measure(touch).await?];
    let mut warm = Vec::new();
    for _ in 0..runs {
        warm.push(notebook.measure(touch).await?);
    }
    let mut all = vec![cells(COLD, cold), cells(WARM, warm)];
    if bytes > 0 {
        let change = format!("baton_data[:{}] += 1", bytes / 100);
        let mut changed = Vec::new();
        for _ in 0..runs {
            notebook.run(&change).await?;
            changed.push(notebook.measure(&format!("{touch}\n{change}")).await?);
        }
        all.push(cells(CHANGED, changed));
    }
    Ok(all)
}

fn rows(cells: &[Cells]) -> Vec<Row> {
    let empty = cells.iter();
    let mut empty = empty.filter(|cells| cells.megabytes == 0 && cells.state == WARM);
    let clock = empty
        .next()
        .map_or(0.0, |cells| clock_difference(&cells.measured));
    let row = |cells: &Cells| Row {
        megabytes: cells.megabytes,
        state: cells.state,
        runs: cells.measured.len(),
        seconds: report::medians(cells.measured.iter().map(|one| one.parts(clock))),
    };
    cells.iter().map(row).collect()
}

/// The seconds by which the session's clock is ahead; on one machine the two are the same.
fn clock_difference(empty: &[Measured]) -> f64 {
    if !empty.iter().any(|one| one.elsewhere) {
        return 0.0;
    }
    report::median(empty.iter().map(|one| (one.out - one.back) / 2.0))
}
