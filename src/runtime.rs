//! Where the commands that serve run.

/// On the threads of the runtime. What `block_on` is given runs on the main thread alone, to which every message would
/// be handed over, and a cell would wait for that some ten times.
pub(crate) async fn on_its_threads<T: Send + 'static>(
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::spawn(work).await?
}
