#![allow(clippy::unwrap_used)]

use super::*;
use crate::samples::{naming, submit};
use baton_protocol::{ChunkHash, JobEvent};

#[tokio::test]
async fn a_change_from_another_state_than_the_stored_one_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("broker.db")).await.unwrap();
    let apply = async |write| store.apply(&[write]).await.unwrap();
    let job = JobId::random();
    apply(submit(job, naming(ChunkHash([0; 32])))).await;
    let assign = |fencing| Write::Assign {
        job,
        worker: WorkerId::random(),
        worker_name: "gpu-2".to_owned(),
        fencing,
        timeout_ms: None,
        at_ms: 0,
    };
    let start = |fencing| Write::Start {
        job,
        fencing,
        at_ms: 0,
    };
    apply(assign(1)).await;
    for wrong in [assign(2), start(2), Write::Close { job }] {
        let event = NumberedEvent {
            number: 1,
            event: JobEvent::StateWanted {},
        };
        let batch = [
            Write::Events {
                job,
                acknowledged: Some(1),
                events: vec![event],
            },
            wrong,
        ];
        let refused = store.apply(&batch).await;
        assert!(
            matches!(refused, Err(StoreError::Conflict { .. })),
            "{refused:?}"
        );
        assert!(store.events(job, 0).await.unwrap().is_empty());
    }
    apply(start(1)).await;
}
