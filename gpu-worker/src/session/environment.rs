//! Which variables of the worker's environment a session inherits.
//!
//! In: the worker's variables. Out: those that a cell may read.
//!
//! **Invariant:** a variable that is not named here or in `worker.session_environment` stays with the worker. So
//! does a secret with an unforeseen name.

use std::ffi::OsString;

/// The variables that every session inherits. A `*` at the end stands for any ending.
///
/// No pattern may match the name of a secret. So Hugging Face's variables are named one by one (because of
/// `HF_TOKEN`), and so are Jupyter's (`JUPYTER_TOKEN`). Network proxies are not among them, because their addresses
/// often contain a password.
const INHERITED: &[&str] = &[
    // The user and the machine.
    "HOME",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "TZDIR",
    "USER",
    "XDG_*",
    // How programs are loaded.
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_*",
    // Python, and where its programs keep their files.
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_PATH",
    "JUPYTER_PLATFORM_DIRS",
    "JUPYTER_RUNTIME_DIR",
    "MPLBACKEND",
    "MPLCONFIGDIR",
    "PYTHON*",
    "VIRTUAL_ENV",
    // Processors, GPUs and the libraries that use them.
    "BLIS_*",
    "CUBLAS_*",
    "CUDA_*",
    "CUDNN_*",
    "GOMP_*",
    "JAX_*",
    "KERAS_HOME",
    "KMP_*",
    "MKL_*",
    "NCCL_*",
    "NUMBA_*",
    "NUMEXPR_*",
    "NVIDIA_*",
    "OMP_*",
    "OPENBLAS_*",
    "PYTORCH_*",
    "TF_*",
    "TORCH_*",
    "TRITON_*",
    "XLA_*",
    // Models and data on a disk of the machine.
    "HF_DATASETS_CACHE",
    "HF_DATASETS_OFFLINE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
];

/// The `variables` that a session gets; `more` are further patterns like those above.
pub(super) fn inherited(
    variables: impl Iterator<Item = (OsString, OsString)>,
    more: &[String],
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| {
        let Some(name) = name.to_str() else {
            return false;
        };
        let mut patterns = INHERITED
            .iter()
            .copied()
            .chain(more.iter().map(String::as_str));
        patterns.any(|pattern| matches(pattern, name))
    })
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_inherits_what_is_named_and_no_secret() {
        let check = |name: &str, more: &[&str], expected: bool| {
            let more: Vec<String> = more.iter().map(|name| (*name).to_owned()).collect();
            let variables = [(OsString::from(name), OsString::from("value"))];
            let kept = inherited(variables.into_iter(), &more).count() == 1;
            assert_eq!(kept, expected, "{name}");
        };
        for name in ["PATH", "LC_ALL", "CUDA_HOME", "PYTHONHASHSEED", "HF_HOME"] {
            check(name, &[], true);
        }
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "BATON_BROKER_HUB_TOKEN",
            "BATON_TOKEN",
            "BATON_TOKEN_FILE",
            "CREDENTIALS_DIRECTORY",
            "HF_TOKEN",
            "HOMELY",
            "HTTPS_PROXY",
            "JUPYTERHUB_API_TOKEN",
            "JUPYTER_TOKEN",
            "PGPASSWORD",
            "SLURM_JWT",
        ] {
            check(name, &[], false);
        }
        check("COURSE_DATA", &["COURSE_*"], true);
        check("COURSE", &["COURSE_*"], false);
        check("HTTPS_PROXY", &["HTTPS_PROXY"], true);
    }
}
